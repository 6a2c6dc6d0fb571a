"""Batches in the global order as tensors, from a thread and from worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

import packcore
from benchmarks.baseline_torch import RawDataset
from benchmarks.corpus import write_chunks
from benchmarks.harness import Contest
from packcore_torch import BatchLoader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import torch

    from benchmarks.harness import Sizes

NUM_WORKERS = 2
# Workers begin once, outside of what is timed.
WORKERS: dict[str, Any] = {"num_workers": NUM_WORKERS, "persistent_workers": True}


def drain(batches: Iterable[torch.Tensor]) -> int:
    """Returns the tokens in one pass."""
    return sum(batch.numel() for batch in batches)


def contests(sizes: Sizes, folder: Path) -> Iterator[Contest]:
    """One shuffled pass, all of it int64 tensors; the rival shuffles inside its files."""
    files = write_chunks(folder, sizes)
    blocks = packcore.open(files).blocks(sizes.block_size)

    def ours(prefetch: int, **options: Any) -> BatchLoader:
        loader = packcore.Loader(blocks, sizes.batch_size, seed=1, epochs=1, prefetch=prefetch)
        return BatchLoader(loader, **options)

    def theirs(num_shards: int, **options: Any) -> DataLoader[torch.Tensor]:
        order = {"n_chunks": sizes.num_chunks // num_shards, "block_size": sizes.block_size}
        dataset = RawDataset(files, **order, seed=1)
        return DataLoader(dataset, batch_size=sizes.batch_size, **options)

    title = f"torch batches of {sizes.batch_size}, "
    plain, thread, workers = ours(0), ours(2), ours(2, **WORKERS)
    alone, shared = theirs(1), theirs(NUM_WORKERS, **WORKERS)
    yield Contest(title + "no thread", lambda: drain(plain), lambda: drain(alone), target=4.0)
    yield Contest(
        title + "a thread ahead", lambda: drain(thread), lambda: drain(alone), target=None
    )
    yield Contest(
        title + f"{NUM_WORKERS} workers", lambda: drain(workers), lambda: drain(shared), target=2.5
    )
    yield Contest(
        title + "a thread ahead",
        lambda: drain(thread),
        lambda: drain(workers),
        target=None,
        rival=f"the same with {NUM_WORKERS} workers",
    )
