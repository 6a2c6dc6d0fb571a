"""Packed-token data for language-model training, on NumPy alone."""

from packcore import documents, formats, trainers
from packcore.blocks import Blocks
from packcore.builder import PackedDatasetBuilder
from packcore.conversion import convert
from packcore.dataset import Dataset, open  # noqa: A004 - packcore.open is the door
from packcore.loader import Loader
from packcore.mixture import Mixture
from packcore.pipeline import build
from packcore.reference import (
    CombinedDataset,
    CombinedDatasetIterator,
    PackedDataset,
    PackedDatasetIterator,
)

__all__ = [
    "Blocks",
    "CombinedDataset",
    "CombinedDatasetIterator",
    "Dataset",
    "Loader",
    "Mixture",
    "PackedDataset",
    "PackedDatasetBuilder",
    "PackedDatasetIterator",
    "__version__",
    "build",
    "convert",
    "documents",
    "formats",
    "open",
    "trainers",
]

__version__ = "0.1.0"
