"""Batches of blocks of chunks that lie in the page cache, under torch's DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import packcore_torch
from benchmarks.baseline_torch import RawDataset, drain_loader
from benchmarks.corpus import write_chunks
from benchmarks.harness import Contest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.harness import Sizes


def contests(sizes: Sizes, folder: Path) -> Iterator[Contest]:
    """The drop-in dataset, loaded in the process that consumes it."""
    files = write_chunks(folder, sizes)
    order = {"n_chunks": min(8, sizes.num_chunks), "block_size": sizes.block_size, "seed": 1}
    yield Contest(
        f"torch DataLoader, int64, batches of {sizes.batch_size}",
        lambda: drain_loader(packcore_torch.PackedDataset(files, **order), sizes.batch_size),
        lambda: drain_loader(RawDataset(files, **order), sizes.batch_size),
        target=1.0,
    )
