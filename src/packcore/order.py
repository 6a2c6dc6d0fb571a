"""The order of one source: (seed, position) -> block, as a pure function.

Position p of a source of n blocks is epoch p // n, index p % n. Each epoch is another
bijection, so that every block is served exactly once an epoch. Which source a position of a
mixture belongs to is for `packcore.mixture`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from packcore.cache import Cache
from packcore.permutation import derive_key, permute

__all__ = ["SHUFFLES", "Order", "Shuffle", "runs"]

Shuffle = Literal["global", "window"] | None
SHUFFLES = ("global", "window", None)


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of one epoch: runs of chunks in their shuffled order."""

    chunks: npt.NDArray[np.int64]
    """`(num_chunks,)`: the chunks in the order of this epoch."""
    bounds: npt.NDArray[np.int64]
    """`(num_chunks + 1,)`: blocks before each of them, in this epoch's order."""

    def part(self, window: int, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the chunks of a window of `size` chunks, and their bounds."""
        first = window * size
        return self.chunks[first : first + size], self.bounds[first : first + size + 1]


class Order:
    """The endless order of one source.

    Args:
        name: the source's name; it is part of every key.
        chunk_bounds: `(num_chunks + 1,)`, int64: blocks [bounds[c], bounds[c + 1]) begin in
            chunk c; the last is the number of blocks.
        seed: the run's seed.
        shuffle: "global" (over all blocks), "window" (chunks are shuffled, then blocks within
            windows of `window` chunks, so that reads stay near each other) or None.
        window: chunks in a window.

    Examples:
        >>> order = Order("web", np.array([0, 3, 5]), seed=1, shuffle="global", window=1)
        >>> epochs, ids = order.locate(np.arange(10))
        >>> epochs.tolist(), sorted(ids[:5].tolist())
        ([0, 0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4])
    """

    def __init__(
        self,
        name: str,
        chunk_bounds: npt.NDArray[np.int64],
        *,
        seed: int,
        shuffle: Shuffle,
        window: int,
    ) -> None:
        self.num_blocks = int(chunk_bounds[-1])
        self._name = name
        self._bounds = chunk_bounds
        self._seed = seed
        self._shuffle = shuffle
        self._window = window
        # Pure, but worth keeping: an epoch's chunk order is O(num_chunks).
        self._windows = Cache(self._make_windows, 2)

    def locate(
        self, positions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the epoch and the block of each position.

        Args:
            positions: `(num_positions,)`, int64, each at least 0; the source must not be empty.

        Returns:
            epochs: `(num_positions,)`, int64.
            ids: `(num_positions,)`, int64, each in [0, num_blocks).
        """
        epochs, indices = np.divmod(positions, np.int64(self.num_blocks))
        if self._shuffle is None:
            return epochs, indices
        ids = np.empty_like(indices)
        for epoch, run in runs(epochs):
            ids[run] = self._shuffled(epoch, indices[run])
        return epochs, ids

    @property
    def num_chunks(self) -> int:
        """Chunks of the source."""
        return len(self._bounds) - 1

    def window_of(self, epoch: int, block: int) -> int:
        """Returns the window of an epoch, counted in it, that a block is in."""
        chunk = int(np.searchsorted(self._bounds, block, side="right")) - 1
        return int(np.flatnonzero(self._windows[epoch].chunks == chunk)[0]) // self._window

    def next_window(self, epoch: int, window: int) -> tuple[int, int]:
        """Returns the epoch and the number of the window after this one."""
        more = (window + 1) * self._window < self.num_chunks
        return (epoch, window + 1) if more else (epoch + 1, 0)

    def window_size(self, epoch: int, window: int) -> int:
        """Returns how many blocks a window has."""
        bounds = self._windows[epoch].part(window, self._window)[1]
        return int(bounds[-1] - bounds[0])

    def window_chunks(self, epoch: int, window: int) -> list[int]:
        """Returns the chunks of a window, in order."""
        found: list[int] = self._windows[epoch].part(window, self._window)[0].tolist()
        return found

    def _shuffled(self, epoch: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if self._shuffle == "global":
            return permute(indices, self.num_blocks, derive_key(self._seed, self._name, epoch))
        firsts = self._windows[epoch].bounds[:-1][:: self._window]
        windows = np.searchsorted(firsts, indices, side="right") - 1
        ids = np.empty_like(indices)
        for window, run in runs(windows):
            ids[run] = self._window_ids(epoch, window, indices[run])
        return ids

    def _window_ids(
        self, epoch: int, window: int, indices: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Shuffles indices of one window among the blocks of its chunks."""
        chunks, bounds = self._windows[epoch].part(window, self._window)
        key = derive_key(self._seed, self._name, epoch, window)
        places = permute(indices - bounds[0], int(bounds[-1] - bounds[0]), key)
        places += bounds[0]
        slots = np.searchsorted(bounds, places, side="right") - 1
        places += (self._bounds[chunks] - bounds[:-1])[slots]
        return places

    def _make_windows(self, epoch: int) -> _Windows:
        num_chunks = self.num_chunks
        key = derive_key(self._seed, self._name, epoch, "chunks")
        chunks = permute(np.arange(num_chunks), num_chunks, key)
        sizes = np.diff(self._bounds)[chunks]
        return _Windows(chunks, np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))))


def runs(values: npt.NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Yields each run of equal values that follow one another, and where it is.

    Examples:
        >>> list(runs(np.array([7, 7, 9])))
        [(7, slice(0, 2, None)), (9, slice(2, 3, None))]
    """
    edges = (np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()
    for low, high in itertools.pairwise([0, *edges, len(values)] if len(values) else []):
        yield int(values[low]), slice(low, high)
