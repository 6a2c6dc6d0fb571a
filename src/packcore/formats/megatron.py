"""Megatron's indexed datasets: `X.bin` with bare tokens, `X.idx` with lengths and documents.

The pointers in the index are never read: they follow from the lengths, and merges made before
September 2025 wrote overflowed ones. Which index files are Megatron's is decided with
`packcore.formats.mmididx`.

After the header of 34 bytes: i32 lengths[n], i64 pointers[n], i64 document index[d], and for
multimodal data a mode for each sequence. The document index holds the number of each document's
first sequence and ends with n. Modes have no flag; what is left of the file tells their form:

| left over | modes                                                              |
| --------- | ------------------------------------------------------------------ |
| 0         | none                                                               |
| n         | i8 at the end (since October 2023)                                 |
| 4n        | i32: at the end (September 2023), or behind the lengths (July 2023) |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packcore.errors import FormatError
from packcore.formats.mmididx import (
    MAGIC,
    Header,
    check_data,
    index_beside,
    read_header,
    sum_lengths,
)
from packcore.formats.options import Options
from packcore.formats.reading import slabs
from packcore.formats.spans import Documents, PlainTokens, with_separators
from packcore.protocols import TokenFile
from packcore.rawfiles import broken, map_array

__all__ = ["SequenceDocuments", "find", "open_files"]

_HEADER_SIZE = 34
_DTYPES: dict[int, tuple[npt.DTypeLike, ...]] = {
    1: (np.uint8,),
    2: (np.int8,),
    3: (np.int16,),
    4: (np.int32,),
    5: (np.int64,),
    6: (np.float64, np.uint16),  # uint16: DeepSpeed's data_sampling
    7: (np.float32, np.float64, np.uint32),  # float64 before June 2023; uint32: DeepSpeed
    8: (np.uint16, np.uint64),  # uint64: DeepSpeed
}


@dataclass(frozen=True, slots=True)
class SequenceDocuments:
    """Documents as runs of sequences, whose lengths stand in an index file."""

    path: str
    """The index file."""
    lengths_offset: int
    """The byte where the i32 lengths of the sequences begin."""
    num_sequences: int
    """How many there are."""
    index_offset: int | None = None
    """The byte where the i64 document index begins; None if each sequence is a document."""
    index_size: int = 0
    """Numbers in the document index, its last one, which begins no document, included."""

    @property
    def num_documents(self) -> int:
        """Documents, empty ones included."""
        return self.num_sequences if self.index_offset is None else max(0, self.index_size - 1)

    def starts(self, tokens: TokenFile) -> npt.NDArray[np.int64]:  # noqa: ARG002 - the protocol's
        """Returns where they begin, `(num_documents,)`, ascending: cumulated lengths."""
        lengths = map_array(self.path, np.dtype("<i4"), self.lengths_offset, self.num_sequences)
        starts = np.zeros(self.num_sequences + 1, np.int64)
        np.cumsum(lengths, out=starts[1:], dtype=np.int64)
        if self.index_offset is None:
            return starts[:-1]
        first = map_array(self.path, np.dtype("<i8"), self.index_offset, self.num_documents)
        if len(first) and not (first.min() >= 0 and first.max() <= self.num_sequences):
            raise broken(
                self.path,
                "has changed since it was opened: its document index names sequences it has not.",
                expected=self.num_sequences,
                got=int(first.max()),
            )
        found: npt.NDArray[np.int64] = starts[first]
        return found


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns the index file of a .bin or .idx, if it is not of fairseq's dialect."""
    index = index_beside(path, MAGIC)
    try:
        return None if index is None or read_header(index).is_fairseq else index
    except FormatError:
        return index  # opening it says what is wrong


def open_files(paths: Sequence[str], options: Options) -> Iterator[PlainTokens]:
    """Yields the tokens of each index file's data file."""
    for path in paths:
        file = _open(path, options)
        if file.documents is None and options.sep_token is not None:
            yield from with_separators([file], options.sep_token, "after")
        else:
            yield file


def _open(path: str, options: Options) -> PlainTokens:
    header = read_header(path)
    index_offset = _find_document_index(header)
    num_tokens = sum_lengths(path, _HEADER_SIZE, header.num_sequences)
    data = path.removesuffix(".idx") + ".bin"
    candidates = _DTYPES.get(header.code, ())
    dtype = check_data(path, data, header.code, num_tokens, candidates, options)
    problem = _check_document_index(header, index_offset)
    documents: Documents | None = None
    if not problem:
        documents = SequenceDocuments(
            path, _HEADER_SIZE, header.num_sequences, index_offset, header.num_documents
        )
    return PlainTokens(
        path=data, dtype=dtype, num_tokens=num_tokens, documents=documents, problem=problem
    )


def _find_document_index(header: Header) -> int:
    """Returns the byte where the document index begins; the size of the file has to add up."""
    count = header.num_sequences
    plain = _HEADER_SIZE + 12 * count
    left = header.file_bytes - plain - 8 * header.num_documents
    if left in (0, count):
        return plain
    if left == 4 * count:
        if _is_document_index(header, plain) == _is_document_index(header, plain + left):
            raise broken(
                header.path,
                "has modes of 4 bytes, but no document index before or behind them.",
                expected="a document index that begins with 0 and ends with the last sequence",
                got=None,
                offset=plain,
            )
        return plain if _is_document_index(header, plain) else plain + left
    raise broken(
        header.path,
        f"does not add up: {count} sequences and {header.num_documents} numbers in the document "
        f"index need {header.file_bytes - left} bytes, or {count} or {4 * count} more with modes; "
        f"got {header.file_bytes}. Copy it or make it again.",
        expected=header.file_bytes - left,
        got=header.file_bytes,
        offset=min(header.file_bytes, header.file_bytes - left),
    )


def _is_document_index(header: Header, offset: int) -> bool:
    return not _check_document_index(header, offset)


def _check_document_index(header: Header, offset: int) -> str:
    """Returns what is wrong with the document index, as a sentence; "" if nothing is."""
    count, size = header.num_sequences, header.num_documents
    index = map_array(header.path, np.dtype("<i8"), offset, size)
    name = f"The document index of {header.path}"
    if size < 2 and count:  # noqa: PLR2004 - the least that one document needs
        return f"{name} is missing, as merges made before May 2022 left it."
    if size and index[0] != 0:
        return f"{name} is damaged: it begins with {index[0]}; expected 0."
    if size and index[-1] != count:
        return f"{name} is damaged: it ends with {index[-1]}; expected {count}, the sequences."
    for start, stop in slabs(size):
        part = index[start : stop + 1]
        if (part[1:] < part[:-1]).any():
            return f"{name} is damaged: its numbers do not ascend."
    return ""
