"""`MMIDIDX` index files: their header, and which dialect they are of.

fairseq and Megatron write the same magic and version, but another layout and other dtype codes.
What the dialects make of it is for `packcore.formats.megatron` and `packcore.formats.fairseq`.

| offset | bytes | what                                               |
| ------ | ----- | -------------------------------------------------- |
| 0      | 9     | `MMIDIDX`, two zero bytes                          |
| 9      | 8     | version, u64, always 1                             |
| 17     | 1     | dtype code, u8                                     |
| 18     | 8     | number of sequences n, u64                         |
| 26     | 8     | Megatron alone: length d of the document index, u64 |
| 26, 34 | rest  | i32 lengths[n], i64 pointers[n], ...               |

(sources: `fairseq/data/indexed_dataset.py`, `megatron/core/datasets/indexed_dataset.py`.)
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import ArgumentError, FormatError
from packcore.formats.options import Options
from packcore.formats.reading import read_head, slabs
from packcore.rawfiles import broken, file_bytes, map_array

__all__ = [
    "FAIRSEQ_SIZE",
    "MAGIC",
    "Header",
    "check_data",
    "index_beside",
    "read_header",
    "sum_lengths",
]

MAGIC = b"MMIDIDX\x00\x00"
FAIRSEQ_SIZE = 26
"""Bytes of a fairseq header; Megatron's has 8 more."""
_HEADER = struct.Struct("<9sQBQQ")
_COMMON = struct.Struct("<9sQBQ")


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an index file; which dialect it is of follows from the size of the file."""

    path: str
    code: int
    num_sequences: int
    num_documents: int
    """Length of the document index; only Megatron has one."""
    file_bytes: int

    @property
    def is_fairseq(self) -> bool:
        """Whether it is of fairseq's dialect. The sizes of the two never coincide."""
        return self.file_bytes == FAIRSEQ_SIZE + 12 * self.num_sequences


def index_beside(path: str, magic: bytes) -> str | None:
    """Returns the index of a .bin or .idx file, if it begins with `magic`."""
    stem, suffix = os.path.splitext(path)
    index = stem + ".idx"
    return index if suffix in (".bin", ".idx") and read_head(index).startswith(magic) else None


def read_header(path: str) -> Header:
    """Reads the header of an index file.

    Raises:
        FormatError: it is cut off, or of another version.
    """
    size = file_bytes(path)
    head = read_head(path, _HEADER.size)
    if size < _COMMON.size:
        raise broken(
            path,
            f"is cut off inside its header: expected at least {_COMMON.size} bytes, got {size}.",
            expected=_COMMON.size,
            got=size,
            offset=size,
        )
    _, version, code, num_sequences = _COMMON.unpack_from(head)
    if version != 1:
        raise broken(
            path,
            f"has index version {version}; expected 1, the only one there is.",
            expected=1,
            got=version,
            offset=9,
        )
    num_documents = _HEADER.unpack(head)[4] if len(head) == _HEADER.size else 0
    return Header(path, code, num_sequences, num_documents, size)


def sum_lengths(path: str, offset: int, count: int) -> int:
    """Returns the sum of the i32 lengths in an index file.

    Raises:
        FormatError: one of them is negative.
    """
    lengths = map_array(path, np.dtype("<i4"), offset, count)
    total = 0
    for start, stop in slabs(count):
        part = lengths[start:stop]
        if part.min() < 0:
            index = start + int(np.argmax(part < 0))
            raise broken(
                path,
                f"has length {lengths[index]} for sequence {index}; expected at least 0 (tokens).",
                expected=0,
                got=int(lengths[index]),
                offset=offset + 4 * index,
            )
        total += int(part.sum(dtype=np.int64))
    return total


def check_data(
    index: str,
    data: str,
    code: int,
    num_tokens: int,
    candidates: tuple[npt.DTypeLike, ...],
    options: Options,
) -> np.dtype[Any]:
    """Returns the dtype of the data file: the one of `candidates` that its size fits.

    Programs disagree on what the codes mean; the number of tokens and the size decide.

    Args:
        index: the index file.
        data: the data file.
        code: the dtype code in the index.
        num_tokens: the sum of the lengths in the index.
        candidates: what the code may mean.
        options: with the user's dtype, which decides between two of the same size.

    Raises:
        FormatError: none of them fits.
        ArgumentError: more than one does.
    """
    if not candidates:
        raise broken(
            index,
            f"has dtype code {code}, which no writer uses.",
            expected=None,
            got=code,
            offset=17,
        )
    size = file_bytes(data)
    dtypes = [np.dtype(candidate).newbyteorder("<") for candidate in candidates]
    fitting = [dtype for dtype in dtypes if dtype.itemsize * num_tokens == size]
    if options.dtype is not None and options.dtype in fitting:
        return options.dtype
    if len(fitting) == 1 or (fitting and not num_tokens):
        return fitting[0]
    if fitting:
        listed = " or ".join(dtype.name for dtype in fitting)
        raise ArgumentError(
            f"dtype must be named for {data}: code {code} of its index means {listed}, and both "
            "fit its size. Choose with packcore.open(..., dtype=...).",
            name="dtype",
        )
    raise _disagree(index, data, num_tokens, dtypes[0], size)


def _disagree(
    index: str, data: str, num_tokens: int, dtype: np.dtype[Any], size: int
) -> FormatError:
    wanted = num_tokens * dtype.itemsize
    what = "is truncated" if size < wanted else "has more data than its index knows"
    return broken(
        data,
        f"{what}: {index} says {num_tokens} tokens of {dtype}, so {wanted} bytes; got {size}. "
        "Copy both files again, or make them again.",
        expected=wanted,
        got=size,
        offset=min(size, wanted),
    )
