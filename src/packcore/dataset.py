"""Chunk files joined into one long row of tokens, with the documents in it.

`open` is the door. Finding the files is for `packcore.formats`, reading blocks of the row for
`packcore.blocks`.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from packcore.blocks import Blocks
from packcore.cache import Cache, max_maps
from packcore.checks import check_int
from packcore.errors import ArgumentError, FormatError
from packcore.formats import find_files
from packcore.protocols import TokenFile
from packcore.rawfiles import num_maps
from packcore.rows import Span

__all__ = ["Dataset", "open"]

_DOCUMENT_CACHE_BYTES = 64 * 2**20
_DECODED_CACHE_BYTES = 256 * 2**20
"""Of a data set whose files have to be decoded, what may lie in memory; at least two files."""

_maps: dict[tuple[int, int], Span] = {}
"""The maps of all data sets: the limit on open files is the process's."""


def open(  # noqa: A001 - `packcore.open` is what the reader reads
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    sep_token: int | None = None,
    dtype: npt.DTypeLike | None = None,
    mmap: bool = True,
) -> Dataset:
    """Opens packed chunk files, or token files of another format, as one row of tokens.

    The format is found by content (see `packcore.formats`). Every file's header is read, checked
    and compared here, so that nothing is found wrong in the middle of a run.

    Args:
        source: a folder (all its manifests in name order, or all its .bin files if it has no
            manifest), a chunk file, a manifest, a prefix as in `corpus/train`, a glob, or a list
            of files in the order wanted.
        sep_token: the id that ends a document, for files whose documents were not recorded.
            Where there is no manifest, the run of this id at the very end of a prefix is taken
            for fill, except for its first.
        dtype: of the tokens, for files that do not say it: raw .bin and .npy.
        mmap: False reads with plain file reads, for file systems that refuse many maps.

    Raises:
        NoDataError: nothing is there.
        FormatError: a file is of no known format or breaks the rules of its own, or a manifest
            does not fit its files.
        MismatchError: two files differ in format, dtype or chunk_size.
        ArgumentError: `sep_token` does not fit the files' dtype, or `dtype` has to be named or
            contradicts them.
        MissingExtraError: an optional package is needed for this format.
        ArgumentTypeError: `source` is not a path and not a list of paths.
    """
    if sep_token is not None:
        sep_token = check_int("sep_token", sep_token, low=-(2**63))
    return Dataset(find_files(source, sep_token=sep_token, dtype=dtype), mmap=mmap)


