"""Packed-token data for language-model training, on NumPy alone."""
