"""Cuts the inputs into pieces of work, in order, without making documents of them.

How the inputs are cut depends on nothing but the files, so that any number of processes makes
the same corpus. Lines of plain files are cut by byte range only, and read where they are
tokenized; what can be read from its beginning alone (compressed files, tables) is read here, in
a stream. Making documents is for `packcore.pipeline.parsing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

from packcore.errors import PackcoreError
from packcore.extras import import_zstd
from packcore.pipeline import tables
from packcore.pipeline.inputs import InputFile
from packcore.pipeline.work import Cursor, Form, Piece, Work

__all__ = ["MAX_DOCUMENT_BYTES", "WORK_BYTES", "cut", "open_input", "say_why"]

WORK_BYTES = 2**20
"""A piece of work is of about this size: some tenths of a second of tokenizing."""

MAX_DOCUMENT_BYTES = 2**28
"""A longer line or text file is taken for a mistake: it would have to be held in memory whole."""

_MAX_PIECES = 1024
"""Pieces of a work, where the files are tiny."""


def cut(
    files: Sequence[InputFile],
    start: Cursor,
    *,
    column: str,
    lines_of_text: bool,
    work_bytes: int = WORK_BYTES,
) -> Iterator[Work]:
    """Yields the work from `start` on: pieces of about `work_bytes` bytes together.

    A file that cannot be read ends in a piece of the form "broken", which says why.

    Args:
        files: the inputs.
        start: where to begin.
        column: the column to read of tables.
        lines_of_text: whether each line of a text file is a document, or the whole file.
        work_bytes: the size to aim at. The documents are the same at any.
    """
    pieces: list[Piece] = []
    num_bytes = 0
    for index in range(start.file, len(files)):
        file = files[index]
        place = start.place if index == start.file else 0
        cutter = _choose_cutter(file, column, lines_of_text)
        for piece in cutter(index, file, place, work_bytes):
            pieces.append(piece)
            num_bytes += _size(piece)
            if num_bytes >= work_bytes or len(pieces) == _MAX_PIECES:
                yield Work(tuple(pieces))
                pieces, num_bytes = [], 0
    if pieces:
        yield Work(tuple(pieces))


def _choose_cutter(file: InputFile, column: str, lines_of_text: bool) -> Any:
    if file.kind in ("parquet", "arrow"):
        return partial(_rows, column)
    if file.kind == "text" and not lines_of_text:
        return _whole
    form: Form = "jsonl" if file.kind == "jsonl" else "lines"
    return partial(_ranges if file.compression is None else _blocks, form)


def _size(piece: Piece) -> int:
    """Returns the bytes of a piece; of a compressed file, a guess."""
    if piece.payload is not None:
        return len(piece.payload)
    return (piece.stop - piece.start) * (4 if piece.compression else 1)


def _whole(index: int, file: InputFile, _place: int, _work_bytes: int) -> Iterator[Piece]:
    size = file.num_bytes
    yield Piece(index, file.path, "file", 0, size, None, file.compression, size)


def _ranges(
    form: Form, index: int, file: InputFile, place: int, work_bytes: int
) -> Iterator[Piece]:
    """Cuts a plain file by the byte; which lines begin in a piece is found by who reads it."""
    for start in range(place, file.num_bytes, work_bytes):
        stop = min(start + work_bytes, file.num_bytes)
        yield Piece(index, file.path, form, start, stop, done_bytes=stop)


def _blocks(
    form: Form, index: int, file: InputFile, place: int, work_bytes: int
) -> Iterator[Piece]:
    """Reads whole lines of a compressed file, as many as fit `work_bytes`, at least one."""
    start = done = 0
    try:
        with open(file.path, "rb") as raw, open_input(raw, file) as stream:
            for block in _whole_lines(stream, work_bytes):
                start, stop, done = max(start, place), start + len(block), raw.tell()
                if stop > start:
                    payload = block[len(block) - (stop - start) :]
                    yield Piece(index, file.path, form, start, stop, payload, done_bytes=done)
                start = stop
    except (PackcoreError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - what decompressors raise has no common base
        yield _broken(index, file, max(start, place), error)


def _whole_lines(stream: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    """Yields a stream in blocks that end where a line does.

    Where the stream turns out to be damaged, the whole lines before come first.
    """
    buffer = bytearray()
    end = 0  # of the last whole line in it
    try:
        # read1 and not read: what read had before the damage would be lost.
        while block := stream.read1(num_bytes):  # type: ignore[attr-defined] # all of ours have it
            newline = block.rfind(b"\n")
            buffer += block
            if newline >= 0:
                end = len(buffer) - len(block) + newline + 1
            if end and len(buffer) >= num_bytes:
                yield bytes(buffer[:end])
                del buffer[:end]
                end = 0
            if not end and len(buffer) > MAX_DOCUMENT_BYTES:
                raise ValueError(f"a line is longer than {MAX_DOCUMENT_BYTES} bytes")  # noqa: TRY301
    except Exception:
        if end:
            yield bytes(buffer[:end])
        raise
    if buffer:
        yield bytes(buffer)


def _rows(column: str, index: int, file: InputFile, place: int, work_bytes: int) -> Iterator[Piece]:
    at = place
    try:
        for rows in tables.read_rows(file, place, column, work_bytes):
            done = int(file.num_bytes * rows.done)
            stop = at + rows.num_rows
            yield Piece(index, file.path, "rows", at, stop, rows.payload, done_bytes=done)
            at = stop
    except (PackcoreError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - pyarrow's errors have no common base
        yield _broken(index, file, at, error)


def _broken(index: int, file: InputFile, place: int, error: Exception) -> Piece:
    """Says that a file cannot be read from `place` on; this piece is its last."""
    why = say_why(error).encode()
    return Piece(index, file.path, "broken", place, place, why, done_bytes=file.num_bytes)


def say_why(error: Exception) -> str:
    """Returns what an error of a file, a library or a parser says, in one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


@contextmanager
def open_input(raw: BinaryIO, file: InputFile | Piece) -> Iterator[BinaryIO]:
    """Opens what a file holds, decompressed.

    Args:
        raw: the file itself, opened.
        file: says how it is compressed.

    Raises:
        MissingExtraError: what decompresses it is not installed.
    """
    if file.compression == "gzip":
        import gzip  # noqa: PLC0415 - most builds need none

        with gzip.GzipFile(fileobj=raw) as stream:
            yield stream  # type: ignore[misc] # a BinaryIO in all but name
    elif file.compression == "zstd":
        with import_zstd(file.path).ZstdFile(raw) as stream:
            yield stream
    else:
        yield raw
