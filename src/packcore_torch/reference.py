"""lit-gpt's PackedDataset and CombinedDataset as iterable datasets of tensors.

The order, the checks and the states are those of `packcore.reference`. Here arrays become
tensors, and PyTorch says which loader process asks.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from packcore import reference
from packcore.errors import ArgumentTypeError

__all__ = ["CombinedDataset", "PackedDataset", "PackedDatasetIterator"]

_Item = TypeVar("_Item")


class PackedDataset(IterableDataset[torch.Tensor]):
    """Blocks of packed chunk files as tensors, in the order of lit-gpt's PackedDataset.

    In a DataLoader every worker reads its own files: there must be at least
    `num_processes * num_workers * n_chunks` of them. That is checked for one worker when the
    dataset is made, and for the true number when a worker begins.

    Each tensor is `(block_size,)`, int64, or float32 or float64 if the chunks are. The iterators
    have `state_dict` and `load_state_dict`, which torchdata's StatefulDataLoader uses.

    Args:
        filenames: chunk files, in the order in which they are dealt out; packcore's sidecars
            among them are passed over.
        n_chunks: files in a window.
        block_size: tokens in a block.
        seed: of the shuffle; None takes another one every time.
        shuffle: False serves the blocks in the order in which they are stored.
        wrap: True goes on after the last whole window, without end; False ends there.
            TinyLlama's copy of the class has this argument but wraps always.
        num_processes: the number of ranks.
        process_rank: this process's rank.

    Raises:
        PackcoreError: as for `packcore.PackedDataset`.
    """

    def __init__(
        self,
        filenames: Iterable[str | os.PathLike[str]],
        n_chunks: int,
        block_size: int,
        seed: int | None = 12345,
        shuffle: bool = True,
        wrap: bool = False,
        num_processes: int = 1,
        process_rank: int = 0,
    ) -> None:
        self._dataset = reference.PackedDataset(
            filenames,
            n_chunks,
            block_size,
            seed,
            shuffle,
            wrap,
            num_processes,
            process_rank,
        )

    def __iter__(self) -> PackedDatasetIterator:
        dataset, worker = self._dataset, get_worker_info()
        if worker is not None:
            dataset = dataset.for_worker(num_workers=worker.num_workers, worker_id=worker.id)
        return PackedDatasetIterator.over(iter(dataset))

    def report(self, *, num_workers: int = 1) -> reference.PackedReport:
        """Returns what one pass serves, drops and fills, for every rank and worker.

        Args:
            num_workers: loader processes of one rank; 1 if the DataLoader has 0.

        Raises:
            ArgumentError: there are too few files for so many workers.
            FormatError: a manifest beside the chunks is damaged.
        """
        return self._dataset.for_worker(num_workers=num_workers, worker_id=0).report()


class PackedDatasetIterator:
    """The blocks of one shard as tensors: every file given is its own.

    Args:
        filenames: as for `PackedDataset`, but not dealt out any more.
        n_chunks: files in a window.
        block_size: tokens in a block.
        seed: of the shuffle.
        shuffle: whether the blocks of a window are shuffled.
        wrap: whether to go on after the last whole window.

    Raises:
        PackcoreError: as for `packcore.PackedDataset`.
    """

    def __init__(
        self,
        filenames: Iterable[str | os.PathLike[str]],
        n_chunks: int,
        block_size: int,
        seed: int | None,
        shuffle: bool,
        wrap: bool,
    ) -> None:
        self._blocks = reference.PackedDatasetIterator(
            filenames, n_chunks, block_size, seed, shuffle, wrap
        )

    @classmethod
    def over(cls, blocks: reference.PackedDatasetIterator) -> Self:
        """Returns the blocks of a NumPy iterator as tensors; the two share their place."""
        self = cls.__new__(cls)
        self._blocks = blocks
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> torch.Tensor:
        # The array is a copy that nobody else holds, so the tensor may share its memory.
        return torch.from_numpy(next(self._blocks))

    def state_dict(self) -> dict[str, Any]:
        """Returns where the iterator is: a small dict that JSON can hold."""
        return self._blocks.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to where an iterator was when it returned `state`. Reads no tokens.

        Raises:
            StateError: the state belongs to other files or arguments, or is damaged.
        """
        self._blocks.load_state_dict(state)


class CombinedDataset(IterableDataset[_Item]):
    """A random mix of datasets, in the order of lit-gpt's CombinedDataset.

    Every worker of a DataLoader draws the same sequence of datasets, and serves its own blocks
    of them. The mix ends when the dataset that is drawn has ended.

    Args:
        datasets: what is mixed; each can be iterated, such as a `PackedDataset`.
        seed: of the draws; None takes another one every time.
        weights: one for each dataset, at least 0; only their ratios count. None: all equal.

    Raises:
        ArgumentTypeError: one of the datasets is a `packcore.PackedDataset`: in every worker it
            would serve the same blocks.
        PackcoreError: as for `packcore.CombinedDataset`.
    """

    def __init__(
        self,
        datasets: Collection[Iterable[_Item]],
        seed: int | None,
        weights: Iterable[float] | None = None,
    ) -> None:
        self._mix = reference.CombinedDataset(datasets, seed, weights)
        for index, dataset in enumerate(datasets):
            if isinstance(dataset, reference.PackedDataset):
                raise ArgumentTypeError(
                    f"datasets[{index}] is a packcore.PackedDataset: it knows nothing of "
                    "PyTorch's workers, and each would serve the same blocks. Use "
                    "packcore_torch.PackedDataset.",
                    name="datasets",
                    value=dataset,
                )

    @property
    def weights(self) -> tuple[float, ...]:
        """The share of each dataset; together 1, but for rounding."""
        return self._mix.weights

    def __iter__(self) -> reference.CombinedDatasetIterator[_Item]:
        return iter(self._mix)
