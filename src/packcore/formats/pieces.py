"""Tokens with something between the documents: a size before each item, a sample's header.

`PiecedTokens` knows where its pieces lie from a `PieceTable`, which each format reads from its own
file; `DecodedTokens` are decompressed, all of a file at once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from packcore.formats.reading import digest_span
from packcore.formats.spans import Span
from packcore.protocols import Access
from packcore.rawfiles import broken, file_bytes, map_array, stamp, warm_file

__all__ = ["DecodedTokens", "Decoder", "PieceTable", "PiecedTokens", "copy_pieces"]

_NUM_TABLES = 256
"""Piece tables that are kept: 16 bytes a document."""


class PieceTable(Protocol):
    """Where the pieces of a file are. Pickles as a path and numbers."""

    def __hash__(self) -> int:
        """Equal tables have equal hashes: what was read is kept by table."""
        ...

    def read(self, path: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns each piece's first byte and how many tokens it has, both `(num_pieces,)`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecedTokens(Span):
    """Tokens of a file in pieces, each a document."""

    table: PieceTable
    """Where the pieces are."""
    num_pieces: int
    """How many there are."""

    @property
    def access(self) -> Access:
        """What is asked for is copied together."""
        return "read"

    @property
    def has_documents(self) -> bool:
        """Each piece is a document."""
        return True

    @property
    def num_documents(self) -> int:
        """Each piece is a document."""
        return self.num_pieces

    def map(self) -> npt.NDArray[Any]:
        """Returns a copy of all tokens, `(num_tokens,)`."""
        out = np.empty(self.num_tokens, self.dtype)
        self.read(0, out)
        return out

    def read(self, start: int, out: npt.NDArray[Any]) -> None:
        """Fills `out`, `(n,)`, contiguous, in the stored dtype, with the tokens from `start` on."""
        content = map_array(self.path, np.dtype(np.uint8), 0, file_bytes(self.path))
        copy_pieces(self.path, content, *_read_table(self.table, *stamp(self.path)), start, out)

    def document_starts(self) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, ascending."""
        _, counts = _read_table(self.table, *stamp(self.path))
        return np.cumsum(counts) - counts

    def warm(self) -> None:
        """Asks the operating system to read the file into its cache."""
        warm_file(self.path, 0, file_bytes(self.path))

    def digest(self) -> str:
        """Returns a hash of the dtype, the counts and both ends of the file."""
        facts = self.dtype.str, self.num_tokens, self.num_pieces
        return digest_span(self.path, 0, file_bytes(self.path), *facts)


@functools.lru_cache(maxsize=_NUM_TABLES)
def _read_table(
    table: PieceTable, path: str, _size: int, _time: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return table.read(path)


def copy_pieces(
    path: str,
    content: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    start: int,
    out: npt.NDArray[Any],
) -> None:
    """Fills `out`, `(n,)`, with the tokens from `start` on.

    Args:
        path: the file, for messages.
        content: its bytes.
        offsets: `(num_pieces,)`: each piece's first byte.
        counts: `(num_pieces,)`: each piece's tokens.
        start: the first token, counted over all pieces.
        out: filled.

    Raises:
        FormatError: the file has changed since it was opened, and has fewer tokens.
    """
    ends = np.cumsum(counts)
    index = int(np.searchsorted(ends, start, side="right"))
    at, itemsize = 0, out.itemsize
    while at < len(out):
        if index >= len(ends):
            raise broken(
                path,
                f"has changed since it was opened: expected {start + len(out)} tokens, got "
                f"{start + at}.",
                expected=start + len(out),
                got=start + at,
            )
        skipped = start + at - int(ends[index] - counts[index])
        count = min(len(out) - at, int(counts[index]) - skipped)
        first = int(offsets[index]) + skipped * itemsize
        piece = content[first : first + count * itemsize]
        out[at : at + count] = np.frombuffer(piece.tobytes(), out.dtype)
        at, index = at + count, index + 1


class Decoder(Protocol):
    """Makes the tokens of a compressed file. Pickles as a path and numbers."""

    def tokens(self, path: str) -> npt.NDArray[Any]:
        """Returns all tokens, `(num_tokens,)`."""
        ...

    def starts(self, path: str) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, ascending."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedTokens(Span):
    """Tokens that are decompressed, all of a span at once."""

    decoder: Decoder
    """How."""
    count: int
    """Documents."""

    @property
    def access(self) -> Access:
        """A few tokens cost as much as all."""
        return "decode"

    @property
    def has_documents(self) -> bool:
        """The format knows them."""
        return True

    @property
    def num_documents(self) -> int:
        """Documents that begin in the span."""
        return self.count

    def map(self) -> npt.NDArray[Any]:
        """Returns all tokens, `(num_tokens,)`, read-only.

        Raises:
            FormatError: there are not as many as there were when the file was opened.
        """
        tokens = self.decoder.tokens(self.path)
        if len(tokens) != self.num_tokens or tokens.dtype != self.dtype:
            raise broken(
                self.path,
                f"holds {len(tokens)} tokens of {tokens.dtype}; expected {self.num_tokens} of "
                f"{self.dtype}.",
                expected=self.num_tokens,
                got=len(tokens),
            )
        tokens.flags.writeable = False
        return tokens

    def read(self, start: int, out: npt.NDArray[Any]) -> None:
        """Fills `out`, `(n,)`, in the stored dtype, with the tokens from `start` on."""
        out[:] = self.map()[start : start + len(out)]

    def document_starts(self) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, ascending.

        Raises:
            FormatError: there are not as many as the file said when it was opened.
        """
        starts = self.decoder.starts(self.path)
        if len(starts) != self.count:
            raise broken(
                self.path,
                f"holds {len(starts)} documents; expected {self.count}.",
                expected=self.count,
                got=len(starts),
            )
        return starts

    def warm(self) -> None:
        """Asks the operating system to read the file into its cache."""
        warm_file(self.path, 0, file_bytes(self.path))

    def digest(self) -> str:
        """Returns a hash of the dtype, the counts and both ends of the file."""
        facts = self.dtype.str, self.num_tokens, self.count, repr(self.decoder)
        return digest_span(self.path, 0, file_bytes(self.path), *facts)
