"""packcore for PyTorch: a loader's batches as tensors, and lit-gpt's module.

    data = packcore_torch.BatchLoader(loader, num_workers=2)

In place of lit-gpt's or TinyLlama's module, with all of its public names:

    import packcore_torch as packed_dataset
    from packcore_torch import CombinedDataset, PackedDataset
"""

try:
    import torch as _torch  # noqa: F401  # asked for here, to name the pip command
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    from packcore.errors import MissingExtraError as _MissingExtraError

    raise _MissingExtraError(
        'packcore_torch needs PyTorch, which is not installed: pip install "packcore[torch]"'
    ) from error

from packcore.builder import PackedDatasetBuilder
from packcore.format import HDR_MAGIC, HDR_SIZE, code, dtypes
from packcore.reference import CombinedDatasetIterator
from packcore_torch.batches import BatchDataset, resume
from packcore_torch.blocks import BlockDataset
from packcore_torch.loading import BatchLoader
from packcore_torch.reference import CombinedDataset, PackedDataset, PackedDatasetIterator

__all__ = [
    "HDR_MAGIC",
    "HDR_SIZE",
    "BatchDataset",
    "BatchLoader",
    "BlockDataset",
    "CombinedDataset",
    "CombinedDatasetIterator",
    "PackedDataset",
    "PackedDatasetBuilder",
    "PackedDatasetIterator",
    "code",
    "dtypes",
    "resume",
]
