"""fairseq's indexed datasets: `X.bin` with tokens, `X.idx` with lengths, in two generations.

The newer one (`MMIDIDX`, see `packcore.formats.mmididx`) has i32 lengths from byte 26 on and bare
tokens; one item is one document. The older one (`TNTIDX`), all u64 and i64:

| offset | what                                                              |
| ------ | ----------------------------------------------------------------- |
| 0      | `TNTIDX`, two zero bytes                                          |
| 8      | version, always 1                                                 |
| 16     | dtype code                                                        |
| 24     | bytes of a token                                                  |
| 32     | number of items n                                                 |
| 40     | number of sizes s, n for rows of tokens                           |
| 48     | dim_offsets[n + 1], data_offsets[n + 1] in tokens, sizes[s]       |

fairseq stores each token plus one there. Megatron, NeoX and DeepSpeed do not, and have a number of
documents d at 48, the arrays from 56 on, and a document index[d] at the end; the size of the file
tells the two apart.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import FormatError
from packcore.formats import mmididx
from packcore.formats.megatron import SequenceDocuments
from packcore.formats.options import Options
from packcore.formats.reading import read_head, slabs
from packcore.formats.spans import Documents, PlainTokens
from packcore.protocols import Access, TokenFile
from packcore.rawfiles import broken, file_bytes, map_array

__all__ = ["OffsetDocuments", "ShiftedTokens", "find", "open_files"]

_MAGIC = b"TNTIDX\x00\x00"
_HEADER = struct.Struct("<8s5Q")
_SIZE = 48
_DTYPES: dict[int, tuple[npt.DTypeLike, ...]] = {
    1: (np.uint8,),
    2: (np.int8,),
    3: (np.int16,),
    4: (np.int32,),
    5: (np.int64,),
    6: (np.float64,),
    7: (np.float64,),
    8: (np.uint16,),
    9: (np.uint32,),
    10: (np.uint64,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedTokens(PlainTokens):
    """Tokens that are stored plus one."""

    @property
    def access(self) -> Access:
        """One has to be taken off each token that is copied."""
        return "read"

    def map(self) -> npt.NDArray[Any]:
        """Returns a copy of all tokens, `(num_tokens,)`."""
        out = np.empty(self.num_tokens, self.dtype)
        self.read(0, out)
        return out

    def read(self, start: int, out: npt.NDArray[Any]) -> None:
        """Fills `out`, `(n,)`, contiguous, in the stored dtype, with the tokens from `start` on."""
        PlainTokens.read(self, start, out)
        if self.dtype.kind == "u" and not out.all():
            raise broken(
                self.path,
                "has a stored 0: fairseq stores each id plus one. The file is damaged.",
                expected=1,
                got=0,
                offset=self.dtype.itemsize * (start + int(np.argmin(out))),
            )
        out -= 1


@dataclass(frozen=True, slots=True)
class OffsetDocuments:
    """Documents whose items' starts stand in an index file, in tokens."""

    path: str
    """The index file."""
    offset: int
    """The byte where the starts begin."""
    num_items: int
    """Items, each with a start."""
    index_offset: int | None = None
    """The byte where the i64 document index begins; None if each item is a document."""
    index_size: int = 0
    """Numbers in the document index, its last one, which begins no document, included."""

    @property
    def num_documents(self) -> int:
        """Documents, empty ones included."""
        return self.num_items if self.index_offset is None else max(0, self.index_size - 1)

    def starts(self, tokens: TokenFile) -> npt.NDArray[np.int64]:  # noqa: ARG002 - the protocol's
        """Returns where they begin, `(num_documents,)`, ascending."""
        starts = map_array(self.path, np.dtype("<i8"), self.offset, self.num_items + 1)
        if self.index_offset is None:
            return np.array(starts[:-1], np.int64)
        first = map_array(self.path, np.dtype("<i8"), self.index_offset, self.num_documents)
        return np.array(starts[first], np.int64)


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns the index file of a .bin or .idx, of either generation."""
    old = mmididx.index_beside(path, _MAGIC)
    if old is not None:
        return old
    index = mmididx.index_beside(path, mmididx.MAGIC)
    try:
        return index if index is not None and mmididx.read_header(index).is_fairseq else None
    except FormatError:
        return None


def open_files(paths: Sequence[str], options: Options) -> Iterator[PlainTokens]:
    """Yields the tokens of each index file's data file."""
    for path in paths:
        is_old = read_head(path).startswith(_MAGIC)
        yield _open_old(path, options) if is_old else _open(path, options)


