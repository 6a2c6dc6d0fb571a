"""Token files of datatrove and nanotron: `X.ds` with bare tokens, `X.ds.index` with their ends.

The index holds the cumulative ends of documents in tokens, u64 (u32 before July 2023), without a
header. Its last number and the size of `X.ds` give the size of a token. `X.ds.metadata` says it
too, in lines of text: `tokenizer|token_size`, then the number of tokens. `X.ds.loss` is a mask
that packcore leaves alone (source: `pipeline/tokens/tokenizer.py` of datatrove).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import FormatError
from packcore.formats.options import Options
from packcore.formats.raw import open_raw
from packcore.formats.reading import read_head, slabs
from packcore.formats.spans import PlainTokens, with_separators
from packcore.protocols import TokenFile
from packcore.rawfiles import broken, file_bytes, map_array

__all__ = ["EndDocuments", "find", "open_files"]

_BESIDE = (".index", ".loss", ".metadata")
_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


@dataclass(frozen=True, slots=True)
class EndDocuments:
    """Documents whose cumulative ends stand in a file."""

    path: str
    """The index file."""
    dtype: np.dtype[Any]
    """Of its numbers."""
    num_documents: int
    """How many there are."""

    def starts(self, tokens: TokenFile) -> npt.NDArray[np.int64]:  # noqa: ARG002 - the protocol's
        """Returns where they begin, `(num_documents,)`, ascending."""
        starts = np.zeros(self.num_documents, np.int64)
        starts[1:] = map_array(self.path, self.dtype, 0, self.num_documents)[:-1]
        return starts


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns the .ds of a .ds or of a file beside it; a merged total has none."""
    data = os.path.splitext(path)[0] if path.endswith(_BESIDE) else path
    return data if data.endswith(".ds") and os.path.isfile(data) else None


def open_files(paths: Sequence[str], options: Options) -> Iterator[PlainTokens]:
    """Yields the tokens of each file."""
    files = [_open(path, options) for path in paths]
    known = [file for file in files if file.documents is not None]
    if known or options.sep_token is None:
        return iter(files)
    return with_separators(files, options.sep_token, "after")


def _open(path: str, options: Options) -> PlainTokens:
    size = file_bytes(path)
    said = _read_metadata(path + ".metadata")
    if os.path.isfile(path + ".index"):
        documents, num_tokens = _read_index(path, size)
        itemsize = size // num_tokens if num_tokens else (said or (2, 0))[0]
        file = PlainTokens(
            path=path, dtype=_DTYPES[itemsize], num_tokens=num_tokens, documents=documents
        )
    else:
        dtype = _DTYPES[said[0]] if said and options.dtype is None else options.dtype
        hint = "datatrove writes uint16, or uint32 above 65536 ids"
        file = open_raw(path, Options(dtype), hint=hint)
    if said and said != (file.dtype.itemsize, file.num_tokens):
        raise broken(
            path,
            f"disagrees with its .metadata: {said[1]} tokens of {said[0]} bytes there, "
            f"{file.num_tokens} of {file.dtype.itemsize} here. Copy all files again.",
            expected=said,
            got=(file.dtype.itemsize, file.num_tokens),
        )
    return file


def _read_index(path: str, size: int) -> tuple[EndDocuments, int]:
    """Returns the documents and the number of tokens; the form that fits the data's size."""
    index = path + ".index"
    index_bytes = file_bytes(index)
    got = None
    for dtype in (np.dtype("<u8"), np.dtype("<u4")):
        if index_bytes % dtype.itemsize:
            continue
        ends = map_array(index, dtype, 0, index_bytes // dtype.itemsize)
        last = int(ends[-1]) if len(ends) else 0
        got = last if got is None else got
        if size in (last * 2, last * 4):
            _check_ascending(index, ends)
            return EndDocuments(index, dtype, len(ends)), last
    raise broken(
        path,
        f"disagrees with its .index: that ends with {got}, so {size} bytes should be "
        f"{2 * (got or 0)} or {4 * (got or 0)}. One of the files is truncated; copy both again.",
        expected=(2 * (got or 0), 4 * (got or 0)),
        got=size,
        offset=size,
    )


def _check_ascending(index: str, ends: npt.NDArray[Any]) -> None:
    for start, stop in slabs(len(ends)):
        part = ends[start : stop + 1]
        if (part[1:] < part[:-1]).any():
            at = start + int(np.argmax(part[1:] < part[:-1])) + 1
            raise broken(
                index,
                f"is damaged: end {at} is {ends[at]}; expected at least {ends[at - 1]}.",
                expected=int(ends[at - 1]),
                got=int(ends[at]),
                offset=at * ends.dtype.itemsize,
            )


def _read_metadata(path: str) -> tuple[int, int] | None:
    """Returns the size of a token in bytes and the number of tokens; None if nothing says it."""
    if not os.path.isfile(path):
        return None
    try:
        lines = read_head(path, 2**16).decode().splitlines()
        itemsize, num_tokens = int(lines[0].rpartition("|")[2]), int(lines[1])
        return _DTYPES[itemsize].itemsize, num_tokens
    except (ValueError, IndexError, KeyError) as error:
        raise FormatError(
            f"{path} is damaged: expected `tokenizer|token_size` and the number of tokens in its "
            f"first two lines ({error!r}).",
            path=path,
        ) from error
