"""Which rank of a run this process is: the loader's word beside that of torch.distributed."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from packcore import Loader
from packcore.errors import ArgumentError
from packcore.loader import check_loader

__all__ = ["rank_of"]


def rank_of(loader: Loader, group: Any = None) -> tuple[int, int]:
    """Returns the data-parallel rank of this process, and how many there are.

    A loader of one rank takes them from torch.distributed, if that is initialized; of several
    ranks it must agree.

    Args:
        loader: as it was made.
        group: the process group whose processes read different rows; None for all processes.

    Raises:
        ArgumentTypeError: `loader` is no loader.
        ArgumentError: the two contradict; this process is not in `group`; or torchrun began
            several processes and neither of the two says which one this is.
    """
    check_loader(loader)
    given = loader.rank, loader.world_size
    if not (dist.is_available() and dist.is_initialized()):
        if given == (0, 1):
            _check_alone()
        return given
    found = dist.get_rank(group), dist.get_world_size(group)
    if found[0] < 0:
        raise ArgumentError("This process must be in group; it is not.", name="group", value=group)
    if given not in ((0, 1), found):
        raise ArgumentError(
            "The loader's rank and world_size must be those of torch.distributed, or be left out; "
            f"got {given[0]} of {given[1]}, torch.distributed says {found[0]} of {found[1]}. "
            "Where only some of the processes read different rows, pass them as group.",
            name="rank",
            value=given,
        )
    return found


def _check_alone() -> None:
    processes = os.environ.get("WORLD_SIZE", "1")
    if dist.is_available() and dist.is_torchelastic_launched() and processes != "1":
        raise ArgumentError(
            f"torchrun began {processes} processes, which would all read the same rows. Call "
            "torch.distributed.init_process_group() before, or give the loader its rank and "
            "world_size.",
            name="rank",
            value=0,
        )