def _data(path: str) -> str:
    return path.removesuffix(".idx") + ".bin"


def _open(path: str, options: Options) -> PlainTokens:
    header = mmididx.read_header(path)
    count, start = header.num_sequences, mmididx.FAIRSEQ_SIZE
    num_tokens = mmididx.sum_lengths(path, start, count)
    candidates = _DTYPES.get(header.code, ())
    dtype = mmididx.check_data(path, _data(path), header.code, num_tokens, candidates, options)
    documents = SequenceDocuments(path, start, count)
    return PlainTokens(path=_data(path), dtype=dtype, num_tokens=num_tokens, documents=documents)


def _open_old(path: str, options: Options) -> PlainTokens:
    size = file_bytes(path)
    head = read_head(path, _SIZE + 8)
    if len(head) < _SIZE:
        raise broken(
            path,
            f"is cut off inside its header: expected at least {_SIZE} bytes, got {size}.",
            expected=_SIZE,
            got=size,
            offset=size,
        )
    _, version, code, itemsize, count, num_sizes = _HEADER.unpack_from(head)
    if version != 1 or num_sizes != count:
        raise broken(
            path,
            f"has version {version} and {num_sizes} sizes for {count} items; expected version 1 "
            "and one size for each.",
            expected=(1, count),
            got=(version, num_sizes),
            offset=8,
        )
    arrays = 8 * (3 * count + 2)
    num_documents = int.from_bytes(head[_SIZE : _SIZE + 8], "little")
    is_fairseq = size == _SIZE + arrays
    if not is_fairseq and size != _SIZE + 8 + arrays + 8 * num_documents:
        raise broken(
            path,
            f"does not add up: {count} items need {_SIZE + arrays} bytes; got {size}. Copy it or "
            "make it again.",
            expected=_SIZE + arrays,
            got=size,
            offset=min(size, _SIZE + arrays),
        )
    first = _SIZE + 8 * (not is_fairseq) + 8 * (count + 1)
    num_tokens = _check_offsets(path, first, count + 1)
    candidates = tuple(
        dtype for dtype in _DTYPES.get(code, ()) if np.dtype(dtype).itemsize == itemsize
    )
    data = _data(path)
    dtype = mmididx.check_data(path, data, code, num_tokens, candidates, options)
    if is_fairseq:
        documents: Documents = OffsetDocuments(path, first, count)
        return ShiftedTokens(path=data, dtype=dtype, num_tokens=num_tokens, documents=documents)
    index = size - 8 * num_documents
    documents = OffsetDocuments(path, first, count, index, num_documents)
    _check_document_index(path, index, num_documents, count)
    return PlainTokens(path=data, dtype=dtype, num_tokens=num_tokens, documents=documents)


def _check_offsets(path: str, offset: int, count: int) -> int:
    """Returns the last of ascending i64 numbers that begin with 0."""
    numbers = map_array(path, np.dtype("<i8"), offset, count)
    ascend = all(
        (numbers[start : stop + 1][1:] >= numbers[start : stop + 1][:-1]).all()
        for start, stop in slabs(count)
    )
    if numbers[0] != 0 or not ascend:
        raise broken(
            path,
            "is damaged: the starts of its items do not ascend from 0. Make it again.",
            expected="ascending starts",
            got=int(numbers[0]),
            offset=offset,
        )
    return int(numbers[-1])


def _check_document_index(path: str, offset: int, size: int, count: int) -> None:
    last = _check_offsets(path, offset, size) if size else 0
    if last != count:
        raise broken(
            path,
            f"is damaged: its document index ends with {last}; expected {count}, the items.",
            expected=count,
            got=last,
            offset=offset,
        )
