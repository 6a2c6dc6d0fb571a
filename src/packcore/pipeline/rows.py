"""Lists of ids of several lengths, as one array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["flatten"]


def flatten(
    rows: list[Any], dtype: npt.DTypeLike | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Puts lists of ids behind each other; returns them, and how many each has."""
    lengths = np.array([len(row) for row in rows], np.int64)
    arrays = [np.asarray(row, dtype) for row in rows if len(row)]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype or np.int64), lengths
