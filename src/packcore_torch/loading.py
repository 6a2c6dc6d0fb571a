"""A DataLoader whose state is that of the run, for any number of ranks and workers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from packcore import Loader
from packcore.errors import ArgumentError
from packcore_torch.batches import BatchDataset
from packcore_torch.transit import Tensors

__all__ = ["BatchLoader"]


class BatchLoader(DataLoader[Tensors]):
    """torch's DataLoader over a `packcore.Loader`: the batches of a run as tensors.

        data = packcore_torch.BatchLoader(loader, num_workers=2, pin_memory=True)
        for batch in data:
            ...
        torch.save({"data": data.state_dict()}, path)

    Iterating moves `loader`, one step a batch that was handed over, however many are ahead in
    workers. So `state_dict()` is the loader's state, and can be loaded with any number of ranks
    and workers; a loop that was left with `break` can be taken up again, and after the end of a
    finite run the next loop begins anew.

    Args:
        loader: what is read, as for `BatchDataset`.
        transform: as for `BatchDataset`.
        group: as for `BatchDataset`.
        options: of torch's DataLoader: num_workers, prefetch_factor, pin_memory,
            persistent_workers, multiprocessing_context and the like. A thread of the loader
            reads ahead without any worker.

    Raises:
        ArgumentError: an option would change the batches or their order; the loader's rank and
            torch.distributed contradict.

    Examples:
        >>> import tempfile
        >>> import packcore
        >>> folder = tempfile.TemporaryDirectory()
        >>> with packcore.PackedDatasetBuilder(folder.name, "a", 8, 0, vocab_size=100) as builder:
        ...     builder.add_document(range(1, 13))
        >>> loader = Loader(packcore.open(folder.name).blocks(3), 2, seed=1, shuffle=None)
        >>> data = BatchLoader(loader)
        >>> for batch in data:
        ...     print(batch)
        ...     break
        tensor([[1, 2, 3],
                [4, 5, 6]])
        >>> data.state_dict()["position"]
        2
        >>> folder.cleanup()
    """

    dataset: BatchDataset

    def __init__(
        self,
        loader: Loader,
        *,
        transform: Callable[[Any], Any] | None = None,
        group: Any = None,
        **options: Any,
    ) -> None:
        if options.get("batch_size") is not None or not options.get("in_order", True):
            raise ArgumentError(
                "The loader decides on batches and their order: batch_size and in_order must be "
                "left out.",
                name="batch_size",
                value=options.get("batch_size"),
            )
        # torch draws a seed for its workers in every loop. From a generator of its own, so that
        # a resumed run is not a draw ahead of the first.
        options = {"generator": torch.Generator(), **options, "batch_size": None}
        super().__init__(BatchDataset(loader, transform=transform, group=group), **options)
        self.loader = loader
        self._workers_at: tuple[int, Any] | None = None
        self._running: weakref.ref[Generator[Tensors, None, None]] | None = None

    def __iter__(self) -> Generator[Tensors, None, None]:  # type: ignore[override] # not torch's class
        self.close()
        begin = self.loader.num_served, self.loader.mixture
        if begin != self._workers_at:  # workers that persist would begin elsewhere
            self._iterator, self._workers_at = None, begin
        # In this process torch's DataLoader would add nothing but its cost, a third of the time.
        alone = not (self.num_workers or self.pin_memory)
        collate: Any = self.collate_fn
        batches = map(collate, self.dataset) if alone else super().__iter__()
        running = self._moving(batches, begin[0])
        self._running = weakref.ref(running)
        return running

    def _moving(self, batches: Iterator[Tensors], served: int) -> Generator[Tensors, None, None]:
        for number, batch in enumerate(batches, served + 1):
            self.loader.seek(number)
            yield batch
        for _ in self.loader:  # it is at its end; now it knows
            pass

    def close(self) -> None:
        """Ends the running loop, if there is one."""
        running = None if self._running is None else self._running()
        self._running = None
        if running is not None:
            running.close()

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's state: what was handed over, not what was read ahead.

        It is the same on every rank, small, and JSON holds it.
        """
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken, at any number of ranks and workers.

        Raises:
            StateError: the state is of other data, another seed, order or version.
        """
        self.close()
        self.loader.load_state_dict(state)
