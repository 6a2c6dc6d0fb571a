"""Spans of tokens in files, the parts that the formats are made of.

`PlainTokens` lie in a file as they are. Where documents begin is a `Documents`: found by a
separator here, read from an index by the formats. Tokens with something between them are for
`packcore.formats.pieces`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from packcore.formats.reading import digest_span, slabs
from packcore.protocols import Access, TokenFile
from packcore.rawfiles import map_array, read_into, warm_file

__all__ = [
    "Documents",
    "PlainTokens",
    "Separators",
    "Span",
    "iterate_slabs",
    "with_separators",
]


class Documents(Protocol):
    """Where documents begin in a file. Pickles as a path or a number."""

    @property
    def num_documents(self) -> int | None:
        """Documents, if they are known without reading the tokens."""
        ...

    def starts(self, tokens: TokenFile) -> npt.NDArray[np.int64]:
        """Returns where they begin, `(num_documents,)`, ascending, in [0, num_tokens]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What every span of tokens has; how they are read is for the classes below."""

    path: str
    """The file that holds the tokens."""
    dtype: np.dtype[Any]
    """The stored dtype, little-endian."""
    num_tokens: int
    """Tokens that are served."""
    documents: Documents | None = None
    """Where documents begin; None if that is unknown."""
    problem: str = ""
    """Why they are unknown, as a sentence, if there is more to say than that they are."""

    @property
    def id_range(self) -> None:
        """No file of these formats knows its smallest and largest id."""
        return

    @property
    def has_documents(self) -> bool:
        """Whether document boundaries are known."""
        return self.documents is not None

    @property
    def num_documents(self) -> int | None:
        """Documents that begin in the span, if that is known without reading the tokens."""
        return None if self.documents is None else self.documents.num_documents

    @property
    def missing_documents(self) -> str:
        """Why document boundaries are unknown."""
        return self.problem or f"Where documents begin was not recorded for {self.path}."


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTokens(Span):
    """Tokens that lie in a file one behind the other, nothing between them."""

    offset: int = 0
    """The byte of the first."""

    @property
    def access(self) -> Access:
        """Mapped, if the tokens are aligned: NumPy would copy the whole map otherwise."""
        return "map" if self.offset % self.dtype.itemsize == 0 else "read"

    @property
    def _bytes(self) -> int:
        return self.num_tokens * self.dtype.itemsize

    def map(self) -> npt.NDArray[Any]:
        """Returns all tokens as a read-only map, `(num_tokens,)`."""
        return map_array(self.path, self.dtype, self.offset, self.num_tokens)

    def read(self, start: int, out: npt.NDArray[Any]) -> None:
        """Fills `out`, `(n,)`, contiguous, in the stored dtype, with the tokens from `start` on."""
        read_into(self.path, self.offset + start * self.dtype.itemsize, out)

    def document_starts(self) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, ascending."""
        return _starts(self, self.documents)

    def warm(self) -> None:
        """Asks the operating system to read the tokens into its cache."""
        warm_file(self.path, self.offset, self.offset + self._bytes)

    def digest(self) -> str:
        """Returns a hash of the dtype, the counts and both ends of the tokens."""
        facts = self.dtype.str, self.num_tokens, self.num_documents
        return digest_span(self.path, self.offset, self._bytes, *facts)


def _starts(tokens: TokenFile, documents: Documents | None) -> npt.NDArray[np.int64]:
    return np.empty(0, np.int64) if documents is None else documents.starts(tokens)


@dataclass(frozen=True, slots=True)
class Separators:
    """Documents that a separator tells apart, found by reading the tokens."""

    token: int
    """The separator's id."""
    side: Literal["before", "after"] = "after"
    """Where it stands: "before" makes it a document's first token, "after" its last."""
    begins_document: bool = True
    """Whether the file's first token begins a document in any case."""

    @property
    def num_documents(self) -> None:
        """Nobody knows before the tokens are read."""
        return

    def starts(self, tokens: TokenFile) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, ascending."""
        step = int(self.side == "after")
        found = [np.empty(0, np.int64)]
        for start, slab in iterate_slabs(tokens):
            found.append(np.flatnonzero(slab == self.token).astype(np.int64) + (start + step))
        starts = np.concatenate(found)
        starts = starts[starts < tokens.num_tokens]
        begins = self.begins_document and tokens.num_tokens > 0
        if begins and (not len(starts) or starts[0] > 0):
            starts = np.concatenate((np.zeros(1, np.int64), starts))
        return starts


def iterate_slabs(tokens: TokenFile) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yields (start, tokens from there on) for all tokens of a file, a few million at a time."""
    whole = None if tokens.access == "read" else tokens.map()
    for start, stop in slabs(tokens.num_tokens):
        if whole is not None:
            yield start, whole[start:stop]
        else:
            part = np.empty(stop - start, tokens.dtype)
            tokens.read(start, part)
            yield start, part


def with_separators(
    files: Sequence[PlainTokens], token: int, side: Literal["before", "after"]
) -> Iterator[PlainTokens]:
    """Yields the files, told to find their documents by a separator.

    A document may run on from one file into the next: a file's first token begins one only if it
    is the first of all, or a separator says so.
    """
    begins = True
    for file in files:
        yield dataclasses.replace(file, documents=Separators(token, side, begins))
        if file.num_tokens:
            last = np.empty(1, file.dtype)
            file.read(file.num_tokens - 1, last)
            begins = side == "after" and bool(last[0] == token)
