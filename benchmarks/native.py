"""The native path: the loader beside lit-gpt's technique, beside NumPy alone, and from disk."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import packcore
from benchmarks.baseline_torch import RawDataset, drain_loader
from benchmarks.corpus import VOCAB_SIZE, write_chunks
from benchmarks.harness import Contest, Limit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from benchmarks.harness import Sizes

NUM_CHUNKS = 64
WINDOW = 8


class VirtualBlocks:
    """Blocks that are made up when they are read, as many as wanted."""

    block_size = 2049
    dtype = np.dtype(np.uint16)
    fingerprint = "virtual"

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.chunk_bounds = np.array([0, num_blocks])

    def __len__(self) -> int:
        return self.num_blocks

    def gather(self, ids: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        """Fills each block with its number."""
        out[:] = ids[:, None] % VOCAB_SIZE


def serve(blocks: packcore.Blocks, batch_size: int, **options: Any) -> int:
    """Serves one epoch; returns its tokens."""
    loader = packcore.Loader(blocks, batch_size, seed=1, epochs=1, window=WINDOW, **options)
    tokens = 0
    for batch in loader:
        tokens += (batch if isinstance(batch, np.ndarray) else batch["tokens"]).size
    return tokens


def take(table: npt.NDArray[Any], ids: npt.NDArray[np.int64], batch_size: int, dtype: str) -> int:
    """Takes the same blocks from one array in memory: what NumPy can do at most."""
    tokens = 0
    for start in range(0, len(ids), batch_size):
        batch = table.take(ids[start : start + batch_size], axis=0)
        tokens += (batch if batch.dtype == dtype else batch.astype(dtype)).size
    return tokens


def served_ids(blocks: packcore.Blocks, shuffle: Any) -> npt.NDArray[np.int64]:
    """Returns the blocks of one epoch in the loader's order."""
    loader = packcore.Loader(blocks, 1, seed=1, epochs=1, shuffle=shuffle, window=WINDOW)
    return loader.stream.locate(np.arange(len(blocks))).ids


def contests(sizes: Sizes, folder: Path) -> Iterator[Contest | Limit]:
    """The rows, from a warm page cache but for the last contest."""
    sizes = replace(sizes, num_chunks=max(sizes.num_chunks, NUM_CHUNKS), rounds=5)
    files = write_chunks(folder, sizes)
    # Any id will do as a separator: about one document every 2,000 tokens, as in text.
    blocks = packcore.open(files, sep_token=7).blocks(sizes.block_size)
    order = {"n_chunks": WINDOW, "block_size": sizes.block_size, "seed": 1}
    batch_size = sizes.batch_size

    def reference() -> int:
        return drain_loader(RawDataset(files, **order), batch_size)

    def ours(title: str, target: float | None, **options: Any) -> Contest:
        return Contest(title, lambda: serve(blocks, batch_size, **options), reference, target)

    window = {"shuffle": "window", "prefetch": 0}
    yield ours("window order, int64", 4.0, dtype="int64", **window)
    yield ours("window order, int32", 5.0, dtype="int32", **window)
    yield ours("window order, int64, a thread ahead", None, dtype="int64", shuffle="window")
    yield ours("global order, int64", 2.0, dtype="int64", prefetch=0)
    fields = ("tokens", "segment_ids", "positions")
    yield ours("window order, with document fields", 1.0, fields=fields, **window)
    table = blocks.gather(np.arange(len(blocks)))
    ids = served_ids(blocks, "window")
    for dtype, target in (("int64", 0.75), ("uint16", 0.75)):
        yield Contest(
            f"window order, {dtype}",
            lambda dtype=dtype: serve(blocks, batch_size, dtype=dtype, **window),
            lambda dtype=dtype: take(table, ids, batch_size, dtype),
            target,
            rival="np.take from one array",
        )
    yield from cold(files, sizes)
    many = VirtualBlocks(10**8)
    yield Limit("a loader over 10^8 blocks", lambda: packcore.Loader(many, 16, seed=1), 0.010)
    far = {
        **packcore.Loader(VirtualBlocks(10**10), 16, seed=1).state_dict(),
        "position": 16 * 10**8,
    }
    yield Limit("the first batch after 1.6 10^9 blocks", lambda: resume(far), 0.050)


def resume(state: dict[str, Any]) -> None:
    """Restores a run and serves a batch."""
    loader = packcore.Loader(VirtualBlocks(10**10), 16, seed=1)
    loader.load_state_dict(state)
    next(iter(loader))


def cold(files: list[str], sizes: Sizes) -> Iterator[Contest]:
    """Window order from disk, against reading the same files from front to back."""
    if not hasattr(os, "posix_fadvise"):
        return

    def evict() -> None:
        for file in files:
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def ours() -> int:
        evict()
        blocks = packcore.open(files).blocks(sizes.block_size)
        return serve(blocks, sizes.batch_size, shuffle="window")

    def sequential() -> int:
        evict()
        buffer = bytearray(2**20)
        num_bytes = 0
        for file in files:
            with open(file, "rb", buffering=0) as raw:
                while count := raw.readinto(buffer):
                    num_bytes += count
        return (num_bytes - 24 * len(files)) // 2

    yield Contest(
        "window order, uint16, evicted files", ours, sequential, 0.85, rival="reading in sequence"
    )