class Dataset:
    """A row of tokens that runs over any number of chunks.

    Pickles as paths; maps are opened when tokens are asked for, a bounded number at a time.

    Args:
        chunks: the chunks, all of one dtype, in order: LITPKDS files or those of another format.
        mmap: whether tokens are read through memory maps, where they lie in their file as they
            are.
    """

    def __init__(self, chunks: Iterable[TokenFile], *, mmap: bool = True) -> None:
        self.chunks = tuple(chunks)
        kinds = {chunk.access for chunk in self.chunks}
        self.mmap = "decode" in kinds or (bool(mmap) and "read" not in kinds)
        self.dtype: np.dtype[Any] = self.chunks[0].dtype
        sizes = np.array([chunk.num_tokens for chunk in self.chunks], np.int64)
        self.bounds: npt.NDArray[np.int64] = _cumulate(sizes)
        self._bounds: list[int] = self.bounds.tolist()  # one number of a list is had much faster
        # The caches load from the tuple and not from self: a cycle would keep maps alive.
        found, dtype = self.chunks, self.dtype
        if "decode" in kinds:
            largest = int(sizes.max()) * self.dtype.itemsize
            num_decoded = max(2, _DECODED_CACHE_BYTES // max(1, largest))
            self._maps = Cache(lambda index: _map(found[index], dtype), num_decoded)
        else:
            self._maps = Cache(lambda index: _map(found[index], dtype), max_maps(), shared=_maps)
        self._starts = Cache(
            lambda index: found[index].document_starts(), self._max_document_chunks()
        )

    def __reduce__(self) -> tuple[Callable[..., Dataset], tuple[Any, ...]]:
        return functools.partial(Dataset, mmap=self.mmap), (self.chunks,)

    def __repr__(self) -> str:
        return (
            f"Dataset({len(self.chunks)} chunks, {self.num_tokens} tokens, {self.dtype}, "
            f"fingerprint {self.fingerprint[:12]})"
        )

    def blocks(
        self,
        block_size: SupportsIndex,
        *,
        stride: SupportsIndex | None = None,
        within_chunks: bool = False,
    ) -> Blocks:
        """Returns the row cut into blocks of `block_size` tokens.

        Args:
            block_size: tokens in a block.
            stride: tokens from one block's start to the next one's; block_size by default.
                block_size - 1 makes neighbours share a token, so that no target is lost.
            within_chunks: True cuts each chunk by itself and drops its tail, as lit-gpt does;
                False lets blocks run over chunk boundaries, so that no token is lost.

        Raises:
            ArgumentError: block_size or stride is not positive.
            ArgumentTypeError: block_size or stride is not an integer.
        """
        return Blocks(self, block_size, stride=stride, within_chunks=within_chunks)

    @property
    def num_tokens(self) -> int:
        """Valid tokens of all chunks."""
        return int(self.bounds[-1])

    @property
    def max_maps(self) -> int:
        """How many chunks may be mapped at once; 0 if tokens are only read piece by piece."""
        if not self.mmap:
            return 0
        # A reader that pauses holds its maps, though the cache has let them go.
        room = max(0, 2 * max_maps() - num_maps())
        return min(max(1, self._maps.size // 2), room)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the dtype and each chunk's content; no path or name is in it."""
        digest = hashlib.sha256(self.dtype.name.encode())
        for chunk in self.chunks:
            digest.update(chunk.digest().encode())
        return digest.hexdigest()

    @functools.cached_property
    def id_range(self) -> tuple[int | float, int | float] | None:
        """The smallest and the largest id, where the manifests know them; else None."""
        known = [chunk.id_range for chunk in self.chunks if chunk.num_tokens]
        ranges = [ends for ends in known if ends is not None]
        if not known or len(ranges) < len(known):
            return None
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    def tokens(self, start: SupportsIndex, stop: SupportsIndex) -> npt.NDArray[Any]:
        """Returns a copy of tokens [start, stop), over any number of chunks.

        Returns:
            `(stop - start,)`, in the stored dtype.

        Raises:
            ArgumentError: not 0 <= start <= stop <= num_tokens.
        """
        first, last = self._check_range(start, stop)
        out = np.empty(last - first, self.dtype)
        self.read_into(first, out)
        return out

    def read_into(self, start: int, out: npt.NDArray[Any]) -> None:
        """Fills `out`, `(n,)` of any dtype, with the tokens from `start` on, cast."""
        index, stop = self._chunk_of(start), start + len(out)
        if stop <= self._bounds[index + 1]:  # nearly always, and much faster
            first = self._bounds[index]
            out[:] = self.chunk_tokens(index, start - first, stop - first)
            return
        for index, low, high, offset in self._pieces(start, stop):
            out[offset : offset + high - low] = self.chunk_tokens(index, low, high)

    def chunk_tokens(self, index: int, start: int, stop: int) -> npt.NDArray[Any]:
        """Returns tokens [start, stop) of chunk `index`, counted in it; read-only if mapped."""
        if self.mmap:
            return self._maps[index].tokens[start:stop]
        out = np.empty(stop - start, self.dtype)
        self.chunks[index].read(start, out)
        return out

    def chunk_map(self, index: int) -> Span:
        """Returns the valid tokens of chunk `index`, mapped, read-only."""
        return self._maps[index]

    def chunk_document_starts(self, index: int) -> npt.NDArray[np.int64]:
        """Returns where documents begin in chunk `index`, `(num_documents,)`, int64."""
        return self._starts[index]

    @functools.cached_property
    def has_documents(self) -> bool:
        """Whether document boundaries are known in every chunk."""
        return all(chunk.has_documents for chunk in self.chunks)

    @property
    def num_documents(self) -> int | None:
        """Documents, None if unknown. Where they are found by a separator, all is read once."""
        return int(self._document_bounds[-1]) if self.has_documents else None

    def document(self, index: SupportsIndex) -> npt.NDArray[Any]:
        """Returns a copy of one document's tokens, its separator included.

        Args:
            index: the document, in [-num_documents, num_documents).

        Returns:
            `(document_size,)`, in the stored dtype; it may run over any number of chunks.

        Raises:
            ArgumentError: there is no such document, or documents are unknown.
        """
        self.check_documents()
        count = int(self._document_bounds[-1])
        number = check_int("index", index, low=-count, high=count - 1, unit="documents")
        number += count * (number < 0)
        stop = self._document_start(number + 1) if number + 1 < count else self.num_tokens
        return self.tokens(self._document_start(number), stop)

    def document_starts(self, start: SupportsIndex, stop: SupportsIndex) -> npt.NDArray[np.int64]:
        """Returns where the documents that begin in tokens [start, stop) do.

        Returns:
            `(num_documents,)`, int64, ascending, counted from the row's first token. Equal
            starts are empty documents.

        Raises:
            ArgumentError: not 0 <= start <= stop <= num_tokens, or documents are unknown.
        """
        self.check_documents()
        first, last = self._check_range(start, stop)
        found = [np.empty(0, np.int64)]
        for index in range(self._first_chunk_to(first), len(self.chunks)):
            low, high = first - self.bounds[index], last - self.bounds[index]
            if high <= 0:
                break
            starts = self._starts[index]
            inside = starts[np.searchsorted(starts, low) : np.searchsorted(starts, high)]
            found.append(inside + self.bounds[index])
        return np.concatenate(found)

    def documents_in(self, start: int, stop: int) -> range:
        """Returns the numbers of the documents that have tokens in [start, stop)."""
        self.check_documents()
        first, last = self._check_range(start, stop)
        # The document that `start` lies in began at `start` or before.
        return range(max(0, self._documents_before(first + 1) - 1), self._documents_before(last))

    def _documents_before(self, token: int) -> int:
        index = self._first_chunk_to(token)
        inside = np.searchsorted(self._starts[index], token - self.bounds[index])
        return int(self._document_bounds[index] + inside)

    def _first_chunk_to(self, token: int) -> int:
        """Returns the first chunk that ends at `token` or later.

        It may hold a document that begins at `token`: an empty one is recorded with the token
        before it, and so lies at the end of its chunk.
        """
        return int(np.searchsorted(self.bounds[1:-1], token))

    def origin(self, token: int) -> tuple[str, int]:
        """Returns the file that holds a token of the row, and the token's place in the file."""
        index = self._chunk_of(token)
        return self.chunks[index].path, token - int(self.bounds[index])

    def warm(self, chunks: Iterable[int]) -> None:
        """Asks the operating system to read chunks into its cache, in order."""
        for index in chunks:
            self.chunks[index].warm()

    def check_documents(self) -> None:
        """Raises an ArgumentError if document boundaries are unknown."""
        if not self.has_documents:
            chunk = next(chunk for chunk in self.chunks if not chunk.has_documents)
            raise ArgumentError(
                f"{chunk.missing_documents} Name the id that ends a document: "
                "packcore.open(..., sep_token=...).",
                name="sep_token",
            )

    @functools.cached_property
    def _document_bounds(self) -> npt.NDArray[np.int64]:
        """`(num_chunks + 1,)`: documents that begin before each chunk."""
        counts = [
            len(self._starts[index]) if chunk.num_documents is None else chunk.num_documents
            for index, chunk in enumerate(self.chunks)
        ]
        return _cumulate(np.array(counts, np.int64))

    def _document_start(self, number: int) -> int:
        index = int(np.searchsorted(self._document_bounds, number, side="right")) - 1
        start = self._starts[index][number - self._document_bounds[index]]
        return int(self.bounds[index] + start)

    def _chunk_of(self, token: int) -> int:
        last = bisect.bisect_right(self._bounds, token) - 1
        return min(last, len(self.chunks) - 1)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Yields (chunk, start in it, stop in it, offset from `start`) for tokens [start, stop)."""
        index = self._chunk_of(start)
        at = start
        while at < stop:
            first = self._bounds[index]
            end = min(stop, self._bounds[index + 1])
            if at < end:
                yield index, at - first, end - first, at - start
                at = end
            index += 1

    def _check_range(self, start: SupportsIndex, stop: SupportsIndex) -> tuple[int, int]:
        last = check_int("stop", stop, low=0, high=self.num_tokens, unit="tokens")
        return check_int("start", start, low=0, high=last, unit="tokens"), last

    def _max_document_chunks(self) -> int:
        counts = [chunk.num_documents for chunk in self.chunks]
        known = [count for count in counts if count is not None]
        # Unknown counts are taken for one document every 64 tokens, which is many.
        guess = self.num_tokens // 64 // len(self.chunks)
        mean = sum(known) // len(known) if known else guess
        return max(8, _DOCUMENT_CACHE_BYTES // (8 * mean + 64))


def _map(chunk: TokenFile, dtype: np.dtype[Any]) -> Span:
    """Maps a chunk. What it says of itself must be true: rows are found by arithmetic alone."""
    tokens = chunk.map()
    if tokens.shape != (chunk.num_tokens,) or tokens.dtype != dtype:
        raise FormatError(
            f"{chunk.path} must hold {chunk.num_tokens} tokens of {dtype}, as its reader says; got "
            f"{tokens.shape} of {tokens.dtype}.",
            path=chunk.path,
            expected=(chunk.num_tokens,),
            got=tokens.shape,
        )
    return Span.of(tokens)


def _cumulate(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns `(len(counts) + 1,)`: the sums before each count, and the total."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
