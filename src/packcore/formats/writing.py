"""Writes what other programs read: Megatron, llm.c, nanoGPT and datatrove files.

Each file is written under a temporary name and renamed at the end, the index last. What goes into
them comes from `packcore.formats.stream`; the layouts are those of the reading modules.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from packcore.errors import OverwriteError, WriteError
from packcore.formats.llmc import HEADER_BYTES, MODELS
from packcore.formats.mmididx import MAGIC
from packcore.formats.reading import slabs
from packcore.formats.stream import Piece
from packcore.ids import IdRule

__all__ = ["Written", "write_datatrove", "write_llmc", "write_megatron", "write_nanogpt"]

_LONGEST_SEQUENCE = 2**31 - 1
_CODES = {"u1": 1, "i1": 2, "i2": 3, "i4": 4, "i8": 5, "f8": 6, "f4": 7, "u2": 8}
_PREFIXES = (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3))


@dataclass(frozen=True, slots=True)
class Written:
    """What was written."""

    files: tuple[str, ...]
    """The paths, in order."""
    num_tokens: int
    """Tokens, separators included."""
    num_documents: int | None
    """Documents; None if they are unknown, or left to a separator."""


class _File:
    """A file that gets its name when it is whole."""

    def __init__(self, path: str, *, overwrite: bool) -> None:
        self.path = path
        if not overwrite and os.path.exists(path):
            raise OverwriteError(
                f"{path} is there already. Choose another place, or pass overwrite=True.", path=path
            )
        self._temporary = Path(path).with_name(
            f".{os.path.basename(path)}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
        )
        with self._told():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = open(self._temporary, "xb")  # noqa: SIM115 - closed below

    def write(self, content: bytes | memoryview) -> None:
        with self._told():
            self._file.write(content)

    def write_at_start(self, content: bytes) -> None:
        with self._told():
            self._file.seek(0)
            self._file.write(content)

    def finish(self) -> None:
        with self._told():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self.path)

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _told(self) -> Any:
        try:
            yield
        except OSError as error:
            raise WriteError(
                f"Could not write {self.path}: {error.strerror or error}. Nothing is there under "
                "its name.",
                path=self.path,
                errno=error.errno,
            ) from error


class _Files:
    """Files of one conversion: all of them are named at its end, or none is."""

    def __init__(self, *, overwrite: bool) -> None:
        self._overwrite = overwrite
        self._files: list[_File] = []

    def add(self, path: str) -> _File:
        self._files.append(_File(path, overwrite=self._overwrite))
        return self._files[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                for file in self._files:
                    file.finish()
        finally:
            for file in self._files:
                file.abandon()

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self._files)


class _Tokens:
    """Checks ids, casts them, and collects where documents begin."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._rule = IdRule(dtype)
        self.num_tokens = 0
        self._starts: list[npt.NDArray[np.int64]] = []

    def take(self, piece: Piece) -> npt.NDArray[Any]:
        tokens = self._rule.check("tokens", piece.tokens).astype(self._rule.dtype, copy=False)
        if len(piece.starts):
            self._starts.append(piece.starts + self.num_tokens)
        self.num_tokens += len(tokens)
        return np.ascontiguousarray(tokens)

    def lengths(self) -> npt.NDArray[np.int64]:
        """Each document's length; what stands before the first is a document of its own."""
        starts = np.concatenate((np.empty(0, np.int64), *self._starts))
        if self.num_tokens and (not len(starts) or starts[0] > 0):
            starts = np.concatenate((np.zeros(1, np.int64), starts))
        return np.diff(starts, append=self.num_tokens)


