"""(rank, worker) -> rows of a global batch, steps of a run, files of a reference shard.

Pure arithmetic on counts. Opening the files is for `packcore.reference`, reading the rows for
`packcore.loader`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packcore.checks import check_int
from packcore.errors import ArgumentError, ArgumentTypeError

__all__ = ["ServedSteps", "rank_rows", "shard_files"]


def rank_rows(global_batch_size: int, *, rank: int, world_size: int) -> range:
    """Returns which rows of every global batch a rank takes.

    All ranks together take each row once, in order. Where the batch does not divide, ranks
    differ by one row.

    Args:
        global_batch_size: rows of a global batch.
        rank: the data-parallel rank.
        world_size: the number of ranks, at most global_batch_size.

    Raises:
        ArgumentTypeError: a number is not an integer.
        ArgumentError: a count is too small, or the rank is not below world_size.

    Examples:
        >>> [list(rank_rows(5, rank=rank, world_size=2)) for rank in (0, 1)]
        [[0, 1], [2, 3, 4]]
    """
    rows = check_int("global_batch_size", global_batch_size, low=1, unit="rows")
    world_size = check_int("world_size", world_size, low=1)
    rank = check_int("rank", rank, low=0, high=world_size - 1)
    if rows < world_size:
        raise ArgumentError(
            f"global_batch_size must be at least world_size, {world_size}; got {rows} (rows). "
            "Every rank needs a row.",
            name="global_batch_size",
            value=rows,
        )
    return range(rank * rows // world_size, (rank + 1) * rows // world_size)


@dataclass(frozen=True, slots=True)
class ServedSteps:
    """The steps of a run without those that are skipped: served step i -> step, and back.

    Examples:
        >>> served = ServedSteps.without([(2, 4)])
        >>> served.steps(np.arange(4)).tolist(), served.num_before(5)
        ([0, 1, 4, 5], 3)
    """

    starts: npt.NDArray[np.int64]
    """`(num_ranges,)`: the first step of each skipped range, ascending."""
    skipped: npt.NDArray[np.int64]
    """`(num_ranges + 1,)`: skipped steps before each range, and all of them."""

    @classmethod
    def without(cls, skip: Iterable[tuple[int, int]]) -> ServedSteps:
        """Returns the steps outside the ranges [start, stop) of `skip`.

        Raises:
            ArgumentTypeError: `skip` is not a list of pairs of integers.
            ArgumentError: a range is negative or its stop comes before its start.
        """
        covered: list[list[int]] = []
        for start, stop in sorted(_check_range(pair) for pair in _check_pairs(skip)):
            if covered and start <= covered[-1][1]:
                covered[-1][1] = max(stop, covered[-1][1])
            elif start < stop:
                covered.append([start, stop])
        table = np.array(covered, np.int64).reshape(-1, 2)
        skipped = np.concatenate((np.zeros(1, np.int64), np.cumsum(table[:, 1] - table[:, 0])))
        return cls(table[:, 0], skipped)

    def steps(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the step of each served step, `(num_indices,)`, int64."""
        # Before range r, starts[r] - skipped[r] steps are served.
        ranges = np.searchsorted(self.starts - self.skipped[:-1], indices, side="right")
        return indices + self.skipped[ranges]

    def num_before(self, step: int) -> int:
        """Returns how many steps before `step` are served."""
        number = int(np.searchsorted(self.starts, step, side="left"))
        if number == 0:
            return step
        sizes = np.diff(self.skipped)
        inside = min(step - int(self.starts[number - 1]), int(sizes[number - 1]))
        return step - int(self.skipped[number - 1]) - inside

    def ranges(self) -> list[tuple[int, int]]:
        """Returns the skipped ranges [start, stop), ascending, disjoint."""
        sizes = np.diff(self.skipped)
        return list(zip(self.starts.tolist(), (self.starts + sizes).tolist(), strict=True))


def _check_pairs(skip: object) -> list[object]:
    if not isinstance(skip, Iterable) or isinstance(skip, str | bytes):
        raise ArgumentTypeError(
            f"skip must be a list of (start, stop) steps; got {skip!r}.", name="skip", value=skip
        )
    return list(skip)


def _check_range(pair: object) -> tuple[int, int]:
    if isinstance(pair, range) and pair.step == 1:
        pair = (pair.start, pair.stop)
    if not isinstance(pair, tuple | list) or len(pair) != 2:  # noqa: PLR2004 - start and stop
        raise ArgumentTypeError(
            f"skip must hold (start, stop) pairs of steps; got {pair!r}.", name="skip", value=pair
        )
    start = check_int("skip start", pair[0], low=0, unit="steps")
    return start, check_int("skip stop", pair[1], low=start, unit="steps")


def shard_files(
    num_files: int, *, rank: int = 0, world_size: int = 1, worker: int = 0, num_workers: int = 1
) -> range:
    """Returns which files of a list one (rank, worker) pair reads in lit-gpt's sharding.

    Every pair gets the same number of files, taken round robin; up to
    `world_size * num_workers - 1` files at the end of the list belong to nobody.
    Source: `PackedDataset.__iter__` in lit-gpt's `packed_dataset.py`.

    Args:
        num_files: files in the list; 0 gives an empty range.
        rank: the data-parallel rank.
        world_size: the number of ranks.
        worker: the loader process within the rank.
        num_workers: loader processes of one rank, 1 if the rank loads by itself.

    Returns:
        Indices into the list, in the order of reading.

    Raises:
        ArgumentTypeError: a number is not an integer.
        ArgumentError: a count is too small, or a rank or worker is not below its count.

    Examples:
        >>> list(shard_files(7, rank=1, world_size=3))
        [1, 4]
        >>> [list(shard_files(4, rank=1, world_size=2, worker=w, num_workers=2)) for w in (0, 1)]
        [[2], [3]]
    """
    num_files = check_int("num_files", num_files, low=0)
    world_size = check_int("world_size", world_size, low=1)
    num_workers = check_int("num_workers", num_workers, low=1)
    rank = check_int("rank", rank, low=0, high=world_size - 1)
    worker = check_int("worker", worker, low=0, high=num_workers - 1)
    num_shards = world_size * num_workers
    shard = rank * num_workers + worker
    return range(shard, num_files // num_shards * num_shards, num_shards)
