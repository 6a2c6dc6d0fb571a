"""OLMo's and dolma's `.npy`: raw tokens in spite of the name, with documents in a `.csv.gz`.

The table beside `X.npy` is `X.csv.gz`, with `start,end` in its first two columns, in tokens. What
comes after the last document's end is in no document: OLMo's reader of documents leaves it out,
and so is it here. Without the table documents are found by the user's separator.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import FormatError
from packcore.formats.options import Options
from packcore.formats.raw import check_no_zeros, open_raw
from packcore.formats.reading import read_head
from packcore.formats.spans import PlainTokens, Separators
from packcore.protocols import TokenFile
from packcore.rawfiles import broken, file_bytes

__all__ = ["TableDocuments", "find", "open_files"]

_SUFFIX = ".csv.gz"
_NUMPY = b"\x93NUMPY"
_LONGEST_LINE = 2**16
_DTYPES = tuple(np.dtype(name) for name in ("<u2", "<u4", "u1", "<u8"))
_HINT = "OLMo writes uint16 or uint32, after the vocabulary"


@dataclass(frozen=True, slots=True)
class TableDocuments:
    """Documents whose starts and ends stand in a `.csv.gz`."""

    path: str
    """The table."""
    num_documents: int
    """Its rows."""

    def starts(self, tokens: TokenFile) -> npt.NDArray[np.int64]:
        """Returns where they begin, `(num_documents,)`, ascending."""
        rows = _read_rows(self.path, tokens.num_tokens)
        return np.fromiter((start for start, _ in rows), np.int64, self.num_documents)


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns the .npy of a raw .npy or of the table beside it."""
    data = path.removesuffix(_SUFFIX) + ".npy" if path.endswith(_SUFFIX) else path
    is_raw = data.endswith(".npy") and os.path.isfile(data)
    return data if is_raw and not read_head(data).startswith(_NUMPY) else None


def open_files(paths: Sequence[str], options: Options) -> Iterator[PlainTokens]:
    """Yields the tokens of each file. No document runs on from one file into the next."""
    for path in paths:
        table = path.removesuffix(".npy") + _SUFFIX
        has_table = os.path.isfile(table)
        file = open_raw(path, options, hint=_hint(path, table) if has_table else _HINT)
        if has_table:
            file = _with_table(file, table)
        elif options.sep_token is not None:
            file = dataclasses.replace(file, documents=Separators(options.sep_token))
        check_no_zeros(file)
        yield file


def _hint(path: str, table: str) -> str:
    """Returns which dtype the table's last end fits, for the message that asks for it."""
    size = file_bytes(path)
    _, last = _count_rows(table, size)
    fits = _fitting(size, last)
    return f"Its table fits {fits.name}" if fits else _HINT


def _fitting(size: int, num_tokens: int) -> np.dtype[Any] | None:
    found = (dtype for dtype in _DTYPES if num_tokens and dtype.itemsize * num_tokens == size)
    return next(found, None)


def _with_table(file: PlainTokens, table: str) -> PlainTokens:
    count, num_tokens = _count_rows(table, file.num_tokens)
    fits = _fitting(file_bytes(file.path), num_tokens)
    if fits and fits.itemsize != file.dtype.itemsize:
        raise broken(
            file.path,
            f"is not of dtype {file.dtype}: its table ends at token {num_tokens}, which fits "
            f"{fits.name}.",
            expected=fits,
            got=file.dtype,
        )
    if not count:
        raise broken(
            file.path,
            f"has no document: {table} is empty. A writer that met no document leaves zeros; leave "
            "both files out.",
            expected=1,
            got=0,
        )
    return dataclasses.replace(file, num_tokens=num_tokens, documents=TableDocuments(table, count))


def _count_rows(table: str, num_tokens: int) -> tuple[int, int]:
    """Returns the number of documents and the last one's end."""
    count, last = 0, 0
    for _, end in _read_rows(table, num_tokens):
        count, last = count + 1, end
    return count, last


def _read_rows(table: str, num_tokens: int) -> Iterator[tuple[int, int]]:
    """Yields each document's start and end, each beginning where the one before it ends."""
    file_bytes(table)
    at = row = 0
    try:
        with gzip.open(table) as file:
            for row, fields in enumerate(csv.reader(_lines(file))):
                start, end = int(fields[0]), int(fields[1])
                if start != at or not start <= end <= num_tokens or row > num_tokens:
                    raise broken(
                        table,
                        f"does not fit its data: row {row} is {start},{end}; expected a start of "
                        f"{at} and an end of at most {num_tokens} (tokens). The dtype is another "
                        "one, or the files do not belong together.",
                        expected=at,
                        got=start,
                    )
                yield start, end
                at = end
    except (ValueError, IndexError, csv.Error, EOFError, OSError, zlib.error) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{table} is not a table of documents: {error} (row {row}).", path=table
        ) from error


def _lines(file: gzip.GzipFile) -> Iterator[str]:
    """Yields the lines, none of them longer than a row can be, however well it was compressed."""
    while line := file.readline(_LONGEST_LINE):
        yield line.decode()
