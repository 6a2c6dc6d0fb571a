"""Packed-token data for language-model training, on NumPy alone."""

__all__ = ["__version__"]

__version__ = "0.1.0"
