"""A row of tokens as a stream of pieces with document starts, separators put in or taken out.

Pieces are a few million tokens long, and a document may run over any number of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from packcore.errors import ArgumentError
from packcore.formats.reading import slabs
from packcore.protocols import TokenRow

__all__ = ["Piece", "add_separators", "check_separators", "iterate_pieces", "strip_separators"]

_Side = Literal["before", "after"]


class Piece(NamedTuple):
    """Some tokens of a row, and the documents that begin in them."""

    tokens: npt.NDArray[Any]
    """`(num_tokens,)`."""
    starts: npt.NDArray[np.int64]
    """`(num_starts,)`, ascending, in [0, num_tokens]: equal ones are empty documents."""


def iterate_pieces(row: TokenRow) -> Iterator[Piece]:
    """Yields all tokens of a row, with no start at all where documents are unknown."""
    return _tidy(_read(row))


def _read(row: TokenRow) -> Iterator[Piece]:
    for index, size in enumerate(np.diff(row.bounds).tolist()):
        none = np.empty(0, np.int64)
        starts = row.chunk_document_starts(index) if row.has_documents else none
        for start, stop in slabs(size) if size else [(0, 0)]:
            last = stop + 1 if stop == size else stop  # an empty document may begin at the end
            low, high = np.searchsorted(starts, (start, last))
            yield Piece(row.chunk_tokens(index, start, stop), starts[low:high] - start)


def _tidy(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yields pieces that have tokens, each start in the piece of the token that it stands before.

    Only the last one may have no token: if there are empty documents at the very end.
    """
    waiting, tokens = 0, None
    for tokens, starts in pieces:
        inside = starts[: np.searchsorted(starts, len(tokens))]
        if len(tokens):
            yield Piece(tokens, np.concatenate((np.zeros(waiting, np.int64), inside)))
            waiting = 0
        waiting += len(starts) - len(inside)
    if waiting and tokens is not None:
        yield Piece(tokens[:0], np.zeros(waiting, np.int64))


def add_separators(pieces: Iterable[Piece], sep_token: int, side: _Side) -> Iterator[Piece]:
    """Yields the pieces with a separator before or after each document, as a token of it."""
    return _tidy(_add(pieces, sep_token, side))


def _add(pieces: Iterable[Piece], sep_token: int, side: _Side) -> Iterator[Piece]:
    is_open = False
    dtype = np.dtype(np.int64)
    for tokens, starts in pieces:
        # Each start has a separator before it, but for "after" the first of all.
        places = starts[1:] if side == "after" and not is_open else starts
        shift = np.arange(len(starts)) + (side == "after" and is_open)
        yield Piece(np.insert(tokens, places, sep_token), starts + shift)
        is_open = is_open or len(starts) > 0
        dtype = tokens.dtype
    if is_open and side == "after":
        yield Piece(np.array([sep_token], dtype), np.empty(0, np.int64))


def strip_separators(pieces: Iterable[Piece], sep_token: int, side: _Side) -> Iterator[Piece]:
    """Yields the pieces without the separator that is each document's first or last token.

    Raises:
        ArgumentError: a document has none there.
    """
    strip = _strip_before if side == "before" else _strip_after
    return _tidy(strip(pieces, sep_token))


def _strip_before(pieces: Iterable[Piece], sep_token: int) -> Iterator[Piece]:
    number = 0
    for tokens, starts in pieces:
        _check_each(tokens, starts, sep_token, number, "begin")
        yield Piece(np.delete(tokens, starts), starts - np.arange(len(starts)))
        number += len(starts)


def _strip_after(pieces: Iterable[Piece], sep_token: int) -> Iterator[Piece]:
    number = 0
    none = np.empty(0, np.int64)
    for piece, following in _look_ahead(pieces):
        tokens, starts = piece
        # A document ends before each start but the first of all, and one that begins this piece
        # was closed with the piece before.
        begins = number == 0 or _begins_document(piece)
        ends = starts[1:] if begins else starts
        first = number if begins else number - 1
        number += len(starts)
        is_last = following is None or _begins_document(following)
        closing = np.full(1, len(tokens)) if number and is_last else none
        ends = np.concatenate((ends, closing)) - 1
        _check_each(tokens, ends, sep_token, first, "end")
        yield Piece(np.delete(tokens, ends), starts - np.searchsorted(ends, starts))


def _begins_document(piece: Piece) -> bool:
    return len(piece.starts) > 0 and piece.starts[0] == 0


def _look_ahead(pieces: Iterable[Piece]) -> Iterator[tuple[Piece, Piece | None]]:
    """Yields each piece and the one after it."""
    held = None
    for piece in pieces:
        if held is not None:
            yield held, piece
        held = piece
    if held is not None:
        yield held, None


def _check_each(
    tokens: npt.NDArray[Any],
    places: npt.NDArray[np.int64],
    sep_token: int,
    number: int,
    verb: str,
) -> None:
    """Refuses a document without a separator at its place, or two that share one."""
    shared = np.zeros(len(places), bool)
    # Of two that share a place the empty one is the first at its start, the second at its end.
    empty = shared[:-1] if verb == "begin" else shared[1:]
    empty[:] = places[1:] == places[:-1]
    inside = (places >= 0) & (places < len(tokens))
    bad = shared | ~inside
    bad[inside] |= tokens[places[inside]] != sep_token
    if bad.any():
        _refuse(number + int(np.argmax(bad)), sep_token, verb)


def _refuse(number: int, sep_token: int, verb: str) -> NoReturn:
    raise ArgumentError(
        f"Each document must {verb} with sep_token {sep_token}; document {number} does not. Name "
        "the id that does, or leave the documents as they are.",
        name="sep_token",
        value=sep_token,
    )


def check_separators(
    pieces: Iterable[Piece], sep_token: int, side: _Side, target: str
) -> Iterator[Piece]:
    """Yields the pieces as they are, if separators alone tell where documents begin.

    Raises:
        ArgumentError: a document's start would be lost, or another one would be found.
    """
    begins = True  # the first token of all begins a document
    at = 0
    for piece in pieces:
        places = np.flatnonzero(piece.tokens == sep_token)
        found = places + (side == "after")
        found = found[found < len(piece.tokens)]
        if begins and len(piece.tokens) and not (len(found) and found[0] == 0):
            found = np.concatenate((np.zeros(1, np.int64), found))
        if not np.array_equal(found, piece.starts):
            raise _lost(found, piece.starts, at, sep_token, side, target)
        if len(piece.tokens):
            begins = side == "after" and bool(piece.tokens[-1] == sep_token)
        at += len(piece.tokens)
        yield piece


def _lost(
    found: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    at: int,
    sep_token: int,
    side: _Side,
    target: str,
) -> ArgumentError:
    count = min(len(found), len(starts))
    differ = np.flatnonzero(found[:count] != starts[:count])
    first = int(differ[0]) if len(differ) else count
    place = at + int(min([*starts[first : first + 1], *found[first : first + 1]]))
    return ArgumentError(
        f"{target} tells documents by a separator {side} each, and sep_token {sep_token} does not: "
        f"around token {place} documents and separators differ. Put one in with "
        f"add_sep={side!r}, name another sep_token, or pass drop_documents=True.",
        name="sep_token",
        value=sep_token,
    )
