"""LITPKDS version 1, the chunk file of lit-gpt and TinyLlama: header, dtype codes, payload.

This is the only module that knows a byte offset. Which files belong together is for
`packcore.manifest`, what the tokens mean is for `packcore.dataset`.

The layout, all little-endian (source: `packed_dataset.py` of lit-gpt and of TinyLlama):

| offset | bytes | what                            |
| ------ | ----- | ------------------------------- |
| 0      | 7     | `LITPKDS`                       |
| 7      | 8     | version, u64, always 1          |
| 15     | 1     | dtype code, u8, see `dtypes`    |
| 16     | 8     | chunk_size in tokens, u64       |
| 24     | rest  | chunk_size tokens of that dtype |
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import ArgumentError, FormatError, NoDataError
from packcore.rawfiles import file_bytes, map_array, opened, read_into

__all__ = [
    "HDR_MAGIC",
    "HDR_SIZE",
    "VERSION",
    "ChunkHeader",
    "code",
    "describe_head",
    "dtypes",
    "map_tokens",
    "read_header",
    "read_tokens",
]

HDR_MAGIC = b"LITPKDS"
HDR_SIZE = 24
"""Bytes before the payload."""
VERSION = 1

dtypes: dict[int, type[np.generic]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float32,
    7: np.float64,
    8: np.uint16,
}
"""dtype code -> NumPy type, in the reference's order."""

_HEADER = struct.Struct("<7sQBQ")

