"""Packed-token data for language-model training, on NumPy alone."""

from packcore.blocks import Blocks
from packcore.dataset import Dataset, open  # noqa: A004 - packcore.open is the door
from packcore.mixture import Mixture

__all__ = ["Blocks", "Dataset", "Mixture", "__version__", "open"]

__version__ = "0.1.0"
