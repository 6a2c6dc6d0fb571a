"""A `packcore.Loader` as an iterable dataset: whole batches for `DataLoader(batch_size=None)`.

The order is the loader's. Here each worker process takes its steps of it, and torchdata gets a
state of each worker. A DataLoader with the state of the run is in `packcore_torch.loading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from torch.utils.data import IterableDataset, get_worker_info

from packcore import Loader
from packcore.errors import StateError
from packcore_torch.ranks import rank_of
from packcore_torch.transit import Tensors, tensors, tensors_to_send

__all__ = ["BatchDataset", "BatchIterator", "resume"]

_RUN = "packcore_run"
"""In an iterator's state: the loader's state at the next step that the iterator serves."""


class BatchDataset(IterableDataset[Tensors]):
    """Whole batches, in an order that is the same for any number of ranks and workers.

    For `DataLoader(BatchDataset(loader), batch_size=None)`. Worker w of N takes the steps w,
    w + N, ..., so that the DataLoader, which asks its workers in turn, gives every step in order.

    Each iteration begins where `loader` stands when it begins, and does not move it. Iterators
    have `state_dict` and `load_state_dict`, which torchdata's StatefulDataLoader uses. A plain
    DataLoader has no state: `BatchLoader` is one that has.

    A batch is a tensor, `(rows, block_size)`, or a dict of tensors, as `packcore.Loader` says.
    Tokens are int64, whatever the loader's dtype; float tokens stay what they are. In a worker,
    where a `collate_fn` runs, they are still in the loader's dtype: from there they travel as
    bytes, and become int64 where they arrive.

    Args:
        loader: what is read. Its rank and world_size may be left out where torch.distributed is
            initialized: they are then taken from there.
        transform: called with each batch of NumPy arrays before they become tensors, in the
            worker if there is one; such as those in `packcore.trainers`.
        group: the process group whose processes read different rows, such as the data-parallel
            dimension of a device mesh; all processes by default.

    Raises:
        ArgumentTypeError: `loader` is no loader.
        ArgumentError: the loader's rank and torch.distributed contradict.
    """

    def __init__(
        self,
        loader: Loader,
        *,
        transform: Callable[[Any], Any] | None = None,
        group: Any = None,
    ) -> None:
        self.loader = loader
        self.transform = transform
        self.rank, self.world_size = rank_of(loader, group)

    def __len__(self) -> int:
        """Steps of a whole run.

        Raises:
            TypeError: the run has no end.
        """
        return len(self.loader)

    def __iter__(self) -> BatchIterator:
        loader = self.loader.for_rank(rank=self.rank, world_size=self.world_size)
        worker = get_worker_info()
        make = tensors if worker is None else tensors_to_send
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return BatchIterator(loader, loader.num_served + first, every, self.transform, make)


class BatchIterator:
    """The batches of one worker.

    Args:
        loader: its own, of this process's rank.
        first: the first step, counted in served steps.
        every: from one of its batches to the next, in served steps.
        transform: as for `BatchDataset`.
        make: makes tensors of what `transform` returns.
    """

    def __init__(
        self,
        loader: Loader,
        first: int,
        every: int,
        transform: Callable[[Any], Any] | None,
        make: Callable[[Any], Tensors],
    ) -> None:
        self._loader = loader
        self._next, self._every = first, every
        self._transform, self._make = transform, make
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Tensors:
        if self._batches is None:
            self._batches = self._loader.batches(self._next, every=self._every)
        batch = next(self._batches)
        self._next += self._every
        return self._make(batch if self._transform is None else self._transform(batch))

    def state_dict(self) -> dict[str, Any]:
        """Returns which step comes next; a small dict that JSON can hold."""
        return {_RUN: self._loader.state_at(self._next)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken.

        Raises:
            StateError: the state is of other data, another seed or order, or no such state.
        """
        self._loader.load_state_dict(_run_states(state)[0])
        self._next, self._batches = self._loader.num_served, None


def resume(loader: Loader, state: Mapping[str, Any]) -> None:
    """Moves a loader to where the run of a StatefulDataLoader was.

    That loader itself asks for as many workers and ranks as saved the state. This one does not:
    make the DataLoader after it, as you like.

        packcore_torch.resume(loader, checkpoint["data"])
        data = StatefulDataLoader(BatchDataset(loader), batch_size=None, num_workers=8)

    Args:
        loader: of any rank, made as the saved one was.
        state: from `StatefulDataLoader.state_dict()` over a `BatchDataset`, from any rank.

    Raises:
        StateError: the state is of other data, another seed or order, or no such state.
    """
    workers = _run_states(state)
    loader.load_state_dict(min(workers, key=lambda worker: worker["position"]))
    # Workers are asked for their states every snapshot_every_n_steps only.
    since = state.get("_steps_since_snapshot", 0)
    # As torchdata means it, the end of a pass is the beginning of the next.
    loader.seek(0 if state.get("_iterator_finished") else loader.num_served + since)


def _run_states(state: object) -> list[Any]:
    """Returns the loader's states that are somewhere in `state`, at least one."""
    found = list(_find(state))
    if not found:
        raise StateError(
            "The state must be of a BatchDataset; got one without any of its workers' states.",
            field=_RUN,
            got=state,
        )
    return found


def _find(state: object) -> Iterator[Any]:
    if isinstance(state, Mapping):
        for name, value in state.items():
            yield from [value] if name == _RUN else _find(value)