_MAGICS: tuple[tuple[bytes, str], ...] = (
    (b"MMIDIDX\x00\x00", "a Megatron or fairseq index (.idx)"),
    (b"TNTIDX\x00\x00", "a legacy fairseq index (.idx)"),
    (b"HUFFIDX\x00\x00", "a Huffman-coded fairseq index (.idx)"),
    (struct.pack("<i", 20240520), "an llm.c token file (GPT-2)"),
    (struct.pack("<i", 20240801), "an llm.c token file (Llama 3)"),
    (struct.pack("<i", 20240522), "an llm.c evaluation file"),
    (b"\x93NUMPY", "a NumPy .npy file"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow IPC file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip file; decompress it first"),
    (b"\x28\xb5\x2f\xfd", "a zstandard file; decompress it first"),
    (b"PK\x03\x04", "a zip archive, as np.savez and torch.save write"),
    (b"\x80\x02", "a Python pickle"),
    (b"version https://git-lfs", "a Git LFS pointer; run `git lfs pull` to fetch the file"),
    (b"{", "JSON text"),
)


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The header of one chunk file.

    Examples:
        >>> header = ChunkHeader(VERSION, np.dtype("uint16"), 1024)
        >>> header.to_bytes()[:7], header.file_bytes
        (b'LITPKDS', 2072)
    """

    version: int
    """The format's version, 1."""
    dtype: np.dtype[Any]
    """The tokens' dtype on disk, little-endian."""
    chunk_size: int
    """Tokens in the file, fill included."""

    @property
    def file_bytes(self) -> int:
        """The size in bytes of a whole file with this header."""
        return HDR_SIZE + self.chunk_size * self.dtype.itemsize

    def to_bytes(self) -> bytes:
        """Returns the 24 bytes that stand at the front of the file."""
        return _HEADER.pack(HDR_MAGIC, self.version, code(self.dtype), self.chunk_size)


def code(dtype: npt.DTypeLike | None) -> int:
    """Returns the dtype code of `dtype`.

    Raises:
        ArgumentError: LITPKDS has no code for it (uint32, uint64, bool, big-endian ...).

    Examples:
        >>> code(np.uint16), code("int32")
        (8, 4)
    """
    with contextlib.suppress(TypeError):
        for number, known in dtypes.items():
            if dtype is not None and np.dtype(dtype) == np.dtype(known).newbyteorder("<"):
                return number
    names = ", ".join(np.dtype(known).name for known in dtypes.values())
    raise ArgumentError(f"dtype must be one of {names}; got {dtype!r}.", name="dtype", value=dtype)


def read_header(path: str | os.PathLike[str]) -> ChunkHeader:
    """Reads and checks the header of a chunk file, its size included.

    Args:
        path: the file.

    Raises:
        NoDataError: there is no such file, it is a folder, or it cannot be read.
        FormatError: the file is short, foreign, of an unknown version or dtype code, truncated,
            or has trailing bytes.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        raise NoDataError(
            f"A chunk must be a file; {path} is a folder. Open it with packcore.open.", path=path
        )
    with opened(path) as file:
        return _parse_header(path, file.read(HDR_SIZE), os.fstat(file.fileno()).st_size)


def _parse_header(path: str, head: bytes, file_bytes: int) -> ChunkHeader:
    if not head.startswith(HDR_MAGIC):
        raise _foreign(path, head, file_bytes)
    if len(head) < HDR_SIZE:
        raise FormatError(
            f"{path} is cut off inside its header: expected at least {HDR_SIZE} bytes, got "
            f"{file_bytes}. Delete it and build it again.",
            path=path,
            offset=file_bytes,
            expected=HDR_SIZE,
            got=file_bytes,
        )
    _, version, dtype_code, chunk_size = _HEADER.unpack(head)
    if version != VERSION:
        raise FormatError(
            f"{path} has LITPKDS version {version}; expected {VERSION}, the only one there is.",
            path=path,
            offset=7,
            expected=VERSION,
            got=version,
        )
    if dtype_code not in dtypes:
        raise FormatError(
            f"{path} has dtype code {dtype_code}; expected one of 1 to {max(dtypes)}.",
            path=path,
            offset=15,
            expected=sorted(dtypes),
            got=dtype_code,
        )
    header = ChunkHeader(version, np.dtype(dtypes[dtype_code]), chunk_size)
    _check_size(path, header, file_bytes)
    return header


def _check_size(path: str, header: ChunkHeader, file_bytes: int) -> None:
    if header.chunk_size == 0:
        raise FormatError(
            f"{path} has chunk_size 0; expected at least 1 (tokens).",
            path=path,
            offset=16,
            expected=1,
            got=0,
        )
    if file_bytes == header.file_bytes:
        return
    what = "is truncated" if file_bytes < header.file_bytes else "has trailing bytes"
    raise FormatError(
        f"{path} {what}: its header says {header.chunk_size} tokens of {header.dtype}, so "
        f"{header.file_bytes} bytes; got {file_bytes}. Copy or build it again.",
        path=path,
        offset=min(file_bytes, header.file_bytes),
        expected=header.file_bytes,
        got=file_bytes,
    )


def describe_head(head: bytes, file_bytes: int) -> str:
    """Returns what a file seems to be, as the end of a sentence.

    Args:
        head: its first bytes, 64 or so.
        file_bytes: its size.

    Examples:
        >>> describe_head(b"PAR1....", 4000)
        'it looks like a Parquet file'
    """
    if not head:
        return "it is empty"
    looks = next((what for magic, what in _MAGICS if head.startswith(magic)), None)
    if looks:
        return f"it looks like {looks}"
    return f"it starts with {head[: len(HDR_MAGIC)]!r} and has {file_bytes} bytes"


def _foreign(path: str, head: bytes, file_bytes: int) -> FormatError:
    return FormatError(
        f"{path} is not a LITPKDS chunk: expected {HDR_MAGIC!r} at byte 0, but "
        f"{describe_head(head, file_bytes)}.",
        path=path,
        offset=0,
        expected=HDR_MAGIC,
        got=head[: len(HDR_MAGIC)],
    )


def map_tokens(path: str | os.PathLike[str], header: ChunkHeader) -> npt.NDArray[Any]:
    """Maps a chunk's tokens into memory, read-only.

    The map lives as long as the array or any view of it; there is nothing to close.

    Args:
        path: the file.
        header: its header, from `read_header`.

    Returns:
        `(chunk_size,)`, in the stored dtype.

    Raises:
        FormatError: the file has shrunk since its header was read.
    """
    _check_unchanged(os.fspath(path), header)
    return map_array(os.fspath(path), header.dtype, HDR_SIZE, header.chunk_size)


def read_tokens(
    path: str | os.PathLike[str], header: ChunkHeader, start: int, out: npt.NDArray[Any]
) -> None:
    """Reads `len(out)` tokens from token `start` on into `out`, without a map.

    Args:
        path: the file.
        header: its header, from `read_header`.
        start: the first token, counted from the chunk's start.
        out: `(n,)`, contiguous, in the stored dtype; filled.

    Raises:
        FormatError: the file ends before the last token.
    """
    _check_unchanged(os.fspath(path), header)
    read_into(os.fspath(path), HDR_SIZE + start * header.dtype.itemsize, out)


def _check_unchanged(path: str, header: ChunkHeader) -> None:
    _check_size(path, header, file_bytes(path))
