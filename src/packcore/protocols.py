"""The seams between floors: what a data set joins, what blocks are cut from, what a loader reads.

Anything with these members will do; nothing has to inherit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from packcore.rows import Span

__all__ = ["Access", "BlockOrigin", "BlockReader", "TokenFile", "TokenRow"]

Access = Literal["map", "read", "decode"]
"""How the tokens of a file are reached.

- "map": they lie in it as they are, one behind the other, so that a map costs no memory;
- "read": something stands between them; `read` copies those that are asked for;
- "decode": they are compressed; `map` decodes them all, and few of these are kept.
"""


class TokenFile(Protocol):
    """What a data set joins: a span of tokens, as a rule a file, and where documents begin in it.

    One format's reader makes these; `packcore.chunks.Chunk` is that of LITPKDS. They pickle as
    paths and numbers, and read when they are asked.
    """

    @property
    def path(self) -> str:
        """The file that holds the tokens."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored dtype, little-endian."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens that are served."""
        ...

    @property
    def access(self) -> Access:
        """How the tokens are reached."""
        ...

    @property
    def id_range(self) -> tuple[int | float, int | float] | None:
        """The smallest and the largest id, if they are known without reading the tokens."""
        ...

    @property
    def has_documents(self) -> bool:
        """Whether document boundaries are known."""
        ...

    @property
    def num_documents(self) -> int | None:
        """Documents that begin in the file, if that is known without reading the tokens."""
        ...

    @property
    def missing_documents(self) -> str:
        """Why document boundaries are unknown, as a sentence."""
        ...

    def document_starts(self) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, ascending, in [0, num_tokens]."""
        ...

    def map(self) -> npt.NDArray[Any]:
        """Returns all tokens, `(num_tokens,)`, read-only."""
        ...

    def read(self, start: int, out: npt.NDArray[Any]) -> None:
        """Fills `out`, `(n,)`, contiguous, in the stored dtype, with the tokens from `start` on."""
        ...

    def warm(self) -> None:
        """Asks the operating system to read the tokens into its cache."""
        ...

    def digest(self) -> str:
        """Returns a hash of the content; no path or name is in it."""
        ...


class TokenRow(Protocol):
    """What blocks are cut from: one long row of tokens over chunks. `packcore.Dataset` is one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored dtype."""
        ...

    @property
    def max_maps(self) -> int:
        """How many chunks may be mapped at once; 0 if tokens are only read piece by piece."""
        ...

    @property
    def bounds(self) -> npt.NDArray[np.int64]:
        """`(num_chunks + 1,)`: tokens [bounds[c], bounds[c + 1]) are those of chunk c."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of the content."""
        ...

    @property
    def id_range(self) -> tuple[int | float, int | float] | None:
        """The smallest and the largest id, if they are known."""
        ...

    def chunk_map(self, index: int) -> Span:
        """Returns all tokens of a chunk, mapped."""
        ...

    def chunk_tokens(self, index: int, start: int, stop: int) -> npt.NDArray[Any]:
        """Returns tokens [start, stop) of a chunk, counted in it."""
        ...

    def read_into(self, start: int, out: npt.NDArray[Any]) -> None:
        """Fills `out` with the tokens from `start` on, over any number of chunks."""
        ...

    def origin(self, token: int) -> tuple[str, int]:
        """Returns the file that holds a token of the row, and the token's place in it."""
        ...

    def warm(self, chunks: Iterable[int]) -> None:
        """Asks the operating system to read chunks into its cache, in order."""
        ...

    @property
    def has_documents(self) -> bool:
        """Whether document boundaries are known."""
        ...

    def check_documents(self) -> None:
        """Raises an ArgumentError if document boundaries are unknown."""
        ...

    def documents_in(self, start: int, stop: int) -> range:
        """Returns the numbers of the documents that have tokens in [start, stop)."""
        ...

    def chunk_document_starts(self, index: int) -> npt.NDArray[np.int64]:
        """Returns where documents begin in a chunk."""
        ...

    def document_starts(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Returns where the documents that begin in tokens [start, stop) do."""
        ...


@dataclass(frozen=True, slots=True)
class BlockOrigin:
    """Where a block comes from."""

    file: str
    """The chunk file that it begins in."""
    offset: int
    """Its first token, counted from the first of the file."""
    documents: range | None
    """The numbers of the documents that it has tokens of; None if documents are unknown."""


class BlockReader(Protocol):
    """What a `packcore.Loader` reads from: `Blocks`, or anything else with these members."""

    @property
    def block_size(self) -> int:
        """Tokens in each block."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored dtype."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of the content and of how it is cut."""
        ...

    @property
    def chunk_bounds(self) -> npt.NDArray[np.int64]:
        """`(num_chunks + 1,)`: blocks [bounds[c], bounds[c + 1]) begin in chunk c."""
        ...

    def __len__(self) -> int:
        """How many blocks there are."""
        ...

    def gather(self, ids: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> object:
        """Fills `out`, `(num_ids, block_size)`, in the stored dtype, with the blocks in order."""
        ...
