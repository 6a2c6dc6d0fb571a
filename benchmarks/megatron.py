"""Megatron's files through packcore, beside megatron-core's own `IndexedDataset`.

The rival needs megatron-core (`pip install megatron-core`); without it there is nothing to compare
with, and no line. Both sides serve each block once, shuffled over all of the corpus, as int64
tensors in batches, without worker processes: packcore's batches come from its thread, the rival's
from torch's DataLoader. The rival finds a block's documents as
megatron-core's `GPTDataset` does, by an index of (document, offset) made beforehand, and makes
neither its labels nor its masks.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import packcore
import packcore_torch
from benchmarks.corpus import VOCAB_SIZE, make_documents
from benchmarks.harness import Contest
from packcore.conversion import convert

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.harness import Sizes


class IndexedBlocks(Dataset[torch.Tensor]):
    """Blocks of a Megatron corpus, read with megatron-core."""

    def __init__(self, prefix: str, block_size: int, seed: int) -> None:
        module = importlib.import_module("megatron.core.datasets.indexed_dataset")
        self._indexed: Any = module.IndexedDataset(prefix)
        ends = np.cumsum(self._indexed.sequence_lengths, dtype=np.int64)
        starts = np.arange(int(ends[-1]) // block_size + 1) * block_size
        document = np.searchsorted(ends, starts, side="right")
        offset = starts - np.concatenate(([0], ends))[document]
        self._samples = np.stack((document, offset), axis=1)
        self._order = np.random.default_rng(seed).permutation(len(starts) - 1)

    def __len__(self) -> int:
        """Returns the number of blocks."""
        return len(self._order)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Returns a block, put together from the documents it lies in."""
        number = self._order[index]
        (first, start), (last, stop) = self._samples[number], self._samples[number + 1]
        parts = []
        for document in range(first, last + 1):
            begin = start if document == first else 0
            length = stop - begin if document == last else None
            if length != 0:
                parts.append(self._indexed.get(document, offset=begin, length=length))
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def _drain(loader: Any) -> int:
    """Returns the tokens in one pass."""
    return sum(batch.numel() for batch in loader)


def contests(sizes: Sizes, folder: Path) -> Iterator[Contest]:
    """One pass over files that are open."""
    if importlib.util.find_spec("megatron") is None:
        return
    documents = make_documents(sizes, 1000)
    chunks, prefix = folder / "chunks", str(folder / "megatron")
    with packcore.PackedDatasetBuilder(
        chunks, "train", sizes.chunk_size, sep_token=0, vocab_size=VOCAB_SIZE
    ) as builder:
        for document in documents:
            builder.add_document(document)
    convert(chunks, prefix, to="megatron")
    size, batch_size = sizes.block_size, sizes.batch_size
    num_blocks = sum(map(len, documents)) // size // batch_size * batch_size
    with warnings.catch_warnings():  # of what else megatron-core would like to be installed
        warnings.simplefilter("ignore")
        indexed = IndexedBlocks(prefix, size, seed=1)

    blocks = packcore.open(prefix).blocks(size)[:num_blocks]
    batches = packcore_torch.BatchLoader(
        packcore.Loader(blocks, batch_size, seed=1, epochs=1, dtype="int64")
    )

    loader = DataLoader(indexed, batch_size=batch_size, drop_last=True)

    yield Contest(
        f"Megatron files, int64, batches of {batch_size}",
        lambda: _drain(batches),
        lambda: _drain(loader),
        target=3.0,
        rival="megatron-core's IndexedDataset",
    )