def write_megatron(
    pieces: Iterable[Piece], prefix: str, dtype: np.dtype[Any], *, overwrite: bool
) -> Written:
    """Writes `{prefix}.bin` and `{prefix}.idx`.

    A document is one sequence, more than one if it is longer than a length can say, none if it is
    empty.

    Args:
        pieces: the tokens.
        prefix: the files' path without a suffix.
        dtype: of the tokens on disk.
        overwrite: replace files that are there.

    Raises:
        TokenError: an id does not fit `dtype`.
        OverwriteError: a file is there already.
        WriteError: the operating system refused.
    """
    row = _Tokens(dtype)
    with _Files(overwrite=overwrite) as files:
        data, index = files.add(prefix + ".bin"), files.add(prefix + ".idx")
        for piece in pieces:
            data.write(row.take(piece).data)
        documents = row.lengths()
        num_sequences = -(-documents // _LONGEST_SEQUENCE)
        sequences = _split(documents, num_sequences)
        code = _CODES[dtype.str[1:]]
        header = struct.pack("<QBQQ", 1, code, len(sequences), len(documents) + 1)
        index.write(MAGIC + header)
        index.write(sequences.astype("<i4").data)
        pointers = (np.cumsum(sequences) - sequences) * dtype.itemsize
        for array in (pointers, np.concatenate(([0], np.cumsum(num_sequences)))):
            for start, stop in slabs(len(array)):
                index.write(array[start:stop].astype("<i8").data)
    return Written(files.paths, row.num_tokens, len(documents))


def _split(
    documents: npt.NDArray[np.int64], num_sequences: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Returns the length of each sequence: a document's, or its parts' if it is too long."""
    sequences = np.full(int(num_sequences.sum()), _LONGEST_SEQUENCE, np.int64)
    last = np.cumsum(num_sequences)[num_sequences > 0] - 1
    filled = documents[num_sequences > 0]
    sequences[last] = filled - (num_sequences[num_sequences > 0] - 1) * _LONGEST_SEQUENCE
    return sequences


def write_llmc(
    pieces: Iterable[Piece],
    folder: str,
    prefix: str,
    dtype: np.dtype[Any],
    *,
    shard_size: int,
    overwrite: bool,
) -> Written:
    """Writes `{prefix}_000000.bin` and so on, of `shard_size` tokens each; the last has fewer.

    Raises:
        TokenError: an id does not fit `dtype`.
        OverwriteError: a file is there already.
        WriteError: the operating system refused.
    """
    row = _Tokens(dtype)
    magic, version = next(
        (magic, version) for magic, (version, known) in MODELS.items() if known == dtype
    )
    with _Files(overwrite=overwrite) as files:
        shard, room, count = None, 0, 0
        for piece in pieces:
            tokens = row.take(piece)
            while len(tokens):
                if shard is None or not room:
                    shard = files.add(os.path.join(folder, f"{prefix}_{count:06d}.bin"))
                    header = struct.pack("<3i", magic, version, shard_size)
                    shard.write(header.ljust(HEADER_BYTES, b"\x00"))
                    room, count = shard_size, count + 1
                shard.write(tokens[:room].data)
                taken = min(room, len(tokens))
                tokens, room = tokens[taken:], room - taken
        if shard is not None:
            shard.write_at_start(struct.pack("<3i", magic, version, shard_size - room))
    return Written(files.paths, row.num_tokens, None)


def write_nanogpt(
    pieces: Iterable[Piece], folder: str, prefix: str, dtype: np.dtype[Any], *, overwrite: bool
) -> Written:
    """Writes `{prefix}.bin`: bare tokens.

    Raises:
        TokenError: an id does not fit `dtype`.
        OverwriteError: the file is there already.
        WriteError: the operating system refused.
    """
    row = _Tokens(dtype)
    with _Files(overwrite=overwrite) as files:
        data = files.add(os.path.join(folder, f"{prefix}.bin"))
        for piece in pieces:
            data.write(row.take(piece).data)
    return Written(files.paths, row.num_tokens, None)


def write_datatrove(
    pieces: Iterable[Piece], folder: str, prefix: str, dtype: np.dtype[Any], *, overwrite: bool
) -> Written:
    """Writes `{prefix}_00000_unshuffled.ds` with its `.index` and `.metadata`.

    Raises:
        TokenError: an id does not fit `dtype`.
        OverwriteError: a file is there already.
        WriteError: the operating system refused.
    """
    row = _Tokens(dtype)
    path = os.path.join(folder, f"{prefix}_00000_unshuffled.ds")
    with _Files(overwrite=overwrite) as files:
        data, metadata, index = (files.add(path + end) for end in ("", ".metadata", ".index"))
        for piece in pieces:
            data.write(row.take(piece).data)
        documents = row.lengths()
        index.write(np.cumsum(documents).astype("<u8").data)
        text = f"unknown|{dtype.itemsize}\n{row.num_tokens}\n{_for_people(row.num_tokens)}"
        metadata.write(text.encode())
    return Written(files.paths, row.num_tokens, len(documents))


def _for_people(count: int) -> str:
    letter, unit = next(((name, size) for name, size in _PREFIXES if count >= size), ("", 1))
    return f"{count / unit:.3g} {letter}T"
