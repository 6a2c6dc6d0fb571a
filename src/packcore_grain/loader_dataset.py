"""Whole batches in the order of a run, one after another: a `grain.IterDataset`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Self

import grain

from packcore import Loader
from packcore.errors import ArgumentError, StateError
from packcore_grain.flags import use_flag_defaults
from packcore_grain.processes import process_loader
from packcore_grain.shares import check_slice
from packcore_grain.specs import batch_spec
from packcore_grain.states import WHOLE, share_of

__all__ = ["LoaderDataset", "LoaderIterator"]


class LoaderDataset(grain.IterDataset):  # type: ignore[misc] # Grain has no types
    """The batches of a loader as a Grain dataset, from where the loader stands.

    An element is a batch as `packcore.Loader` describes it, an array or a dict of arrays, and is
    never written again. `mp_prefetch` and multi-threaded prefetching, with any number of workers,
    yield the same batches in the same order; in a process of its own it is fastest without them.

    Every iterator begins where the loader stood when the dataset was made. To go on from a saved
    state at another number of processes or workers, `packcore_grain.resume(loader, state)` and
    make the pipeline after it.

    Args:
        loader: left as it is. Later changes to it do not matter here.
        rank: this process. By default the loader's; if it has a single rank and JAX is installed,
            `jax.process_index()` of `jax.process_count()`, which starts JAX's backends.
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
        self._first = self._loader.num_served
        self._slice = tuple(WHOLE)

    def __iter__(self) -> LoaderIterator:
        return LoaderIterator(self._loader, self._first, self._slice)

    def __str__(self) -> str:
        return f"LoaderDataset(rank={self._loader.rank}, world_size={self._loader.world_size})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Grain copies a dataset for each thread. The loader never moves, so they share its maps.
        other = memo[id(self)] = copy.copy(self)
        return other

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Leaves every `sl.step`-th batch, from `sl.start` on; slices of slices compose.

        Grain calls this on copies, for its workers.

        Args:
            sl: `slice(worker, None, num_workers)`.
            sequential_slice: makes no difference: the order is the run's.

        Raises:
            ArgumentError: the slice has an end, or goes backwards or nowhere.
            ArgumentTypeError: it is no slice of integers.
        """
        del sequential_slice
        start, every = check_slice(sl)
        if sl.stop is not None:
            raise ArgumentError(
                f"A slice of a LoaderDataset must be slice(worker, None, num_workers); got {sl}. "
                "Limit it with grain.experimental.LimitIterDataset.",
                name="sl",
                value=sl,
            )
        self._slice = self._slice[0] + self._slice[1] * start, self._slice[1] * every

    @property
    def _element_spec(self) -> Any:
        return batch_spec(self._loader)


class LoaderIterator(grain.DatasetIterator):  # type: ignore[misc] # Grain has no types
    """The iterator of a `LoaderDataset`.

    Args:
        loader: read from, never moved.
        first: the served step of the dataset's first batch.
        batch_slice: (start, every): which batches from there on.
    """

    _batches: Iterator[Any] | None = None

    def __init__(self, loader: Loader, first: int, batch_slice: tuple[int, ...]) -> None:
        super().__init__()
        self._loader = loader
        self._first = first
        self._start, self._every = batch_slice
        self._next = first + self._start

    def __next__(self) -> Any:
        self._assert_not_closed()
        batches = self._batches or self._loader.batches(self._next, every=self._every)
        self._batches = None  # an error ends it: the next try begins anew
        batch = next(batches)
        self._batches = batches
        self._next += self._every
        return batch

    def __str__(self) -> str:
        return f"LoaderIterator(served={self._next}, slice=[{self._start}, {self._every}])"

    def get_state(self) -> dict[str, Any]:
        """Returns where the iterator is: a small dict that JSON holds, the same on every rank.

        It is the loader's state, with `served`, the number of the next batch, and `slice`, this
        worker's share as [start, every].
        """
        state = self._loader.state_at(self._next)
        return {**state, "served": self._next, "slice": [self._start, self._every]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes to where an iterator was when it returned `state`. Reads no tokens.

        Raises:
            StateError: the state is of other data, another seed, order or version, or of another
                number of workers; `field` names what differs.
            ArgumentTypeError: the state is not a dict.
        """
        loader = _loader_at(self._loader, state)
        mine, saved = [self._start, self._every], share_of(state)
        if saved not in (mine, WHOLE):
            raise StateError(
                f"The state is of a worker that takes the batches {saved[0]} + {saved[1]} k, this "
                f"one takes {mine[0]} + {mine[1]} k. To change the number of workers, call "
                "packcore_grain.resume(loader, state) and make the pipeline after it.",
                field="slice",
                expected=mine,
                got=saved,
            )
        self._move(loader.num_served + (0 if saved == mine else self._start))
        self._loader = loader

    def close(self) -> None:
        """Stops the loader's thread, if there is one. No batch can be had after it."""
        self._move(self._next)
        super().close()

    def _move(self, served: int) -> None:
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined] # a generator
        self._batches = None
        self._next = served

    def _get_next_index(self) -> int:
        return (self._next - self._first - self._start) // self._every

    def _set_next_index(self, index: int) -> None:
        self._move(self._first + self._start + index * self._every)


def _loader_at(loader: Loader, state: Mapping[str, Any]) -> Loader:
    """Returns a copy of the loader that stands where `state` was taken."""
    moved = copy.copy(loader)
    moved.load_state_dict(state)
    return moved
