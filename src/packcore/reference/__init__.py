"""lit-gpt's PackedDataset and CombinedDataset: the reference's exact order of blocks.

The order is that of lit-gpt's `packed_dataset.py`: files are dealt out to (rank, worker) pairs,
a window of `n_chunks` files is open at a time, and its blocks are permuted by one NumPy
generator that goes on from window to window. What is added: every file is checked when a dataset
is made, `wrap` is honoured, iterators have a state, and what is left out is reported.

The endless order that loses nothing and does not depend on ranks and workers is for
`packcore.order`; writing chunk files is for `packcore.builder`.
"""

from packcore.reference.combined import CombinedDataset, CombinedDatasetIterator
from packcore.reference.packed import PackedDataset, PackedDatasetIterator
from packcore.reference.report import PackedReport, ShardReport

__all__ = [
    "CombinedDataset",
    "CombinedDatasetIterator",
    "PackedDataset",
    "PackedDatasetIterator",
    "PackedReport",
    "ShardReport",
]
