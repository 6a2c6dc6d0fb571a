"""Whole batches by number: a `grain.MapDataset` of steps."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterator
from typing import Any, Self

import grain

from packcore import Loader
from packcore.errors import ArgumentError
from packcore_grain.checked import CheckedDataset
from packcore_grain.flags import use_flag_defaults
from packcore_grain.loader_dataset import LoaderDataset
from packcore_grain.processes import process_loader
from packcore_grain.shares import stretch
from packcore_grain.specs import batch_spec

__all__ = ["StepDataset"]


class StepDataset(grain.MapDataset):  # type: ignore[misc] # Grain has no types
    """The batches of a loader by number: element i is the batch of the i-th served step.

    An index past the end begins anew, as for every MapDataset. A loader without end has
    `sys.maxsize` elements. Batches that are asked for in turn are read many at a time.

    `to_iter_dataset()` is a `LoaderDataset`. After a transformation it is Grain's: give it
    `grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)`, and wrap it in a `CheckedDataset`
    for states that are checked.

    Args:
        loader: left as it is; its position does not matter.
        rank: this process, as for `LoaderDataset`.
        world_size: the number of ranks; given together with rank.

    Raises:
        ArgumentError: only one of rank and world_size is given, or they break the loader's rules.
        ArgumentTypeError: the loader is not a `packcore.Loader`.
    """

    def __init__(
        self, loader: Loader, *, rank: int | None = None, world_size: int | None = None
    ) -> None:
        super().__init__()
        use_flag_defaults()
        self._loader = process_loader(loader, rank=rank, world_size=world_size)
        self._loader.seek(0)
        self._loader.prefetch = 0  # a thread would outlive the iterators
        self._turn = _Turn(self._loader)
        endless = self._loader.num_steps is None
        self._whole = self._steps = range(sys.maxsize if endless else len(self._loader))

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._turn.batch(self._steps[index % len(self._steps)])

    def __str__(self) -> str:
        return f"StepDataset(rank={self._loader.rank}, world_size={self._loader.world_size})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Grain copies a dataset for each thread. The loader never moves, so they share its maps.
        other = memo[id(self)] = copy.copy(self)
        other._turn = _Turn(self._loader)  # noqa: SLF001 - a copy of self
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_turn": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _turn=_Turn(state["_loader"]))

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Leaves one stretch of the steps. Grain calls this on copies, for its workers.

        Raises:
            ArgumentError: not slice(worker, None, num_workers) with sequential_slice, or the run
                has no end.
            ArgumentTypeError: no slice of integers.
        """
        if self._loader.num_steps is None:
            raise ArgumentError(
                "A run that has no end can not be cut into stretches; got sequential_slice=True. "
                "Leave it out, or give the loader epochs.",
                name="sequential_slice",
                value=sequential_slice,
            )
        part = stretch(len(self._whole), sl, sequential_slice=sequential_slice)
        self._steps = self._whole[part]

    @property
    def identity(self) -> dict[str, Any]:
        """What a state must belong to: the data, the seed, the order and the size of a step."""
        state = self._loader.state_at(0)
        del state["position"]
        return {**state, "global_batch_size": self._loader.global_batch_size}

    def to_iter_dataset(
        self, read_options: grain.ReadOptions | None = None, *, allow_nones: bool = False
    ) -> grain.IterDataset:
        """Returns the batches one after another, with states that are checked.

        Args:
            read_options: Grain's threads, as for every MapDataset. None, which is faster: none,
                as the batches are in memory.
            allow_nones: as for every MapDataset; no batch is None.
        """
        if read_options is None:
            loader = self._loader
            return LoaderDataset(loader, rank=loader.rank, world_size=loader.world_size)
        return CheckedDataset(super().to_iter_dataset(read_options, allow_nones=allow_nones), self)

    @property
    def _element_spec(self) -> Any:
        return batch_spec(self._loader)


class _Turn:
    """Batches by number, read many at a time while the numbers come at one distance."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = threading.Lock()
        self._last = self._distance = 0
        self._ahead: Iterator[Any] | None = None

    def batch(self, index: int) -> Any:
        """Returns the batch of a served step."""
        with self._lock:
            if self._follows(index):
                ahead = self._ahead or self._loader.batches(index, every=self._distance)
                self._ahead = None  # an error ends it
                batch = next(ahead)
                self._ahead = ahead
                return batch
            self._ahead = None
        return self._loader.batch_at(self._loader.served_step(index))

    def _follows(self, index: int) -> bool:
        """Takes note of an index; True if it is as far from the last one as that from its own."""
        before = self._distance
        self._distance, self._last = index - self._last, index
        return self._distance == before and before > 0
