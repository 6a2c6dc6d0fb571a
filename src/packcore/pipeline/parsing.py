"""Makes documents of a piece: text, or ids that somebody made already.

What cannot be made into a document comes out as a ValueError in its place, so that whoever
writes the corpus can name the line. Ids of text are for `packcore.pipeline.encoding`.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packcore.pipeline import tables
from packcore.pipeline.reading import MAX_DOCUMENT_BYTES, open_input, say_why
from packcore.pipeline.work import Piece

__all__ = ["Found", "Parsed", "parse"]


_Check = Callable[[Any], str | npt.NDArray[Any] | None]
"""Makes a document; None for an empty line. Raises a ValueError."""


class Found(NamedTuple):
    """A document, or why there is none."""

    line: int | None
    """The line or row, counted from the piece's first; None for a whole file."""
    value: str | npt.NDArray[Any] | ValueError
    """Text, ids as they came, or what is wrong."""


class Parsed(NamedTuple):
    """What a piece holds."""

    num_lines: int
    """Its lines, empty ones included."""
    found: list[Found]


def parse(piece: Piece, column: str, *, as_ids: bool) -> Parsed:
    """Makes documents of a piece.

    Empty lines are no documents; an empty text, row or file is one.

    Args:
        piece: what to read, or with what in it.
        column: the field of a JSON line that holds the document.
        as_ids: whether documents are lists of ids, or text.
    """
    try:
        if piece.form == "broken":
            raise ValueError((piece.payload or b"").decode())  # noqa: TRY301 - as if read here
        if piece.form == "rows":
            return _parse_rows(piece.payload or b"", as_ids=as_ids)
        if piece.form == "file":
            return Parsed(1, [Found(None, _read_file(piece).decode())])
        lines = list(_read_lines(piece) if piece.payload is None else _split(piece.payload))
    except (MemoryError, ImportError):
        raise
    except Exception as error:  # noqa: BLE001 - of the file, of pyarrow, of a decompressor
        return Parsed(0, [Found(None, ValueError(say_why(error)))])
    if piece.start == 0 and lines and isinstance(lines[0], bytes):
        lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
    check: _Check = _line_text if piece.form == "lines" else partial(_parse_json, column, as_ids)
    return Parsed(len(lines), list(_check_all(check, lines)))


def _parse_rows(payload: bytes, *, as_ids: bool) -> Parsed:
    rows: list[Any] = tables.parse_ids(payload) if as_ids else tables.parse_texts(payload)
    return Parsed(len(rows), list(_check_all(_check_ids if as_ids else _check_text, rows)))


def _check_all(check: _Check, values: list[Any]) -> Iterator[Found]:
    for index, value in enumerate(values):
        try:
            found = value if isinstance(value, ValueError) else check(value)
        except (ValueError, RecursionError) as error:
            found = ValueError(say_why(error))
        if found is not None:
            yield Found(index, found)


def _read_file(piece: Piece) -> bytes:
    with open(piece.path, "rb") as raw, open_input(raw, piece) as stream:
        content = stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise ValueError(
            f"a text file of more than {MAX_DOCUMENT_BYTES} bytes is one document; take each line "
            "for one"
        )
    return content


def _split(block: bytes) -> list[bytes | ValueError]:
    lines: list[bytes | ValueError] = [*block.split(b"\n")]
    return lines[:-1] if block.endswith(b"\n") else lines


def _read_lines(piece: Piece) -> Iterator[bytes | ValueError]:
    """Yields the lines of a file that begin in [start, stop)."""
    with open(piece.path, "rb") as file:
        at = piece.start
        if at:
            # The line that the byte before lies in ends here, or belongs to an earlier piece.
            file.seek(at - 1)
            at += len(file.readline(piece.stop - at + 1)) - 1
        while at < piece.stop:
            line = file.readline(MAX_DOCUMENT_BYTES + 1)
            if not line:
                raise ValueError(f"the file ends at byte {at}; it was longer when it was listed")
            at += len(line)
            if len(line) > MAX_DOCUMENT_BYTES:
                yield ValueError(f"a line is longer than {MAX_DOCUMENT_BYTES} bytes")
                return
            yield line


def _line_text(line: bytes) -> str | None:
    return line.rstrip(b"\r\n").decode() if line.strip() else None


def _parse_json(column: str, as_ids: bool, line: bytes) -> str | npt.NDArray[Any] | None:
    if not line.strip():
        return None
    record = json.loads(line.rstrip(b"\r\n").decode())
    if not isinstance(record, dict):
        found = _name(record)
        raise ValueError(f"a line must hold a JSON object; got {found}")  # noqa: TRY004
    if column not in record:
        fields = ", ".join(map(repr, record)) or "none"
        raise ValueError(f"there is no field {column!r}; the fields are {fields}")
    return _check_ids(record[column]) if as_ids else _check_text(record[column])


def _check_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the text must be a string; got {_name(value)}")  # noqa: TRY004
    if not value.isascii():
        value.encode()  # half of a surrogate pair, which JSON can spell, is no text
    return value


def _check_ids(value: object) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, list):
        raise ValueError(f"the ids must be a list; got {_name(value)}")  # noqa: TRY004
    try:
        ids = np.array(value) if value else np.empty(0, np.int64)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"the ids must be a flat list of integers: {error}") from error
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"the ids must be a flat list of integers; got {ids.ndim}-D {ids.dtype}")
    return ids


def _name(value: object) -> str:
    names = {list: "a list", dict: "an object", str: "a string", type(None): "null"}
    return names.get(type(value), f"{value!r:.20}")
