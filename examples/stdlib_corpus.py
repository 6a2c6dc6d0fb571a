"""A corpus that every machine has: the source files of Python's own standard library.

The tokenizer is the simplest there is: one token a byte, and one id more for the end of a
document. Swap `documents` and `encode` for your own and the rest stays as it is.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import numpy.typing as npt

END_OF_DOCUMENT = 256
VOCAB_SIZE = 257


def documents() -> list[Path]:
    """Returns the source files of the standard library, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    installed = {"site-packages", "dist-packages"}
    paths = (path for path in root.rglob("*.py") if not installed & set(path.parts))
    return sorted(path for path in paths if path.is_file() and path.stat().st_size)


def encode(text: bytes) -> npt.NDArray[np.uint16]:
    """Returns one id a byte: `(num_tokens,)`, uint16."""
    return np.frombuffer(text, np.uint8).astype(np.uint16)


def decode(ids: npt.NDArray[np.integer]) -> str:
    """Returns the text of `ids`, with a mark where a document ends."""
    pieces = np.split(ids, np.flatnonzero(ids == END_OF_DOCUMENT))
    texts = [
        piece[piece != END_OF_DOCUMENT].astype(np.uint8).tobytes().decode("utf-8", "replace")
        for piece in pieces
    ]
    return "<|end of document|>".join(texts)
