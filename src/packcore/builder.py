"""Packs documents into chunk files; the only writer of a corpus.

Which ids are admitted is for `packcore.ids`, writing a full chunk for `packcore.writer`, what the
manifest holds for `packcore.manifest`, reading it all back for `packcore.dataset`.
"""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from packcore.checks import check_choice, check_int
from packcore.errors import ArgumentError, ArgumentTypeError, ClosedError, PackcoreError
from packcore.format import code
from packcore.ids import IdRule, Ids
from packcore.manifest import ChunkEntry, Manifest, check_prefix, chunk_path, write_manifest
from packcore.writer import ChunkWriter, OnChunk, prepare_folder

__all__ = ["PackedDatasetBuilder", "choose_dtype"]

_Sep = Literal["before", "after"]

_INT32_FROM = {"reference": 65500, "exact": 2**16 + 1}
"""The smallest vocab_size for which dtype="auto" is int32. The first is lit-gpt's."""


class PackedDatasetBuilder:
    """Packs documents, one behind the other, into chunk files of `chunk_size` tokens.

    The constructor, `add_array`, `write_reminder`, `dtype` and `filenames` are lit-gpt's, and so
    is every byte of the chunk files. Use it as a context manager, or call `close`: that writes
    the last chunk and the manifest. When the `with` block is left by an exception, neither is
    written. The chunks until then stay, whole and readable, but a later builder of the same
    prefix is refused until it is told to overwrite them, or which of them are `finished`; the
    same holds after a kill.

    Every id is checked before anything of its call is written. Full chunks, up to four, are
    hashed and written by threads while the next one is filled: if the disk refuses, a later call
    that fills one raises it, or `close`. A builder that failed, or was stopped by Ctrl-C within a
    call, takes nothing more. Several processes may build different prefixes in one folder.

    Args:
        outdir: the folder; made if there is none.
        prefix: what the files' names begin with.
        chunk_size: tokens a chunk file.
        sep_token: fills the tail of a chunk, and stands between documents if asked for.
        dtype: of the tokens on disk; "auto" for uint16 or int32, whichever `vocab_size` needs.
        vocab_size: ids must be below it; None admits all that fit `dtype`.
        auto_cutoff: where "auto" changes to int32: "reference" at a vocab_size of 65500, as
            lit-gpt does, "exact" above 65536, the most that uint16 can hold.
        overwrite: remove the files of this prefix that are there, now.
        tokenizer: the tokenizer's name, for the manifest.
        tokenizer_hash: the tokenizer's hash, for the manifest.
        finished: full chunks of the same build that an earlier builder gave to `on_chunk`, all
            from the first on. They stay, what is added goes behind them, and every other file of
            the prefix is removed. The caller knows which documents are in them: the rest of one
            that was cut at their end is added with `add_array`.
        on_chunk: called with a chunk's entry once it is on disk, in order, in this thread.

    Raises:
        ArgumentError: an argument breaks its rule, or `dtype` is "auto" without a `vocab_size`.
        ArgumentTypeError: an argument is of a wrong type.
        OverwriteError: files of this prefix are there, and `overwrite` is False.
        NoDataError: a file of a `finished` chunk is gone.
        WriteError: the folder cannot be made or written to.

    Examples:
        >>> folder = getfixture("tmp_path")
        >>> with PackedDatasetBuilder(folder, "web", 4, sep_token=0, vocab_size=100) as builder:
        ...     builder.add_document([11, 12, 13], sep="after")
        ...     builder.add_documents([21, 22, 31], [2, 1], sep="after")
        >>> manifest = builder.close()
        >>> manifest.num_documents, manifest.num_tokens, manifest.num_chunks
        (3, 9, 3)
    """

    _failure: BaseException | None = None
    _records_documents = False
    _closed = False

    def __init__(
        self,
        outdir: str | os.PathLike[str],
        prefix: str,
        chunk_size: int,
        sep_token: int,
        dtype: npt.DTypeLike = "auto",
        vocab_size: int | None = None,
        *,
        auto_cutoff: Literal["reference", "exact"] = "reference",
        overwrite: bool = False,
        tokenizer: str | None = None,
        tokenizer_hash: str | None = None,
        finished: Iterable[ChunkEntry] | None = None,
        on_chunk: OnChunk | None = None,
    ) -> None:
        if vocab_size is not None:
            vocab_size = check_int("vocab_size", vocab_size, low=1, unit="ids")
        check_choice("auto_cutoff", auto_cutoff, tuple(_INT32_FROM))
        stored = choose_dtype(dtype, vocab_size, auto_cutoff)
        self._rule = IdRule(stored, vocab_size)
        self._manifest = Manifest(
            check_prefix(prefix),
            stored,
            check_int("chunk_size", chunk_size, low=1, unit="tokens"),
            self._rule.check_one("sep_token", sep_token),
            _check_finished(finished, prefix, chunk_size),
            vocab_size,
            tokenizer,
            tokenizer_hash,
        )
        self._outdir = os.fspath(outdir)
        self._writer = ChunkWriter(self._outdir, self._manifest, on_chunk)
        self._chunk_size = self._manifest.chunk_size
        self._sep = np.array([self._manifest.sep_token], stored)
        self._tokens = self._writer.new_chunk()
        self._fill = 0
        self._starts = array("q")
        kept = None if finished is None else self._manifest.chunks
        prepare_folder(self._outdir, prefix, overwrite=overwrite, finished=kept)
        self._records_documents = any(entry.num_documents is not None for entry in kept or ())

    @property
    def dtype(self) -> type[np.generic]:
        """The NumPy type of the tokens on disk."""
        return self._manifest.dtype.type

    @property
    def filenames(self) -> list[str]:
        """The paths of the chunk files so far, in order; waits for those that are being written.

        Raises:
            WriteError: the disk refused one of them.
        """
        if self._failure is not None:
            entries = self._writer.known()
        else:
            try:
                entries = self._writer.finish()
            except BaseException as error:
                self._fail(error)
                raise
        return [os.path.join(self._outdir, entry.file) for entry in entries]

    def add_array(self, arr: Ids) -> None:
        """Adds tokens as they are, without a document's start: they continue the last document.

        Args:
            arr: `(num_tokens,)`, any integer dtype, or a list, an iterable, bytes; floats if the
                builder's dtype is a float.

        Raises:
            TokenError: an id does not fit; nothing of this call was written.
            ArgumentError: the array is not 1-D.
            ArgumentTypeError: these are not ids.
            WriteError: the disk refused a chunk; the builder takes nothing more.
            ClosedError: the builder is closed, or failed earlier.
        """
        self._check_open()
        tokens = self._rule.check("arr", arr)
        try:
            self._put(tokens)
        except BaseException as error:
            self._fail(error)
            raise

    def add_document(self, ids: Ids, *, sep: _Sep | None = None) -> None:
        """Adds one document and records where it begins.

        An empty one is recorded in the chunk of the token before it.

        Args:
            ids: `(num_tokens,)`, as for `add_array`.
            sep: put `sep_token` before or after it, as a token of the document.

        Raises:
            TokenError: an id does not fit; nothing of this call was written.
            ArgumentError: the array is not 1-D, or `sep` is something else.
            ArgumentTypeError: these are not ids.
            WriteError: the disk refused a chunk; the builder takes nothing more.
            ClosedError: the builder is closed, or failed earlier.
        """
        self._check_open()
        if sep is not None:
            _check_sep(sep)
        tokens = self._rule.check("ids", ids)
        try:
            fill = self._fill
            if fill == self._chunk_size and (sep or len(tokens)):
                self._write_chunk()
                fill = 0
            self._records_documents = True
            self._starts.append(fill)
            if sep == "before":
                self._put(self._sep)
            self._put(tokens)
            if sep == "after":
                self._put(self._sep)
        except BaseException as error:
            self._fail(error)
            raise

    def add_documents(self, flat: Ids, lengths: npt.ArrayLike, *, sep: _Sep | None = None) -> None:
        """Adds many documents at once: the same as `add_document` for each, but faster.

        Args:
            flat: `(num_tokens,)`, the ids of all of them, one document behind the other.
            lengths: `(num_documents,)`, any integer dtype: the ids of each.
            sep: put `sep_token` before or after each, as a token of the document.

        Raises:
            TokenError: an id does not fit; nothing of this call was written. Its index is that
                in `flat`.
            ArgumentError: an array is not 1-D, the lengths do not add up, or `sep` is something
                else.
            ArgumentTypeError: these are not ids, or not lengths.
            WriteError: the disk refused a chunk; the builder takes nothing more.
            ClosedError: the builder is closed, or failed earlier.
        """
        self._check_open()
        _check_sep(sep)
        tokens = self._rule.check("flat", flat)
        stops = np.cumsum(_check_lengths(lengths, len(tokens)))
        if sep:
            stops += np.arange(1, len(stops) + 1)
        try:
            self._put_documents(tokens, stops, sep)
        except BaseException as error:
            self._fail(error)
            raise

    def write_reminder(self) -> None:
        """Fills the open chunk with `sep_token` and writes it, even if there is nothing in it.

        What is added later goes into a new chunk. `close` does this for a last chunk that has
        tokens or documents; the name is lit-gpt's.

        Raises:
            WriteError: the disk refused the chunk; the builder takes nothing more.
            ClosedError: the builder is closed, or failed earlier.
        """
        self._check_open()
        try:
            self._write_chunk()
            self._writer.finish()
        except BaseException as error:
            self._fail(error)
            raise

    write_remainder = write_reminder

    def close(self, *, provenance: dict[str, Any] | None = None) -> Manifest:
        """Writes the last chunk, if there is a token or a document in it, and then the manifest.

        Args:
            provenance: how the corpus was made, for the manifest; a JSON object.

        Returns:
            The manifest; closing again returns it again.

        Raises:
            WriteError: the disk refused. There is no manifest; earlier chunks are whole.
            ClosedError: a call was stopped half-way earlier, so there is no manifest.
        """
        if self._closed:
            return self._manifest
        if isinstance(self._failure, PackcoreError):
            raise self._failure
        self._check_open()
        try:
            if self._fill or len(self._starts):
                self._write_chunk()
            entries = self._writer.finish()
            if self._records_documents:
                entries = self._writer.add_missing_sidecars()
            manifest = replace(self._manifest, chunks=tuple(entries), provenance=provenance)
            write_manifest(self._outdir, manifest)
        except BaseException as error:
            self._fail(error)
            raise
        self._manifest = manifest
        self._closed = True
        self._writer.stop()
        return manifest

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif not self._closed:
            self._fail(error)

    def __del__(self) -> None:
        # Scripts written for lit-gpt have no close(): they know of no manifest.
        if self._closed or self._failure is not None or not hasattr(self, "_writer"):
            return
        self._writer.wait()  # what it raises Python prints
        if self._records_documents:
            message = f"The builder of {self._manifest.prefix!r} was never closed: no manifest."
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def _check_open(self) -> None:
        if self._failure is None and not self._closed:
            return
        if self._failure is not None:
            raise ClosedError(
                f"The builder of {self._manifest.prefix!r} stopped at an error and takes nothing "
                "more; its finished chunks are whole, but have no manifest. Build again with "
                "overwrite=True, or under another prefix."
            ) from self._failure
        raise ClosedError(
            f"The builder of {self._manifest.prefix!r} is closed. Build more under another "
            "prefix: the manifests of one folder are opened together."
        )

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._writer.stop()

    def _put(self, tokens: npt.NDArray[Any]) -> None:
        """Puts tokens behind the last one. A full chunk is written when there are more."""
        while (stop := self._fill + len(tokens)) > self._chunk_size:
            room = self._chunk_size - self._fill
            self._tokens[self._fill :] = tokens[:room]
            self._fill = self._chunk_size
            self._write_chunk()
            tokens = tokens[room:]
        self._tokens[self._fill : stop] = tokens
        self._fill = stop

    def _put_documents(
        self, tokens: npt.NDArray[Any], stops: npt.NDArray[np.int64], sep: _Sep | None
    ) -> None:
        """Puts documents, given where each one stops in the row of them, separators included."""
        starts = np.concatenate(([0], stops[:-1])) if len(stops) else stops
        seps = stops[:0] if sep is None else starts if sep == "before" else stops - 1
        total = len(tokens) + len(seps)
        self._records_documents = True
        start = document = 0
        while True:
            stop = min(total, start + self._chunk_size - self._fill)
            next_document = len(stops)
            if stop < total:  # those that begin before the chunk's end, and empty ones at it
                begun, ended = np.searchsorted(starts, stop), np.searchsorted(stops, stop, "right")
                next_document = int(max(begun, ended))
            in_chunk = starts[document:next_document] + (self._fill - start)
            self._starts.frombytes(in_chunk.tobytes())
            self._put_piece(tokens, seps, start, stop)
            if stop == total:
                return
            self._write_chunk()
            start, document = stop, next_document

    def _put_piece(
        self, tokens: npt.NDArray[Any], seps: npt.NDArray[np.int64], start: int, stop: int
    ) -> None:
        """Puts [start, stop) of a row that has separators at `seps` and tokens elsewhere."""
        first, last = np.searchsorted(seps, (start, stop))
        room = self._tokens[self._fill : self._fill + stop - start]
        source = tokens[start - first : stop - last]
        if first == last:
            room[:] = source
        else:
            sep_at = seps[first:last] - start
            is_token = np.ones(len(room), np.bool_)
            is_token[sep_at] = False
            room[sep_at] = self._sep
            room[is_token] = source
        self._fill += len(room)

    def _write_chunk(self) -> None:
        self._tokens[self._fill :] = self._sep
        starts = np.array(self._starts, np.int64) if self._records_documents else None
        self._writer.write(self._tokens, self._fill, starts)
        self._tokens = self._writer.new_chunk()
        self._fill = 0
        self._starts = array("q")


