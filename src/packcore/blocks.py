"""A data set cut into fixed-length blocks that are read by number.

`Blocks.rows` is the hot path: it finds where blocks lie in the maps of their chunks. Copying them
is for `packcore.rows`, in which order they are read for `packcore.order`.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple, SupportsIndex, TypeGuard, overload

import numpy as np
import numpy.typing as npt

from packcore.checks import check_int
from packcore.errors import ArgumentError, ArgumentTypeError
from packcore.protocols import BlockOrigin, BlockReader, TokenRow
from packcore.rows import Rows, RowTable, rows_of

__all__ = ["Blocks", "check_dtype"]

_PART_BYTES = 4 * 2**20
"""What `gather` copies at once; it should fit the cache of a core together with its source."""


class _Places(NamedTuple):
    """Where blocks are; every array is `(num_ids,)`."""

    starts: npt.NDArray[np.int64]
    """The first token, counted from the row's first."""
    chunks: npt.NDArray[np.intp]
    """The chunk that the block begins in."""
    offsets: npt.NDArray[np.int64]
    """The first token, counted from the chunk's first."""
    inside: npt.NDArray[np.bool_]
    """Whether the block ends in that chunk, too."""


class Blocks:
    """The blocks of a data set, by number.

    Block i is tokens [i * stride, i * stride + block_size) of the row, over chunk boundaries,
    so that no token is lost but the last few, fewer than a block (`num_dropped_tokens`). With
    `within_chunks` each chunk is cut by itself, as lit-gpt does, and each loses its tail. Where
    no block fits there are none.

    `blocks[i]` is a copy, `(block_size,)`; `blocks[a:b]` is a view, `Blocks` again, which reads
    nothing; `blocks[[3, 1]]` is `gather([3, 1])`.

    Args:
        dataset: the row of tokens.
        block_size: tokens in a block.
        stride: tokens from one block's start to the next one's; block_size by default.
            block_size - 1 makes neighbours share a token, so that no target is lost.
        within_chunks: whether no block runs over a chunk's end.
        selection: which of the blocks, for views.

    Raises:
        ArgumentError: block_size or stride is not positive.
        ArgumentTypeError: block_size or stride is not an integer.
    """

    def __init__(
        self,
        dataset: TokenRow,
        block_size: SupportsIndex,
        *,
        stride: SupportsIndex | None = None,
        within_chunks: bool = False,
        selection: range | None = None,
    ) -> None:
        self.dataset = dataset
        self.block_size = check_int("block_size", block_size, low=1, unit="tokens")
        wanted = self.block_size if stride is None else stride
        self.stride = check_int("stride", wanted, low=1, unit="tokens")
        self.within_chunks = bool(within_chunks)
        self._ids = range(int(self._all_bounds[-1])) if selection is None else selection

    def __reduce__(self) -> tuple[functools.partial[Blocks], tuple[TokenRow, int]]:
        make = functools.partial(
            Blocks, stride=self.stride, within_chunks=self.within_chunks, selection=self._ids
        )
        return make, (self.dataset, self.block_size)

    def __repr__(self) -> str:
        return f"Blocks({len(self)} blocks of {self.block_size} {self.dtype} tokens)"

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored dtype."""
        return self.dataset.dtype

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the data set's fingerprint and how it is cut and selected."""
        parts = (
            self.dataset.fingerprint,
            self.block_size,
            self.stride,
            self.within_chunks,
            (self._ids.start, self._ids.stop, self._ids.step),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @property
    def num_dropped_tokens(self) -> int:
        """Tokens of the data set that are in none of its blocks (views: of the whole cut)."""
        sizes = np.diff(self.dataset.bounds)
        if not self.within_chunks:
            sizes = self.dataset.bounds[-1:]
        counts = _count_blocks(sizes, self.block_size, self.stride)
        # Blocks with gaps between them (stride > block_size) leave the gaps out.
        covered = counts * min(self.stride, self.block_size)
        covered += (counts > 0) * max(0, self.block_size - self.stride)
        return int(np.sum(sizes - covered))

    @functools.cached_property
    def chunk_bounds(self) -> npt.NDArray[np.int64]:
        """`(num_chunks + 1,)`, int64: blocks [bounds[c], bounds[c + 1]) begin in chunk c."""
        first, step = self._ids.start, self._ids.step
        inside = -((first - self._all_bounds) // step)  # ceil((bound - first) / step)
        return np.clip(inside, 0, len(self))

    @functools.cached_property
    def _all_bounds(self) -> npt.NDArray[np.int64]:
        """As `chunk_bounds`, of all blocks."""
        bounds = self.dataset.bounds
        if self.within_chunks:
            counts = _count_blocks(np.diff(bounds), self.block_size, self.stride)
            return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        total = int(_count_blocks(bounds[-1:], self.block_size, self.stride)[0])
        return np.minimum(-(-bounds // self.stride), total)

    def starts(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns each block's first token, `(num_ids,)`, int64, counted from the row's first."""
        ids = ids * self._ids.step + self._ids.start
        if not self.within_chunks:
            return ids * self.stride
        chunk = np.searchsorted(self._all_bounds, ids, side="right") - 1
        return self.dataset.bounds[chunk] + (ids - self._all_bounds[chunk]) * self.stride

    def _start(self, index: int) -> int:
        """As `starts`, of one block, without the cost of arrays."""
        number = self._ids[index]
        if not self.within_chunks:
            return number * self.stride
        chunk = int(np.searchsorted(self._all_bounds, number, side="right")) - 1
        first = int(self._all_bounds[chunk])
        return int(self.dataset.bounds[chunk]) + (number - first) * self.stride

    @overload
    def __getitem__(self, index: slice) -> Blocks: ...
    @overload
    def __getitem__(self, index: npt.ArrayLike) -> npt.NDArray[Any]: ...
    def __getitem__(self, index: slice | npt.ArrayLike) -> Blocks | npt.NDArray[Any]:
        if isinstance(index, slice):
            return self._view(self._ids[index])
        if not _is_number(index):
            return self.gather(index)
        count = len(self)
        number = operator.index(index)
        if not -count <= number < count:
            # An IndexError, so that a Blocks is a sequence that can be iterated.
            raise IndexError(f"index must be in [{-count}, {count}); got {number} (blocks).")
        block = np.empty(self.block_size, self.dtype)
        self.dataset.read_into(self._start(number % count), block)
        return block

    def _view(self, selection: range) -> Blocks:
        if selection.step < 0:
            raise ArgumentError(
                f"The step of a slice of blocks must be positive; got {selection.step}. Read them "
                "backwards with gather.",
                name="step",
                value=selection.step,
            )
        return Blocks(
            self.dataset,
            self.block_size,
            stride=self.stride,
            within_chunks=self.within_chunks,
            selection=selection,
        )

    def gather(
        self,
        ids: npt.ArrayLike,
        out: npt.NDArray[Any] | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> npt.NDArray[Any]:
        """Copies blocks by number, in the order asked for.

        Args:
            ids: `(num_ids,)`, any integers in [-len, len); they may repeat.
            out: `(num_ids, block_size)`, filled and returned; a new array by default.
            dtype: of the new array; the stored dtype by default. It must hold every id of the
                data set: nothing is ever wrapped.

        Returns:
            `(num_ids, block_size)`.

        Raises:
            ArgumentError: an id is out of range, `out` has another shape, both `out` and
                `dtype` are given and differ, or ids do not fit the dtype.
            ArgumentTypeError: `ids` are not integers, or `out` is no array.
        """
        numbers = self._check_ids(ids)
        out = self._check_out(len(numbers), out, dtype)
        num_rows = max(1, _PART_BYTES // (self.block_size * self.dtype.itemsize))
        for start in range(0, len(numbers), num_rows):
            rows = self.rows(numbers[start : start + num_rows])
            table = RowTable(rows, self.block_size, self.dtype)
            out[start : start + num_rows] = table.copy(0, len(table))
        return out

    def _check_ids(self, ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        try:
            array = np.asarray(ids)
        except ValueError:  # rows of unequal lengths
            array = np.empty((0, 0), object)
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise ArgumentTypeError(
                f"ids must be a 1-D array of integers; got {array.ndim}-D {array.dtype}.",
                name="ids",
                value=ids,
            )
        count = len(self)
        (bad,) = np.nonzero((array < -count) | (array >= count))
        if len(bad):
            raise ArgumentError(
                f"ids must be in [{-count}, {count}); got {array[bad[0]]} at index {bad[0]} "
                "(blocks).",
                name="ids",
                value=array[bad[0]],
            )
        numbers = array.astype(np.int64)
        numbers[numbers < 0] += count
        return numbers

    def _check_out(
        self, num_rows: int, out: npt.NDArray[Any] | None, dtype: npt.DTypeLike | None
    ) -> npt.NDArray[Any]:
        shape = (num_rows, self.block_size)
        if out is None:
            out = np.empty(shape, check_dtype(self, dtype))
        elif not isinstance(out, np.ndarray):
            raise ArgumentTypeError(
                f"out must be a NumPy array; got {type(out).__name__}.", name="out", value=out
            )
        elif out.shape != shape or not out.flags.writeable:
            raise ArgumentError(
                f"out must be a writeable array of shape {shape}; got {out.shape}.", name="out"
            )
        elif dtype is not None and _to_dtype(dtype) != out.dtype:
            raise ArgumentError(
                f"dtype must be out's, {out.dtype}, or be left out; got {_to_dtype(dtype)}.",
                name="dtype",
                value=dtype,
            )
        check_dtype(self, out.dtype)
        return out

    def rows(self, ids: npt.NDArray[np.int64], *, share: int = 1) -> Rows:
        """Returns where blocks are in memory: in the maps of their chunks, as far as possible.

        A block that runs over a chunk's end is read into an array of its own, and so are all of
        them if their chunks are too many to be mapped at once.

        Args:
            ids: `(num_ids,)`, int64, each in [0, len); not checked.
            share: how many data sets share the maps that are allowed.

        Returns:
            The rows, as many as ids, `block_size` tokens in the stored dtype each.
        """
        row, places = self.dataset, self._places(ids)
        chunks = np.unique(places.chunks)
        if len(chunks) > row.max_maps // share:
            return self._read_rows(places.starts)
        maps = [row.chunk_map(chunk) for chunk in chunks.tolist()]
        first_bytes = np.array([one.address for one in maps], np.int64)
        addresses = first_bytes[np.searchsorted(chunks, places.chunks)]
        addresses += places.offsets * self.dtype.itemsize
        owners = [one.tokens for one in maps]
        if not places.inside.all():
            (over,) = np.nonzero(~places.inside)
            read = self._read_rows(places.starts[over])
            addresses[over] = read.addresses
            owners += read.owners
        return Rows(addresses, owners)

    def _read_rows(self, starts: npt.NDArray[np.int64]) -> Rows:
        """Reads blocks in the order in which they stand in the row."""
        tokens = np.empty((len(starts), self.block_size), self.dtype)
        for place in np.argsort(starts).tolist():
            self.dataset.read_into(int(starts[place]), tokens[place])
        return rows_of(tokens)

    def _places(self, ids: npt.NDArray[np.int64]) -> _Places:
        bounds, starts = self.dataset.bounds, self.starts(ids)
        chunks = np.searchsorted(bounds, starts, side="right") - 1
        offsets = starts - bounds[chunks]
        return _Places(starts, chunks, offsets, starts + self.block_size <= bounds[chunks + 1])

    def origin(self, index: int) -> BlockOrigin:
        """Returns where a block comes from.

        Args:
            index: the block, in [0, len); not checked.
        """
        start, row = self._start(index), self.dataset
        known = row.documents_in(start, start + self.block_size) if row.has_documents else None
        return BlockOrigin(*row.origin(start), known)

    def warm(self, chunks: Iterable[int]) -> None:
        """Asks the operating system to read chunks into its cache, in order."""
        self.dataset.warm(chunks)

    def document_starts(
        self, ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Returns where documents begin within each block.

        Each block's first start is 0, whether or not a document begins there: one that runs on
        from the block before begins again. Empty documents are left out.

        Args:
            ids: `(num_ids,)`, int64, each in [0, len); not checked.

        Returns:
            flat: `(num_starts,)`, int32, ascending within a block, in tokens.
            offsets: `(num_ids + 1,)`, int64: block ids[k] has flat[offsets[k]:offsets[k + 1]].

        Raises:
            ArgumentError: documents are unknown.
        """
        self.dataset.check_documents()
        places = self._places(ids)
        rows, values = [np.arange(len(ids))], [np.zeros(len(ids), np.int64)]
        order = np.argsort(places.chunks, kind="stable")
        order = order[places.inside[order]]
        for chosen in np.split(order, np.flatnonzero(np.diff(places.chunks[order])) + 1):
            if len(chosen):
                documents = self.dataset.chunk_document_starts(int(places.chunks[chosen[0]]))
                row, value = _inside(documents, places.offsets[chosen], self.block_size)
                rows.append(chosen[row])
                values.append(value)
        for number in np.flatnonzero(~places.inside):  # over a chunk's end
            start = int(places.starts[number])
            found = self.dataset.document_starts(start + 1, start + self.block_size) - start
            rows.append(np.full(len(found), number))
            values.append(found)
        return _ragged(np.concatenate(rows), np.concatenate(values), len(ids))


def _is_number(index: npt.ArrayLike) -> TypeGuard[SupportsIndex]:
    if type(index) is int:  # by far the most, and the slow check below is not for them
        return True
    if isinstance(index, np.ndarray):
        return index.ndim == 0 and np.issubdtype(index.dtype, np.integer)
    return isinstance(index, SupportsIndex) and not isinstance(index, bool | np.bool_)


def check_dtype(blocks: BlockReader, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    """Returns the dtype to serve in, if it holds every id; the stored one for None.

    Raises:
        ArgumentError: ids may not fit, or it is no dtype.
    """
    if dtype is None:
        return blocks.dtype
    wanted = _to_dtype(dtype)
    if np.can_cast(blocks.dtype, wanted) or _fits(blocks, wanted):
        return wanted
    raise ArgumentError(
        f"dtype must hold every id of the data; got {wanted} for stored {blocks.dtype} and the "
        "largest id is unknown or too large. Use a wider dtype, or build with a manifest.",
        name="dtype",
        value=dtype,
    )


def _to_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        wanted: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise ArgumentError(
            f"dtype must be a NumPy dtype; got {dtype!r}.", name="dtype", value=dtype
        ) from None
    if wanted.kind not in "biuf":
        raise ArgumentError(
            f"dtype must be of integers or floats; got {wanted}.", name="dtype", value=dtype
        )
    return wanted


def _fits(blocks: BlockReader, dtype: np.dtype[Any]) -> bool:
    """Says whether the manifests know that all ids fit an integer dtype."""
    known = blocks.dataset.id_range if isinstance(blocks, Blocks) else None
    if known is None or not np.issubdtype(dtype, np.integer):
        return False
    limits = np.iinfo(dtype)
    return bool(np.issubdtype(blocks.dtype, np.integer)) and (
        limits.min <= known[0] and known[1] <= limits.max
    )


def _count_blocks(
    sizes: npt.NDArray[np.int64], block_size: int, stride: int
) -> npt.NDArray[np.int64]:
    """Returns how many blocks fit rows of `sizes` tokens."""
    return np.maximum(0, (sizes - block_size) // stride + 1)


def _inside(
    documents: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], block_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Finds the documents that begin after the first token of each block of one chunk.

    Returns:
        rows: `(num_found,)`, the block, as an index into `starts`.
        values: `(num_found,)`, where the document begins in it.
    """
    low = np.searchsorted(documents, starts, side="right")
    counts = np.searchsorted(documents, starts + block_size) - low
    rows = np.repeat(np.arange(len(starts)), counts)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, documents[low[rows] + nth] - starts[rows]


def _ragged(
    rows: npt.NDArray[np.int64], values: npt.NDArray[np.int64], num_rows: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Sorts (row, value) pairs, values ascending within a row already, and drops equal ones."""
    order = np.argsort(rows, kind="stable")
    rows, values = rows[order], values[order]
    kept = np.ones(len(rows), bool)
    kept[1:] = (rows[1:] != rows[:-1]) | (values[1:] != values[:-1])
    counts = np.bincount(rows[kept], minlength=num_rows)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    return values[kept].astype(np.int32), offsets
