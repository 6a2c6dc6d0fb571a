"""Steps of one rank -> batches: finds many steps at once, then copies a few batches at a time.

Which steps there are, and which come next, is for `packcore.loader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from packcore import documents
from packcore.pool import Pool
from packcore.prefetch import made_ahead
from packcore.rows import RowTable
from packcore.stream import Located, Stream

__all__ = ["FIELDS", "Batch", "StepReader"]

Batch: TypeAlias = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]

_DOCUMENT_FIELDS: dict[str, Callable[..., npt.NDArray[Any]]] = {
    "document_starts": documents.pad_starts,
    "segment_ids": documents.segment_ids,
    "positions": documents.positions,
    "loss_mask": documents.loss_mask,
}

FIELDS = ("tokens", *_DOCUMENT_FIELDS, "mask")
"""What a batch may hold; see `packcore.Loader`."""

_SLAB_BYTES = 4 * 2**20
"""Steps are found in slabs of about this size, and so far ahead a thread makes them."""

_MADE_ROWS = 64
"""Batches are made of about this many rows at once, which they then share: NumPy calls are few,
and whoever keeps a batch keeps no more than its neighbours alive."""

_LOCATED_ROWS = 2**13
"""Rows located at once: small arrays cost NumPy a call each, whatever they hold."""


class _Slab(NamedTuple):
    """Some steps, found but not yet made into batches."""

    steps: list[int]
    tokens: RowTable
    """The rows of the steps; those of fill, which come last, are left out."""
    starts: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    """The document starts of the rows, ragged; empty if no field needs them."""
    pool: Pool | None
    """Where the memory of batches comes from; None for new memory."""


class StepReader:
    """Reads the steps of one rank.

    Args:
        stream: the order and its tokens.
        global_batch_size: rows of a step over all ranks.
        rows: which of them are this rank's.
        dtype: of the tokens in a batch.
        fields: what a batch holds; None for the plain array of tokens.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        global_batch_size: int,
        rows: range,
        dtype: np.dtype[Any],
        fields: tuple[str, ...] | None,
    ) -> None:
        self._stream = stream
        self._global_batch_size = global_batch_size
        self._rows = rows
        self._dtype = dtype
        self._fields = fields
        self._wanted = [field for field in fields or () if field in _DOCUMENT_FIELDS]
        if self._wanted:
            stream.check_documents()
        self._block_size = stream.mixture.block_size
        slab_rows = _SLAB_BYTES // (self._block_size * stream.dtype.itemsize)
        self._steps_at_once = max(1, min(_MADE_ROWS, slab_rows) // len(rows))
        # No rest: arrays of one size again and again, and malloc gives the same memory.
        self._slab_steps = max(1, slab_rows // len(rows) // self._steps_at_once)
        self._slab_steps *= self._steps_at_once
        self.num_located = max(1, _LOCATED_ROWS // len(rows))
        """How many steps `batches` likes to be given at a time."""
        self._group: tuple[int, Located] | None = None

    def batches(
        self, runs: Iterator[npt.NDArray[np.int64]], *, prefetch: int
    ) -> Iterator[tuple[int, Batch]]:
        """Yields (step, batch) for the steps of `runs`, which ascend.

        Args:
            runs: arrays of steps, `(num_steps,)`, int64.
            prefetch: slabs whose batches a thread makes ahead; 0 for no thread.
        """
        warmer = self._stream.window_warmer() if prefetch else None
        # Without a thread the batch before has just been freed, and malloc gives its memory.
        num_arrays = (prefetch + 2) * self._slab_steps // self._steps_at_once
        pool = Pool(num_arrays) if prefetch else None

        def make(task: tuple[list[int], Located]) -> Iterable[tuple[int, Batch]]:
            if warmer is not None:
                self._stream.enter(task[1], warmer)
            batches = self._make(self._find(*task, pool))
            return list(batches) if prefetch else batches

        with ExitStack() as stack:
            if warmer is not None:
                stack.callback(warmer.close)
            slabs = stack.enter_context(closing(made_ahead(make, self._slabs(runs), prefetch)))
            for slab in slabs:
                yield from slab

    def batch_at(self, step: int) -> Batch:
        """Returns the batch of one step."""
        ((_, batch),) = self._make(self._find([step], self.locate(step), None))
        return batch

    def locate(self, step: int) -> Located:
        """Returns what stands in the rows of a step; rows of fill are left out."""
        group, number = divmod(step, self._slab_steps)
        known = self._group
        if known is None or known[0] != group:  # neighbours cost next to nothing
            steps = np.arange(group * self._slab_steps, (group + 1) * self._slab_steps)
            known = self._group = group, self._stream.locate(self._positions(steps))
        return known[1].part(number * len(self._rows), (number + 1) * len(self._rows))

    def _slabs(self, runs: Iterator[npt.NDArray[np.int64]]) -> Iterator[tuple[list[int], Located]]:
        """Yields the steps of each slab and what stands there.

        The first slabs are small, so that batches come soon.
        """
        num_rows, size = len(self._rows), 1
        for steps in runs:
            located = self._stream.locate(self._positions(steps))
            low = 0
            while low < len(steps):
                part = located.part(low * num_rows, (low + size) * num_rows)
                yield steps[low : low + size].tolist(), part
                low += size
                size = min(2 * size, self._slab_steps)

    def _positions(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the positions of the rows of `steps`; rows of fill are left out."""
        rows = np.arange(self._rows.start, self._rows.stop)
        positions = (steps[:, None] * self._global_batch_size + rows).reshape(-1)
        end = self._stream.num_positions
        return positions if end is None else positions[positions < end]

    def _find(self, steps: list[int], located: Located, pool: Pool | None) -> _Slab:
        starts, offsets = np.empty(0, np.int32), np.zeros(1, np.int64)
        if self._wanted:
            starts, offsets = self._stream.document_starts(located)
        num_fill = len(steps) * len(self._rows) - len(located.ids)  # only at the end of a run
        if num_fill:
            offsets = np.concatenate((offsets, np.repeat(offsets[-1:], num_fill)))
        return _Slab(steps, self._stream.table(located), starts, offsets, pool)

    def _make(self, slab: _Slab) -> Iterator[tuple[int, Batch]]:
        """Yields (step, batch) for a slab."""
        size = self._steps_at_once
        for first in range(0, len(slab.steps), size):
            yield from self._make_some(slab, first, first + size)

    def _make_some(self, slab: _Slab, first: int, last: int) -> list[tuple[int, Batch]]:
        """Makes the batches of steps [first, last) of a slab: parts of arrays that they share."""
        steps, num_rows = slab.steps[first:last], len(self._rows)
        low, high = first * num_rows, (first + len(steps)) * num_rows
        num_fill = num_rows - self._num_real(steps[-1])
        made = {"tokens": self._make_tokens(slab, low, high, num_fill)}
        if self._fields is None:
            return list(zip(steps, _parts(made["tokens"], num_rows), strict=True))
        made["mask"] = np.arange(high - low) < high - low - num_fill
        offsets = slab.offsets[low : high + 1]
        for field in self._wanted:
            starts = slab.starts[offsets[0] : offsets[-1]]
            make = _DOCUMENT_FIELDS[field]
            made[field] = make(starts, offsets - offsets[0], self._block_size)
        columns = {field: _parts(made[field], num_rows) for field in self._fields}
        if "document_starts" in columns:
            most = np.diff(offsets).reshape(-1, num_rows).max(axis=1, initial=1).tolist()
            parts = columns["document_starts"]
            columns["document_starts"] = [
                part[:, :width].copy() for part, width in zip(parts, most, strict=True)
            ]
        return [
            (step, {field: parts[number] for field, parts in columns.items()})
            for number, step in enumerate(steps)
        ]

    def _make_tokens(self, slab: _Slab, low: int, high: int, num_fill: int) -> npt.NDArray[Any]:
        """Returns rows [low, high) of a slab in the dtype asked for; the last are fill."""
        tokens = slab.tokens.copy(low, high - num_fill)
        if slab.pool is None and not num_fill:
            return tokens.astype(self._dtype, copy=False)
        empty = np.empty if slab.pool is None else slab.pool.empty
        made = empty((high - low, self._block_size), self._dtype)
        np.copyto(made[: len(tokens)], tokens, casting="unsafe")
        made[len(tokens) :] = 0
        return made

    def _num_real(self, step: int) -> int:
        """Returns how many of the rows of a step are not fill."""
        end = self._stream.num_positions
        if end is None:
            return len(self._rows)
        first = step * self._global_batch_size + self._rows.start
        return min(max(end - first, 0), len(self._rows))


def _parts(array: npt.NDArray[Any], num_rows: int) -> list[npt.NDArray[Any]]:
    """Returns the views of `num_rows` rows each, in order."""
    return [array[low : low + num_rows] for low in range(0, len(array), num_rows)]
