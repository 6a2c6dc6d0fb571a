"""Parts: what the write tasks of a datasink leave, and how chunks are cut from them.

A part holds the documents of one Ray block, as they lie in a corpus: a file of tokens, and one of
the documents' lengths. All parts, one behind the other, are the corpus. Each chunk is packed by
itself from the parts that it runs over, so many can be packed at a time; the bytes are those of
one builder that is given all documents. Nothing here knows Ray.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.builder import PackedDatasetBuilder
from packcore.errors import FormatError
from packcore.files import write_whole
from packcore.pipeline.work import Encoded

__all__ = ["ChunkPlan", "Form", "Part", "pack_chunk", "plan_chunks", "write_part"]


@dataclass(frozen=True, slots=True)
class Form:
    """What a corpus's chunks have in common."""

    prefix: str
    """What the files' names begin with."""
    chunk_size: int
    """Tokens a chunk file."""
    sep_token: int
    """The id that fills the last chunk."""
    dtype: np.dtype[Any]
    """Of the tokens, in parts and chunks."""
    vocab_size: int | None
    """Ids are below it; None if nobody knows."""
    tokenizer: str | None
    """Its name, for the manifest."""
    tokenizer_hash: str | None
    """Its hash, for the manifest."""

    def builder(
        self, folder: str | os.PathLike[str], *, overwrite: bool = False
    ) -> PackedDatasetBuilder:
        """Returns a builder of this form."""
        return PackedDatasetBuilder(
            folder,
            self.prefix,
            self.chunk_size,
            self.sep_token,
            self.dtype,
            self.vocab_size,
            overwrite=overwrite,
            tokenizer=self.tokenizer,
            tokenizer_hash=self.tokenizer_hash,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """The documents of one block of rows."""

    path: str
    """Of the tokens; the lengths are in `path` + ".lengths"."""
    num_tokens: int
    num_documents: int
    num_skipped: int = 0
    """Rows that no document could be made of."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """One chunk of a corpus, and the parts that it runs over."""

    start: int
    """Its first token, counted from the corpus's first."""
    stop: int
    """The token behind its last."""
    parts: tuple[tuple[int, Part], ...]
    """Each with the place of its first token in the corpus."""


def write_part(folder: str | os.PathLike[str], encoded: Encoded) -> Part:
    """Writes a part under a name that nobody else has: a task that runs twice makes two.

    Raises:
        WriteError: the disk refused, or the folder is gone.
    """
    path = os.path.join(folder, f"{secrets.token_hex(16)}.tokens")
    write_whole(path, np.ascontiguousarray(encoded.flat).data)
    write_whole(f"{path}.lengths", encoded.lengths.astype("<i8").data)
    return Part(path, len(encoded.flat), len(encoded.lengths), len(encoded.broken))


def plan_chunks(parts: Iterable[Part], chunk_size: int) -> Iterator[ChunkPlan]:
    """Yields the chunks of a corpus that consists of parts.

    A part that only touches a chunk's end is among the chunk's parts, for an empty document there
    is recorded in the chunk of the token before it.

    Examples:
        >>> parts = [Part("a", 3, 1), Part("b", 4, 1), Part("c", 2, 1)]
        >>> for chunk in plan_chunks(parts, 5):
        ...     print(chunk.start, chunk.stop, [(at, part.path) for at, part in chunk.parts])
        0 5 [(0, 'a'), (3, 'b')]
        5 9 [(3, 'b'), (7, 'c')]
    """
    start = at = 0
    touching: list[tuple[int, Part]] = []
    for part in parts:
        while at > start + chunk_size:
            stop = start + chunk_size
            yield ChunkPlan(start, stop, tuple(touching))
            touching = [one for one in touching if one[0] + one[1].num_tokens >= stop]
            start = stop
        touching.append((at, part))
        at += part.num_tokens
    while at > start:
        stop = min(at, start + chunk_size)
        chunk = [one for one in touching if one[0] <= stop and one[0] + one[1].num_tokens >= start]
        yield ChunkPlan(start, stop, tuple(chunk))
        start = stop


def pack_chunk(folder: str | os.PathLike[str], form: Form, chunk: ChunkPlan) -> str:
    """Packs one chunk as a corpus of its own, in a new folder.

    Returns:
        The new folder, in `folder`.

    Raises:
        FormatError: a part is not as long as it was.
        WriteError: the disk refused.
    """
    own = os.path.join(folder, f"{secrets.token_hex(16)}.chunk")
    starts = _find_documents(chunk)
    first = int(starts[0]) if len(starts) else chunk.stop
    lengths = np.diff(starts, append=chunk.stop) if len(starts) else starts
    with form.builder(own) as builder:
        tokens = _read_tokens(chunk, form.dtype)
        builder.add_array(tokens[: first - chunk.start])  # of a document that began earlier
        builder.add_documents(tokens[first - chunk.start :], lengths)
    return own


def _find_documents(chunk: ChunkPlan) -> npt.NDArray[np.int64]:
    """Returns `(num_documents,)`, int64: the places of those that are recorded in a chunk."""
    found = [np.empty(0, np.int64)]
    for at, part in chunk.parts:
        lengths = _read(f"{part.path}.lengths", np.dtype("<i8"), 0, part.num_documents)
        starts = at + np.cumsum(lengths) - lengths
        inside = (starts >= chunk.start) & (starts < chunk.stop)
        # An empty one belongs to the token before it; the corpus's first ones have none.
        behind = (starts > chunk.start) & (starts <= chunk.stop)
        behind |= (starts == 0) & (chunk.start == 0)
        found.append(starts[np.where(lengths > 0, inside, behind)])
    return np.concatenate(found)


def _read_tokens(chunk: ChunkPlan, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    pieces: list[npt.NDArray[Any]] = []
    for at, part in chunk.parts:
        low = max(chunk.start - at, 0)
        high = min(chunk.stop - at, part.num_tokens)
        pieces.append(_read(part.path, dtype, low, high))
    return np.concatenate(pieces)


def _read(path: str, dtype: np.dtype[Any], start: int, stop: int) -> npt.NDArray[Any]:
    count = stop - start
    if count <= 0:
        return np.empty(0, dtype)
    found = np.fromfile(path, dtype, count, offset=start * dtype.itemsize)
    if len(found) != count:
        raise FormatError(
            f"{path} ends at {start + len(found)} of {stop} values: it has changed since it was "
            "written. Write the data set again.",
            path=path,
            expected=stop,
            got=start + len(found),
        )
    return found
