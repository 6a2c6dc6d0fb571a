"""`benchmarks.baseline` under a torch DataLoader with the default collate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.baseline import read_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator


class RawDataset(IterableDataset[torch.Tensor]):
    """Yields each block of each chunk once, as an int64 tensor. Workers take files in turn."""

    def __init__(self, files: list[str], *, n_chunks: int, block_size: int, seed: int) -> None:
        self._files, self._n_chunks = files, n_chunks
        self._block_size, self._seed = block_size, seed

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Starts one pass."""
        worker = get_worker_info()
        files = self._files if worker is None else self._files[worker.id :: worker.num_workers]
        blocks = read_blocks(
            files, n_chunks=self._n_chunks, block_size=self._block_size, seed=self._seed
        )
        return map(torch.from_numpy, blocks)


def drain_loader(dataset: IterableDataset[torch.Tensor], batch_size: int) -> int:
    """Returns the tokens in one pass of a DataLoader without workers."""
    return sum(batch.numel() for batch in DataLoader(dataset, batch_size=batch_size))
