"""The files and documents that the contests work on: random, but the same in every run."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from benchmarks.harness import Sizes

VOCAB_SIZE = 32_000
UINT16_CODE = 8


def write_chunks(folder: Path, sizes: Sizes) -> list[str]:
    """Writes uint16 chunks without packcore, and returns their names in order."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    names = []
    for index in range(sizes.num_chunks):
        path = folder / f"train_{index:010d}.bin"
        header = struct.pack("<7sQBQ", b"LITPKDS", 1, UINT16_CODE, sizes.chunk_size)
        tokens = rng.integers(VOCAB_SIZE, size=sizes.chunk_size, dtype=np.uint16)
        path.write_bytes(header + tokens.tobytes())
        names.append(str(path))
    return names


def make_documents(sizes: Sizes, mean_length: int) -> list[npt.NDArray[Any]]:
    """Returns documents of about `mean_length` tokens, some much shorter and some much longer.

    Together they have about 1,000 tokens for each of `sizes.num_documents`.
    """
    rng = np.random.default_rng(2)
    num_documents = sizes.num_documents * 1000 // mean_length
    lengths = rng.gamma(2.0, mean_length / 2, size=num_documents).astype(np.int64) + 1
    flat = rng.integers(VOCAB_SIZE, size=int(lengths.sum()), dtype=np.uint16)
    return np.split(flat, np.cumsum(lengths)[:-1])