def choose_dtype(
    dtype: npt.DTypeLike,
    vocab_size: int | None,
    auto_cutoff: Literal["reference", "exact"] = "reference",
) -> np.dtype[Any]:
    """Returns the dtype that tokens are stored in, little-endian.

    Args:
        dtype: one that the format has, or "auto".
        vocab_size: decides for "auto".
        auto_cutoff: where "auto" changes to int32; see `PackedDatasetBuilder`.

    Raises:
        ArgumentError: the format has no such dtype, or "auto" has no vocab_size to go by.
    """
    if isinstance(dtype, str) and dtype == "auto":
        if vocab_size is None:
            raise ArgumentError(
                "vocab_size cannot be None when dtype is 'auto'. Give the vocabulary's size, or "
                "a dtype such as 'uint16'.",
                name="vocab_size",
            )
        dtype = np.uint16 if vocab_size < _INT32_FROM[auto_cutoff] else np.int32
    code(dtype)
    return np.dtype(dtype).newbyteorder("<")


def _check_finished(
    finished: Iterable[ChunkEntry] | None, prefix: str, chunk_size: int
) -> tuple[ChunkEntry, ...]:
    entries = tuple(finished or ())
    for index, entry in enumerate(entries):
        expected = chunk_path("", prefix, index)
        if entry.file != expected:
            raise ArgumentError(
                f"finished[{index}] must be {expected}: all from the first on; got {entry.file}. "
                "Leave out those behind a gap: what was in them is added again.",
                name="finished",
                value=entry,
            )
        if entry.num_tokens != chunk_size:
            raise ArgumentError(
                f"finished[{index}] must be full; got {entry.num_tokens} of {chunk_size} tokens. "
                "Leave it out: what was in it is added again.",
                name="finished",
                value=entry,
            )
    return entries


