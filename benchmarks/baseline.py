"""The technique of lit-gpt's `packed_dataset.py`, for comparison: written anew, checks left out.

Reading: a memory map a chunk, one permutation over the blocks of `n_chunks` chunks, one
`np.frombuffer` and one cast to int64 a block. Building: one buffer of chunk_size tokens that is
written when the next array does not fit any more. No check, no checksum, no fsync unless asked for.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

HEADER = struct.Struct("<7sQBQ")


def read_blocks(
    files: list[str], *, n_chunks: int, block_size: int, seed: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yields each block of each chunk once, shuffled inside windows of `n_chunks` chunks.

    The chunks hold uint16.
    """
    rng = np.random.default_rng(seed)
    for start in range(0, len(files) - n_chunks + 1, n_chunks):
        maps = [np.memmap(file, mode="r", offset=24) for file in files[start : start + n_chunks]]
        buffers = [memoryview(one) for one in maps]
        blocks_per_chunk = maps[0].nbytes // 2 // block_size
        for index in rng.permutation(n_chunks * blocks_per_chunk):
            chunk, block = index // blocks_per_chunk, index % blocks_per_chunk
            offset = 2 * block * block_size
            yield np.frombuffer(buffers[chunk], np.uint16, block_size, offset).astype(np.int64)


class RawBuilder:
    """Packs uint16 arrays into chunk files."""

    def __init__(
        self, folder: Path, prefix: str, chunk_size: int, sep_token: int, *, sync: bool = False
    ) -> None:
        self._folder, self._prefix, self._sep_token, self._sync = folder, prefix, sep_token, sync
        self._buffer = np.full(chunk_size, sep_token, np.uint16)
        self._used = 0
        self._num_chunks = 0

    def add_array(self, array: npt.NDArray[Any]) -> None:
        """Appends the ids; a full buffer is written before the next id."""
        while self._used + len(array) > len(self._buffer):
            room = len(self._buffer) - self._used
            self._buffer[self._used :] = array[:room]
            self.write()
            array = array[room:]
        self._buffer[self._used : self._used + len(array)] = array
        self._used += len(array)

    def write(self) -> None:
        """Writes the buffer as one chunk, the unused part filled with the separator."""
        with (self._folder / f"{self._prefix}_{self._num_chunks:010d}.bin").open("wb") as file:
            file.write(HEADER.pack(b"LITPKDS", 1, 8, len(self._buffer)))
            file.write(self._buffer.tobytes())
            if self._sync:
                file.flush()
                os.fsync(file.fileno())
        self._num_chunks += 1
        self._buffer.fill(self._sep_token)
        self._used = 0
