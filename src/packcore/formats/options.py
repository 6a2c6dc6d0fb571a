"""What the user said about files that do not say it themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the user said, for a format's `find` and `open_files`."""

    dtype: np.dtype[Any] | None = None
    """The tokens' dtype; None if the files have to say it."""
    sep_token: int | None = None
    """The id that ends a document; None if the files have to say where documents begin."""
