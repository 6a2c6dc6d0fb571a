"""Which chunk files a PackedDataset serves and how: all arguments and files, checked.

Dealing the files out is for `packcore.sharding`, serving them for `packcore.reference.packed`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packcore.checks import check_int
from packcore.errors import ArgumentError, ArgumentTypeError, MismatchError, NoDataError
from packcore.format import ChunkHeader, read_header

__all__ = ["ChunkFiles", "Filenames", "Plan", "make_plan"]

Filenames = Iterable[str | os.PathLike[str]]

_STATE_VERSION = 1
_MAX_SEED = 2**128 - 1

_SIDECARS = (".docs.npy", ".manifest.json")
"""What packcore writes beside its chunks; a glob of `prefix*` finds these too."""


@dataclass(frozen=True, slots=True)
class ChunkFiles:
    """Chunk files whose headers were read and are the same. Iterates over the paths."""

    paths: tuple[str, ...]
    """The files, in order; a file may stand there more than once."""
    header: ChunkHeader
    """The header of each."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def select(self, indices: range) -> ChunkFiles:
        """Returns the files with these indices."""
        return replace(self, paths=tuple(self.paths[index] for index in indices))

    def fingerprint(self) -> str:
        """Returns a hash of the names, in order; the folder that holds them all may move."""
        folder = Path(self.paths[0]).parent
        names = [os.path.relpath(path, folder).replace(os.sep, "/") for path in self.paths]
        return hashlib.sha256(os.fsencode("\0".join(names))).hexdigest()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is served, and how. `make_plan` checks it."""

    chunks: ChunkFiles
    """The files."""
    n_chunks: int
    """Files in a window."""
    block_size: int
    """Tokens in a block."""
    seed: int | None
    """Of the shuffle."""
    shuffle: bool
    """Whether the blocks of a window are shuffled."""
    wrap: bool
    """Whether the first window follows the last one."""

    @property
    def chunk_blocks(self) -> int:
        """Blocks of one chunk."""
        return self.chunks.header.chunk_size // self.block_size

    @property
    def window_blocks(self) -> int:
        """Blocks of one window."""
        return self.chunk_blocks * self.n_chunks

    def identity(self) -> dict[str, Any]:
        """Returns what a state must have in common with the iterator that loads it."""
        return {
            "version": _STATE_VERSION,
            "num_files": len(self.chunks.paths),
            "files": self.chunks.fingerprint(),
            "dtype": self.chunks.header.dtype.name,
            "chunk_size": self.chunks.header.chunk_size,
            "n_chunks": self.n_chunks,
            "block_size": self.block_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "wrap": self.wrap,
        }


def make_plan(
    filenames: Filenames,
    *,
    n_chunks: int,
    block_size: int,
    seed: int | None,
    shuffle: bool,
    wrap: bool,
    num_processes: int = 1,
    num_workers: int = 1,
) -> Plan:
    """Checks arguments and files, and returns them in one piece.

    Args:
        filenames: as for `PackedDataset`; `ChunkFiles` are not read again.
        n_chunks: files in a window.
        block_size: tokens in a block.
        seed: of the shuffle.
        shuffle: whether the blocks of a window are shuffled.
        wrap: whether the first window follows the last one.
        num_processes: ranks that share the files, checked before.
        num_workers: loader processes of a rank, checked before.

    Raises:
        PackcoreError: as for `PackedDataset`.
    """
    n_chunks = check_int("n_chunks", n_chunks, low=1)
    block_size = check_int("block_size", block_size, low=1, unit="tokens")
    if seed is not None:
        seed = check_int("seed", seed, low=0, high=_MAX_SEED)
    paths = filenames.paths if isinstance(filenames, ChunkFiles) else _list_chunks(filenames)
    _check_num_files(len(paths), n_chunks, num_processes, num_workers)
    if not isinstance(filenames, ChunkFiles):
        filenames = ChunkFiles(paths, _read_headers(paths))
    _check_block_size(block_size, filenames.header.chunk_size)
    return Plan(filenames, n_chunks, block_size, seed, bool(shuffle), bool(wrap))


def _list_chunks(filenames: Filenames) -> tuple[str, ...]:
    """Returns the paths as str, without packcore's sidecars."""
    _check_is_list(filenames)
    paths = [_fspath(index, path) for index, path in enumerate(filenames)]
    chunks = tuple(path for path in paths if not path.endswith(_SIDECARS))
    if not chunks:
        found = f"a list of {len(paths)} sidecars only" if paths else "an empty list"
        raise NoDataError(
            f"filenames must name at least one chunk file; got {found}. Check the folder and the "
            "pattern that the list was made with."
        )
    return chunks


def _check_is_list(filenames: object) -> None:
    if isinstance(filenames, str | bytes | os.PathLike):
        raise ArgumentTypeError(
            f"filenames must be a list of chunk files; got the single path {filenames!r}. Put it "
            "into a list, or list a folder's files with sorted(glob.glob(...)).",
            name="filenames",
            value=filenames,
        )
    if isinstance(filenames, set | frozenset) or not isinstance(filenames, Iterable):
        raise ArgumentTypeError(
            "filenames must be a list of chunk files, in the same order on every rank and worker; "
            f"got a {type(filenames).__name__}. Use sorted(...).",
            name="filenames",
            value=filenames,
        )


def _fspath(index: int, path: Any) -> str:
    try:
        return os.fsdecode(path)
    except TypeError:
        raise ArgumentTypeError(
            f"filenames must hold paths; got {path!r} ({type(path).__name__}) at index {index}.",
            name="filenames",
            value=path,
        ) from None


def _check_num_files(num_files: int, n_chunks: int, num_processes: int, num_workers: int) -> None:
    num_shards = num_processes * num_workers
    needed = num_shards * n_chunks
    if num_files >= needed:
        return
    most = num_files // num_shards
    way_out = f"n_chunks of at most {most}" if most else "fewer processes or workers"
    raise ArgumentError(
        f"There must be at least num_processes x num_workers x n_chunks files: {num_processes} x "
        f"{num_workers} x {n_chunks} = {needed}; got {num_files} (files) for {num_shards} "
        f"(shards). Use {way_out}, or build again with a smaller chunk_size.",
        name="n_chunks",
        value=n_chunks,
    )


def _read_headers(paths: tuple[str, ...]) -> ChunkHeader:
    first = read_header(paths[0])
    for path in paths[1:]:
        header = read_header(path)
        for field in ("dtype", "chunk_size"):
            expected, got = getattr(first, field), getattr(header, field)
            if expected != got:
                raise MismatchError(
                    f"All chunks of a dataset must have the same {field}: {paths[0]} has "
                    f"{expected}, {path} has {got}. Make two datasets of them and mix these with "
                    "CombinedDataset.",
                    path=path,
                    expected=expected,
                    got=got,
                )
    return first


def _check_block_size(block_size: int, chunk_size: int) -> None:
    if block_size > chunk_size:
        raise ArgumentError(
            f"block_size must be in [1, chunk_size]; got {block_size} with chunk_size {chunk_size} "
            "(tokens). Use a smaller block_size or build again with larger chunks.",
            name="block_size",
            value=block_size,
        )
