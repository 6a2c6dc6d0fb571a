"""Steps of one rank -> batches: reads many steps at once, then makes each into a batch.

Which steps there are, and which come next, is for `packcore.loader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from packcore import documents
from packcore.blocks import take_rows
from packcore.prefetch import made_ahead
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
"""Steps are read in slabs of about this size: many blocks of a chunk at once, inside a cache."""

_LOCATED_ROWS = 2**13
"""Rows located at once: small arrays cost NumPy a call each, whatever they hold."""


class _Slab(NamedTuple):
    """Some steps, read but not yet made into batches."""

    steps: list[int]
    tokens: npt.NDArray[Any]
    """`(num_rows, block_size)` or more, in any order."""
    rows: npt.NDArray[np.intp]
    """`(num_rows,)`: where each row of the steps is in `tokens`."""
    starts: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    """The document starts of the rows, ragged; empty if no field needs them."""


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
        self._slab_steps = max(1, slab_rows // len(rows))
        self.num_located = max(1, _LOCATED_ROWS // len(rows))
        """How many steps `batches` likes to be given at a time."""
        self._group: tuple[int, Located] | None = None

    def batches(
        self, runs: Iterator[npt.NDArray[np.int64]], *, prefetch: int
    ) -> Iterator[tuple[int, Batch]]:
        """Yields (step, batch) for the steps of `runs`, which ascend.

        Args:
            runs: arrays of steps, `(num_steps,)`, int64.
            prefetch: slabs that a thread reads ahead; 0 for no thread.
        """
        shape = (self._slab_steps * len(self._rows), self._block_size)
        # Slabs reuse these; batches are copies. Memory is taken when a buffer is first written.
        buffers = [np.empty(shape, self._stream.dtype) for _ in range(prefetch + 1)]

        def read(task: tuple[list[int], Located], slot: int) -> _Slab:
            self._stream.warm(task[1])
            return self._read(*task, buffers[slot])

        for slab in made_ahead(read, self._slabs(runs), prefetch):
            for number, step in enumerate(slab.steps):
                yield step, self._batch(slab, number)

    def batch_at(self, step: int) -> Batch:
        """Returns the batch of one step."""
        located = self.locate(step)
        buffer = np.empty((max(1, len(located.ids)), self._block_size), self._stream.dtype)
        return self._batch(self._read([step], located, buffer), 0)

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

    def _read(self, steps: list[int], located: Located, buffer: npt.NDArray[Any]) -> _Slab:
        rows = self._stream.gather(located, buffer[: len(located.ids)])
        starts, offsets = np.empty(0, np.int32), np.zeros(1, np.int64)
        if self._wanted:
            starts, offsets = self._stream.document_starts(located)
        num_fill = len(steps) * len(self._rows) - len(rows)  # only at the very end of a run
        if num_fill:
            rows = np.concatenate((rows, np.zeros(num_fill, np.intp)))
            offsets = np.concatenate((offsets, np.repeat(offsets[-1:], num_fill)))
        return _Slab(steps, buffer, rows, starts, offsets)

    def _batch(self, slab: _Slab, number: int) -> Batch:
        """Makes the batch of one step of a slab."""
        num_rows = len(self._rows)
        part = slice(number * num_rows, (number + 1) * num_rows)
        tokens = np.empty((num_rows, self._block_size), self._dtype)
        take_rows(slab.tokens, slab.rows[part], tokens)
        num_real = self._num_real(slab.steps[number])
        if num_real < num_rows:
            tokens[num_real:] = 0
        if self._fields is None:
            return tokens
        made: dict[str, npt.NDArray[Any]] = {"tokens": tokens}
        if "mask" in self._fields:
            made["mask"] = np.arange(num_rows) < num_real
        if self._wanted:
            offsets = slab.offsets[part.start : part.stop + 1]
            starts, offsets = slab.starts[offsets[0] : offsets[-1]], offsets - offsets[0]
            for field in self._wanted:
                made[field] = _DOCUMENT_FIELDS[field](starts, offsets, self._block_size)
        return {field: made[field] for field in self._fields}

    def _num_real(self, step: int) -> int:
        """Returns how many of the rows of a step are not fill."""
        end = self._stream.num_positions
        if end is None:
            return len(self._rows)
        first = step * self._global_batch_size + self._rows.start
        return min(max(end - first, 0), len(self._rows))
