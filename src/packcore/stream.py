"""A mixture with a seed, read by position: position -> source, epoch, block -> tokens.

It joins the pure floors (`packcore.mixture`, `packcore.order`) to the blocks that they number.
Which positions a rank reads, and when, is for `packcore.loader`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from packcore.blocks import check_dtype
from packcore.errors import ArgumentTypeError
from packcore.mixture import Mixture, MixtureOrder
from packcore.order import Order, Shuffle
from packcore.protocols import BlockReader
from packcore.rows import Rows, RowTable, rows_of
from packcore.windows import WindowWarmer

__all__ = ["Located", "Stream"]


class Located(NamedTuple):
    """What stands at some positions; every array is `(num_positions,)`, int64."""

    sources: npt.NDArray[np.int64]
    """The source, counted in the mixture's order."""
    epochs: npt.NDArray[np.int64]
    """The pass over the source, from 0."""
    ids: npt.NDArray[np.int64]
    """The block of the source."""

    def part(self, low: int, high: int) -> Located:
        """Returns positions [low, high) of these."""
        return Located(*(array[low:high] for array in self))


class Stream:
    """The one endless order of a run, and the tokens in it.

    Args:
        mixture: the sources.
        seed: the run's seed.
        shuffle: "global", "window" or None, for each source.
        window: chunks in a window.
    """

    def __init__(self, mixture: Mixture, *, seed: int, shuffle: Shuffle, window: int) -> None:
        self.mixture = mixture
        self.readers: list[BlockReader] = list(mixture.blocks.values())
        self.names = list(mixture.blocks)
        self.order = MixtureOrder(mixture, seed=seed)
        self.dtype = np.result_type(*(reader.dtype for reader in self.readers))
        self._orders = [
            Order(name, reader.chunk_bounds, seed=seed, shuffle=shuffle, window=window)
            for name, reader in mixture.blocks.items()
        ]
        self._has_windows = shuffle == "window"

    @property
    def num_positions(self) -> int | None:
        """Positions in all; None if there is no end."""
        return self.order.num_positions

    def locate(self, positions: npt.NDArray[np.int64]) -> Located:
        """Returns what stands at ascending positions, each in [0, num_positions)."""
        sources, indices = self.order.locate(positions)
        epochs, ids = np.empty_like(indices), np.empty_like(indices)
        for source, chosen in _by_source(sources):
            epochs[chosen], ids[chosen] = self._orders[source].locate(indices[chosen])
        return Located(sources, epochs, ids)

    def table(self, located: Located) -> RowTable:
        """Returns the tokens at positions, a row each, in `dtype`.

        Args:
            located: from `locate`.
        """
        addresses = np.empty(len(located.ids), np.int64)
        owners = []
        parts = _by_source(located.sources)
        for source, chosen in parts:
            rows = self._rows(self.readers[source], located.ids[chosen], len(parts))
            addresses[chosen] = rows.addresses
            owners += rows.owners
        return RowTable(Rows(addresses, owners), self.mixture.block_size, self.dtype)

    def _rows(self, reader: BlockReader, ids: npt.NDArray[np.int64], share: int) -> Rows:
        find: Callable[..., Rows] | None = getattr(reader, "rows", None)
        if find is not None and reader.dtype == self.dtype:
            return find(ids, share=share)
        stored = np.empty((len(ids), reader.block_size), reader.dtype)
        reader.gather(ids, stored)
        return rows_of(stored.astype(self.dtype, copy=False))

    def document_starts(
        self, located: Located
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Returns where documents begin within each block, ragged.

        Returns:
            starts: `(num_starts,)`, int32, in tokens, ascending within a block, the first one 0.
            offsets: `(num_positions + 1,)`, int64: where each block's starts begin.
        """
        counts = np.zeros(len(located.ids), np.int64)
        found = []
        for source, chosen in _by_source(located.sources):
            starts, offsets = self._reader_starts(source, located.ids[chosen])
            counts[chosen] = np.diff(offsets)
            found.append((chosen, starts, offsets))
        ends = np.cumsum(counts)
        merged = np.empty(int(counts.sum()), np.int32)
        for chosen, starts, offsets in found:
            shift = (ends - counts)[chosen] - offsets[:-1]
            merged[np.arange(len(starts)) + np.repeat(shift, np.diff(offsets))] = starts
        return merged, np.concatenate((np.zeros(1, np.int64), ends))

    def _reader_starts(
        self, source: int, ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        find = getattr(self.readers[source], "document_starts", None)
        if find is None:
            raise ArgumentTypeError(
                f"The blocks of {self.names[source]!r} know no documents: they have no "
                "document_starts. Ask for no field but tokens.",
                name="fields",
            )
        starts, offsets = find(ids)
        return starts, offsets

    def check_documents(self) -> None:
        """Raises an ArgumentError if a source does not know where documents begin."""
        for source in range(len(self.readers)):
            self._reader_starts(source, np.empty(0, np.int64))

    def check_dtype(self, dtype: npt.DTypeLike | None) -> np.dtype[np.generic]:
        """Returns the dtype to serve in, if it holds every id of every source."""
        if dtype is None:
            return self.dtype
        wanted = {check_dtype(reader, dtype) for reader in self.readers}
        return wanted.pop()  # all the same: `dtype`

    def window_warmer(self) -> WindowWarmer | None:
        """Returns what `enter` needs; close it after use. None if the order has no windows."""
        return WindowWarmer(self.readers, self._orders) if self._has_windows else None

    def enter(self, located: Located, warmer: WindowWarmer) -> None:
        """Waits until the windows of the last of these positions have been read."""
        for source, chosen in _by_source(located.sources):
            last = int(located.epochs[chosen][-1]), int(located.ids[chosen][-1])
            warmer.enter(source, *last)


def _by_source(
    sources: npt.NDArray[np.int64],
) -> list[tuple[int, slice | npt.NDArray[np.intp]]]:
    """Returns each source that occurs, and where: a slice of all if there is one only."""
    if len(sources) and (sources == sources[0]).all():
        return [(int(sources[0]), slice(None))]
    return [(source, np.flatnonzero(sources == source)) for source in np.unique(sources).tolist()]
