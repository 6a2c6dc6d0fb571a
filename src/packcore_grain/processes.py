"""Which share of each batch a JAX process takes. Cutting the share out is for `packcore.Loader`."""

from __future__ import annotations

import itertools
from typing import Any

from packcore import Loader
from packcore.errors import ArgumentError
from packcore.loader import check_loader

__all__ = ["process_loader", "sharding_rank"]


def process_loader(loader: Loader, *, rank: int | None, world_size: int | None) -> Loader:
    """Returns a copy of the loader for this process, at the loader's position.

    A rank that is given, here or to the loader, is kept. If none is, and JAX is installed, it is
    `jax.process_index()` of `jax.process_count()`; this starts JAX's backends.

    Args:
        loader: left as it is.
        rank: this process; None with world_size None.
        world_size: the number of ranks.

    Raises:
        ArgumentError: only one of the two is given, or they break the loader's rules.
        ArgumentTypeError: the loader is not a `packcore.Loader`.
    """
    check_loader(loader)
    if (rank is None) != (world_size is None):
        raise ArgumentError(
            f"rank and world_size must be given together; got {rank} and {world_size}.",
            name="world_size" if world_size is None else "rank",
        )
    if rank is None or world_size is None:
        given = loader.world_size > 1
        rank, world_size = (loader.rank, loader.world_size) if given else _jax_process()
    return loader.for_rank(rank=rank, world_size=world_size)


def _jax_process() -> tuple[int, int]:
    try:
        import jax  # noqa: PLC0415 - an extra of its own
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        return 0, 1
    return jax.process_index(), jax.process_count()


def sharding_rank(sharding: Any, global_shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns (rank, world_size) of this process by the rows that its devices hold.

    For meshes in which processes do not stand in order, or share rows: those of one model that is
    spread over several processes have the same rank, and need the same rows.

    Args:
        sharding: a `jax.sharding.Sharding` of a global batch.
        global_shape: of the global batch: (global_batch_size, block_size).

    Raises:
        ArgumentError: the rows of this process are not one range, or not an even share.
    """
    num_rows = global_shape[0]
    held = sharding.addressable_devices_indices_map(global_shape).values()
    ranges = sorted({index[0].indices(num_rows)[:2] for index in held})
    start, stop = ranges[0][0], ranges[-1][1]
    whole = all(one[1] == two[0] for one, two in itertools.pairwise(ranges))
    share = stop - start
    if not whole or num_rows % share or start % share:
        raise ArgumentError(
            "A process must hold one range of rows, an even share of the global batch; this one "
            f"holds {ranges} of {num_rows} rows. Order the mesh's devices by process along the "
            "axis of the batch.",
            name="sharding",
            value=sharding,
        )
    return start // share, num_rows // share
