"""(rank, worker) -> rows of a global batch; files of a reference shard.

Pure arithmetic on counts. Opening the files is for `packcore.reference`.
"""

from __future__ import annotations

from packcore.checks import check_int

__all__ = ["shard_files"]


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
