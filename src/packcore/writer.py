"""Writes the chunk files of one build, in threads, while the next chunks are filled.

Filling chunks is for `packcore.builder`; how one file is written whole, for `packcore.files`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import ClosedError, NoDataError, OverwriteError, PackcoreError
from packcore.files import check_writable, remove_files, remove_leftovers, staged, write_whole
from packcore.format import VERSION, ChunkHeader
from packcore.manifest import (
    ChunkEntry,
    Manifest,
    chunk_path,
    documents_path,
    encode_documents,
    is_file_of,
    list_files,
)

__all__ = ["ChunkWriter", "OnChunk", "prepare_folder"]

OnChunk = Callable[[ChunkEntry], object]
"""Called with a chunk's entry once its files are on disk."""

_MAX_IN_FLIGHT = 4
_MAX_BYTES_IN_FLIGHT = 2**28
"""Of chunks so large that fewer than the most fit in it, two are written at once."""


_writers: weakref.WeakSet[ChunkWriter] = weakref.WeakSet()
"""Those of this process that may have chunks in flight."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A chunk that is being written and hashed."""

    chunk_index: int
    tokens: npt.NDArray[Any]
    entry: Future[ChunkEntry]


class ChunkWriter:
    """Writes and hashes a few chunks at once, in threads, while the caller fills the next.

    A disk takes several files at once faster than one behind the other. They get their final
    names in order all the same: a build that is killed leaves the first ones, without a gap.

    Args:
        outdir: the folder.
        manifest: of the build; its chunks are on disk already, and what is written comes behind.
        on_chunk: called in the caller's thread, in the chunks' order.
    """

    def __init__(self, outdir: str, manifest: Manifest, on_chunk: OnChunk | None = None) -> None:
        self._outdir = outdir
        self._prefix = manifest.prefix
        self._header = ChunkHeader(VERSION, manifest.dtype, manifest.chunk_size)
        self._entries = list(manifest.chunks)
        self._on_chunk = on_chunk
        chunk_bytes = manifest.chunk_size * manifest.dtype.itemsize
        self._max_in_flight = min(max(_MAX_BYTES_IN_FLIGHT // chunk_bytes, 2), _MAX_IN_FLIGHT)
        self._flights: deque[_Flight] = deque()
        self._spares: list[npt.NDArray[Any]] = []
        self._pool = ThreadPoolExecutor(self._max_in_flight, "packcore-builder")
        self._process = os.getpid()
        self._is_landing = False
        _writers.add(self)

    def new_chunk(self) -> npt.NDArray[Any]:
        """Returns an array for one chunk: `(chunk_size,)`, in the stored dtype, not yet filled."""
        if self._spares:
            return self._spares.pop()
        return np.empty(self._header.chunk_size, self._header.dtype)

    def write(
        self, tokens: npt.NDArray[Any], num_tokens: int, starts: npt.NDArray[np.int64] | None
    ) -> None:
        """Begins to write a chunk; waits for earlier ones when there are many.

        Args:
            tokens: `(chunk_size,)`, of `new_chunk`, fill included; must not change any more.
            num_tokens: how many of them are valid.
            starts: `(num_documents,)`: where documents begin; None if nobody records them.

        Raises:
            WriteError: the disk refused an earlier chunk.
            ClosedError: this is a fork of the process that made the writer: its threads are not
                here.
        """
        self._check_process()
        while self._flights and (self._is_full() or self._flights[0].entry.done()):
            self._land()
        index = len(self._entries) + len(self._flights)
        path = chunk_path(self._outdir, self._prefix, index)
        before = self._flights[-1].entry if self._flights else None
        task = partial(
            _write_files, path, self._header.to_bytes(), tokens, num_tokens, starts, before
        )
        self._flights.append(_Flight(index, tokens, self._submit(task)))

    def _submit(self, task: Callable[[], ChunkEntry]) -> Future[ChunkEntry]:
        try:
            return self._pool.submit(task)
        except RuntimeError:  # at the interpreter's end no thread begins any more
            done: Future[ChunkEntry] = Future()
            done.set_result(task())
            return done

    def finish(self) -> list[ChunkEntry]:
        """Waits for the chunks that are being written, and returns the entries of all.

        The error of the first one that failed is raised, now and each time that it is asked
        again; those behind it leave no file.
        """
        self._check_process()
        while self._flights and not self._is_landing:  # on_chunk may ask, too
            self._land()
        return self._entries

    def known(self) -> list[ChunkEntry]:
        """Returns the entries of the chunks that are on disk, without a call of on_chunk."""
        entries = list(self._entries)
        for flight in self._flights:
            if not flight.entry.done() or flight.entry.exception() is not None:
                break
            entries[flight.chunk_index :] = [flight.entry.result()]
        return entries

    def wait(self) -> None:
        """Waits for the chunks that are being written; raises the error of the first that failed.

        No on_chunk is called.
        """
        if os.getpid() == self._process:
            for flight in list(self._flights):
                flight.entry.result()

    def is_of(self, outdir: str, prefix: str) -> bool:
        """Says whether it writes files of a prefix in a folder."""
        return prefix == self._prefix and os.path.realpath(outdir) == os.path.realpath(self._outdir)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ClosedError(
                f"The builder of {self._prefix!r} belongs to process {self._process}; this is "
                f"{os.getpid()}, forked from it. Make a builder in each process, each with its own "
                "prefix."
            )

    def _is_full(self) -> bool:
        return len(self._flights) == self._max_in_flight

    def _land(self) -> None:
        """Waits for the first chunk in flight, and takes its entry."""
        flight = self._flights[0]
        entry = flight.entry.result()
        # In this form it may be done twice: Ctrl-C can come between any two lines.
        self._entries[flight.chunk_index :] = [entry]
        self._flights.popleft()
        self._spares.append(flight.tokens)
        if self._on_chunk is not None:
            self._is_landing = True
            try:
                self._on_chunk(entry)
            finally:
                self._is_landing = False

    def add_missing_sidecars(self) -> list[ChunkEntry]:
        """Gives the chunks that were full before the first document a sidecar with none."""
        for index, entry in enumerate(self._entries):
            if entry.num_documents is None:
                sidecar = encode_documents(np.empty(0, np.int64), self._header.chunk_size)
                write_whole(documents_path(os.path.join(self._outdir, entry.file)), sidecar)
                digest = hashlib.sha256(sidecar).hexdigest()
                self._entries[index] = replace(entry, num_documents=0, documents_sha256=digest)
        return self._entries

    def stop(self) -> None:
        """Ends the threads; the chunks that are being written are finished first."""
        self._pool.shutdown(wait=True)


def _write_files(
    path: str,
    header: bytes,
    tokens: npt.NDArray[Any],
    num_tokens: int,
    starts: npt.NDArray[np.int64] | None,
    before: Future[ChunkEntry] | None,
) -> ChunkEntry:
    """Writes a chunk's files; the last to get its name is the chunk, after the one `before`."""
    sidecar = None if starts is None else encode_documents(starts, len(tokens))
    with contextlib.ExitStack() as stack:
        stack.enter_context(staged(path, header, tokens.data))
        if sidecar is not None:
            stack.enter_context(staged(documents_path(path), sidecar))
        entry = _describe(path, header, tokens, num_tokens)
        if before is not None:
            before.result()
        if os.path.lexists(path):
            raise OverwriteError(
                f"{path} has come into being since this builder started: another one builds the "
                "same prefix in the same folder. Give each its own prefix.",
                path=path,
            )
    if starts is None or sidecar is None:
        return entry
    digest = hashlib.sha256(sidecar).hexdigest()
    return replace(entry, num_documents=len(starts), documents_sha256=digest)


def _describe(path: str, header: bytes, tokens: npt.NDArray[Any], num_tokens: int) -> ChunkEntry:
    digest = hashlib.sha256(header)
    digest.update(tokens.data)
    low = high = None
    if num_tokens:
        low, high = tokens[:num_tokens].min(), tokens[:num_tokens].max()
    return ChunkEntry(
        os.path.basename(path),
        num_tokens,
        None,
        digest.hexdigest(),
        low.item() if low is not None and np.isfinite(low) else None,
        high.item() if high is not None and np.isfinite(high) else None,
        None,
    )


def prepare_folder(
    outdir: str, prefix: str, *, overwrite: bool, finished: Sequence[ChunkEntry] | None = None
) -> None:
    """Makes the folder, and sees to it that only what is to stay of `prefix` is in it.

    Temporary files that a killed build of the same prefix left are removed.

    Args:
        outdir: the folder.
        prefix: what the files' names begin with.
        overwrite: remove all files of the prefix.
        finished: the chunks of a build that goes on: they stay, other files of the prefix are
            removed. None for a new build, which removes nothing unasked.

    Raises:
        OverwriteError: there are files of this prefix, and neither argument says what to do.
        NoDataError: a file of a finished chunk is gone.
        WriteError: the folder cannot be made or written to.
    """
    check_writable(chunk_path(outdir, prefix, 0))
    if overwrite or finished is not None:
        _wait_for_others(outdir, prefix)
    existing = list_files(outdir, prefix)
    if existing and not overwrite and finished is None:
        raise OverwriteError(
            f"{existing[0]} is there already, and {len(existing) - 1} more files of prefix "
            f"{prefix!r} in {outdir}: a finished build, or the whole chunks of one that was "
            "stopped, which cannot be continued. Pass overwrite=True to remove them and build "
            "anew, or choose another prefix.",
            path=existing[0],
        )
    kept = set(_files_of(outdir, finished or ()))
    for path in sorted(kept.difference(existing)):
        raise NoDataError(
            f"There is no file {path}, which an earlier run of this build finished. Put it back, "
            "or build anew with overwrite=True.",
            path=path,
        )
    remove_leftovers(outdir, partial(is_file_of, prefix))
    unwanted = [path for path in existing if path not in kept]
    remove_files(unwanted[:1])  # the manifest: without it the rest is no set
    remove_files(unwanted[1:])


def _wait_for_others(outdir: str, prefix: str) -> None:
    """Waits for what a builder of this process, dropped or stopped half-way, still writes."""
    for writer in list(_writers):
        if writer.is_of(outdir, prefix):
            with contextlib.suppress(PackcoreError):
                writer.wait()


def _files_of(outdir: str, entries: Sequence[ChunkEntry]) -> Iterator[str]:
    for entry in entries:
        path = os.path.join(outdir, entry.file)
        yield path
        if entry.num_documents is not None:
            yield documents_path(path)