def _check_sep(sep: object) -> None:
    if sep is not None and (not isinstance(sep, str) or sep not in ("before", "after")):
        raise ArgumentError(
            f"sep must be None, 'before' or 'after'; got {sep!r}.", name="sep", value=sep
        )


def _check_lengths(lengths: npt.ArrayLike, num_ids: int) -> npt.NDArray[np.int64]:
    try:
        counts = np.asarray(lengths)
    except ValueError:  # rows of unequal lengths
        counts = np.empty((0, 0), object)
    if counts.ndim != 1 or (counts.size and counts.dtype.kind not in "iu"):
        raise ArgumentTypeError(
            f"lengths must be a 1-D row of integers; got {counts.ndim}-D {counts.dtype}.",
            name="lengths",
            value=lengths,
        )
    bad = (counts < 0) | (counts > num_ids)
    if bad.any():
        index = int(np.argmax(bad))
        raise ArgumentError(
            f"lengths[{index}] must be in [0, {num_ids}], the ids in flat; got {counts[index]}.",
            name="lengths",
            value=int(counts[index]),
        )
    if counts.sum() != num_ids:
        raise ArgumentError(
            f"lengths must add up to the ids in flat; got {int(counts.sum())} and {num_ids}.",
            name="lengths",
            value=int(counts.sum()),
        )
    return counts.astype(np.int64)
