"""Chunk files for the tests of the reference's order."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from packcore.format import VERSION, ChunkHeader

CHUNK_SIZE = 10


def write_chunks(folder, num_files, *, chunk_size=CHUNK_SIZE, dtype="uint16", prefix="train"):
    """Chunk i holds i * chunk_size, i * chunk_size + 1, ..."""
    header = ChunkHeader(VERSION, np.dtype(dtype), chunk_size).to_bytes()
    paths = []
    for index in range(num_files):
        tokens = np.arange(index * chunk_size, (index + 1) * chunk_size).astype(dtype)
        path = Path(folder) / f"{prefix}_{index:010d}.bin"
        path.write_bytes(header + tokens.tobytes())
        paths.append(str(path))
    return paths


def tokens_of(blocks):
    return [block.tolist() for block in blocks]


def take(iterator, count):
    return tokens_of(itertools.islice(iterator, count))
