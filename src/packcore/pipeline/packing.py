"""Puts encoded work into the builder, and keeps the journal.

Here a build that goes on drops what its chunks hold already, and here a broken line gets its
place: who encodes it does not know how many lines come before.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.builder import PackedDatasetBuilder
from packcore.errors import FormatError, StateError
from packcore.manifest import ChunkEntry
from packcore.pipeline.inputs import InputFile
from packcore.pipeline.journal import Journal, Mark
from packcore.pipeline.work import Broken, Cursor, Encoded, Piece, Work

__all__ = ["OnSkip", "Packing", "Progress"]

OnSkip = Callable[[str], object]
"""Told where something is broken and what is wrong with it."""

_MAX_SKIPPED = 20
"""Skipped places that the manifest names; all are counted."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is; what an earlier run of it did is included."""

    done_bytes: int
    """Bytes of the inputs that are tokenized, about."""
    total_bytes: int
    """Bytes of the inputs on disk."""
    num_documents: int
    """Documents."""
    num_tokens: int
    """Tokens, marks included."""
    num_skipped: int
    """Lines, rows and files that were skipped because they are broken."""


class Packing:
    """The one place of a build that goes through the inputs in order.

    Args:
        journal: of the build; its chunks are not packed again.
        files: the inputs.
        chunk_size: tokens of a full chunk.
        on_skip: told of each line, row and file that is skipped.
        fail: whether a broken one ends the build instead.

    Attributes:
        mark: the end of what was added.
    """

    def __init__(
        self,
        journal: Journal,
        files: Sequence[InputFile],
        chunk_size: int,
        on_skip: OnSkip | None = None,
        *,
        fail: bool = True,
    ) -> None:
        self.journal = journal
        self.files = files
        self.mark = journal.mark
        self._chunk_size = chunk_size
        self._on_skip = on_skip
        self._fail = fail
        self._marks = deque([self.mark])
        self._num_tokens = sum(entry.num_tokens for entry in journal.entries)
        self._num_documents = sum(entry.num_documents or 0 for entry in journal.entries)
        self._tokens_to_drop = self._num_tokens - self.mark.num_tokens
        self._documents_to_drop = self._num_documents - self.mark.num_documents
        self._bytes_before = [0, *itertools.accumulate(file.num_bytes for file in files)]
        self._done_bytes = 0

    def add(self, builder: PackedDatasetBuilder, work: Work, encoded: Encoded) -> None:
        """Packs the next piece of work.

        Raises:
            FormatError: there is something broken in it, and that ends the build.
            StateError: there are other documents in it than the first time.
            WriteError: the disk refused.
        """
        cursors = self._find_cursors(work, encoded)
        self._set_mark(cursors[0])
        skipped = [
            self._skip(one, work.pieces[one.piece], cursors[one.piece]) for one in encoded.broken
        ]
        tail, flat, lengths = self._drop(encoded.flat, encoded.lengths)
        if len(tail):
            builder.add_array(tail)
        builder.add_documents(flat, lengths)
        self.mark = Mark(
            cursors[-1],
            self.mark.num_tokens + len(encoded.flat),
            self.mark.num_documents + len(encoded.lengths),
            self.mark.num_skipped + len(skipped),
            (*self.mark.skipped, *skipped)[:_MAX_SKIPPED],
        )
        last = work.pieces[-1]
        self._done_bytes = self._bytes_before[last.file] + last.done_bytes

    def end(self) -> None:
        """Says that there is no more work.

        Raises:
            StateError: there were fewer documents than the first time.
        """
        self._set_mark(Cursor(len(self.files)))
        if self._tokens_to_drop or self._documents_to_drop:
            raise self._differ()

    def on_chunk(self, entry: ChunkEntry) -> None:
        """Records a chunk that is on disk; the last one, if it is not full, is made again."""
        self._num_tokens += entry.num_tokens
        while len(self._marks) > 1 and self._marks[1].num_tokens <= self._num_tokens:
            self._marks.popleft()
        if entry.num_tokens == self._chunk_size:
            self.journal.add(entry, self._marks[0])

    def progress(self) -> Progress:
        """Returns how far the build is."""
        mark = self.mark
        return Progress(
            self._done_bytes,
            self._bytes_before[-1],
            mark.num_documents,
            mark.num_tokens,
            mark.num_skipped,
        )

    def _find_cursors(self, work: Work, encoded: Encoded) -> list[Cursor]:
        """Returns where each piece begins, and where the last one ends."""
        cursors = []
        at = self.mark.cursor
        for piece, num_lines in zip(work.pieces, encoded.num_lines, strict=True):
            lines = at.line if piece.file == at.file else 0
            cursors.append(Cursor(piece.file, piece.start, lines))
            at = Cursor(piece.file, piece.stop, lines + num_lines)
        return [*cursors, at]

    def _set_mark(self, cursor: Cursor) -> None:
        self._marks.append(replace(self.mark, cursor=cursor))

    def _skip(self, broken: Broken, piece: Piece, cursor: Cursor) -> str:
        """Tells of something broken, and returns the same for the manifest."""
        message = f"{_place(broken, piece, cursor)}: {broken.why}"
        if self._fail:
            raise FormatError(
                f"{message}. Mend it and build anew, or leave such lines out with "
                'on_error="skip", which counts them.',
                path=piece.path,
            )
        if self._on_skip is not None:
            self._on_skip(message)
        return message

    def _drop(
        self, flat: npt.NDArray[Any], lengths: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Leaves out what is in a chunk already.

        Returns:
            tail: `(num_tokens,)`: the rest of a document that a chunk's end cut.
            flat: `(num_tokens,)`: the documents after it.
            lengths: `(num_documents,)`, int64: the tokens of each.
        """
        num_documents = min(self._documents_to_drop, len(lengths))
        begun = int(lengths[:num_documents].sum())
        num_tokens = min(self._tokens_to_drop, begun)
        self._documents_to_drop -= num_documents
        self._tokens_to_drop -= num_tokens
        if self._tokens_to_drop and not self._documents_to_drop:
            raise self._differ()
        return flat[num_tokens:begun], flat[begun:], lengths[num_documents:]

    def _differ(self) -> StateError:
        return StateError(
            f"The documents are not the ones that {self.journal.path} was written for: the inputs "
            "or the tokenizer have changed in a way that shows neither in size nor date, or the "
            "tokenizer gives other ids each time. Build anew with overwrite=True.",
            field="documents",
        )


def _place(broken: Broken, piece: Piece, cursor: Cursor) -> str:
    if broken.line is None:
        return piece.path
    if piece.form == "rows":
        return f"{piece.path}, row {piece.start + broken.line}"
    return f"{piece.path}:{cursor.line + broken.line + 1}"
