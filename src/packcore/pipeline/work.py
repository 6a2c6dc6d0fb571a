"""The pieces that a build is cut into, and what becomes of one.

These are values that cross between processes. Cutting is for `packcore.pipeline.reading`, making
ids of a piece for `packcore.pipeline.encoding`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["Broken", "Cursor", "Encoded", "Form", "Piece", "Work"]

Form = Literal["jsonl", "lines", "file", "rows", "broken"]
"""What a piece is: lines of JSON, lines of text, a whole text file, rows of a table, or the place
where an input turned out to be unreadable."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the inputs, between two pieces."""

    file: int = 0
    """The input, counted from 0."""
    place: int = 0
    """The byte of the (decompressed) file, or the row of the table."""
    line: int = 0
    """The lines of the file before it, where it has lines."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some documents of one input: [start, stop) of its bytes or of its rows."""

    file: int
    """The input, counted from 0."""
    path: str
    form: Form
    start: int
    stop: int
    payload: bytes | None = None
    """The bytes, the rows as an Arrow stream, or why it is broken; None for "read it yourself".
    Without a payload, the piece is the lines that begin in [start, stop)."""
    compression: str | None = None
    """Of the file, for a piece that is a whole file."""
    done_bytes: int = 0
    """Bytes of the file on disk that are read once this piece is, about; for the progress."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one process takes at a time: pieces in the order of the inputs."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """A line, a row or a file that no document could be made of."""

    piece: int
    """The piece of the work, counted from 0."""
    line: int | None
    """The line or row, counted from the piece's first; None for a whole file."""
    why: str


@dataclass(frozen=True, slots=True)
class Encoded:
    """The documents of a piece of work as token ids."""

    flat: npt.NDArray[Any]
    """`(num_tokens,)`, in the stored dtype: one document behind the other, marks included."""
    lengths: npt.NDArray[np.int64]
    """`(num_documents,)`, int64: the tokens of each."""
    num_lines: tuple[int, ...]
    """The lines of each piece."""
    broken: tuple[Broken, ...]
    """In the order of the inputs."""
