"""Shows whether a corpus is whole: every byte, every id, every document's start.

Opening a corpus checks headers and sizes only; this reads all of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from packcore.corpora.manifests import find_manifests
from packcore.errors import FormatError, NoDataError
from packcore.format import VERSION, ChunkHeader, read_header
from packcore.manifest import (
    ChunkEntry,
    Manifest,
    documents_path,
    list_files,
    manifest_path,
    read_documents,
    read_manifest,
)

__all__ = ["Problem", "Verified", "verify"]

_BLOCK_BYTES = 2**22


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a file."""

    path: str
    what: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read, and what was found wrong."""

    num_manifests: int
    num_chunks: int
    num_bytes: int
    """Bytes of chunk files that were read."""
    num_tokens: int
    problems: tuple[Problem, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(
    source: str | os.PathLike[str], *, on_chunk: Callable[[ChunkEntry], object] | None = None
) -> Verified:
    """Reads a corpus and compares all of it with its manifests.

    It checks of each chunk file the header, the size, the checksum, and that the ids have the
    range that the manifest says and are in the vocabulary; of each document sidecar the checksum
    and that the starts ascend within the chunk; and that no file of the prefix is left over.

    Args:
        source: a folder, a manifest, or a prefix as in `corpus/train`.
        on_chunk: called after each chunk.

    Raises:
        NoDataError: there is no manifest.
    """
    paths = find_manifests(source)
    problems: list[Problem] = []
    entries: list[ChunkEntry] = []
    num_bytes = 0
    for path in paths:
        try:
            manifest = read_manifest(path)
        except FormatError as error:
            problems.append(Problem(path, str(error)))
            continue
        folder = os.path.dirname(path)
        problems.extend(_find_strays(folder, manifest))
        for entry in manifest.chunks:
            problems.extend(_check_chunk(folder, manifest, entry))
            entries.append(entry)
            num_bytes += manifest.chunk_size * manifest.dtype.itemsize
            if on_chunk is not None:
                on_chunk(entry)
    num_tokens = sum(entry.num_tokens for entry in entries)
    return Verified(len(paths), len(entries), num_bytes, num_tokens, tuple(problems))


def _find_strays(folder: str, manifest: Manifest) -> Iterator[Problem]:
    known = {manifest_path(folder, manifest.prefix)}
    for entry in manifest.chunks:
        path = os.path.join(folder, entry.file)
        known |= {path, documents_path(path)}
    for path in list_files(folder, manifest.prefix):
        if path not in known:
            yield Problem(path, "is of this prefix, but not in the manifest")


def _check_chunk(folder: str, manifest: Manifest, entry: ChunkEntry) -> Iterator[Problem]:
    path = os.path.join(folder, entry.file)
    try:
        header = read_header(path)
        if header != ChunkHeader(VERSION, manifest.dtype, manifest.chunk_size):
            yield Problem(path, f"has the header {header}, which is not the manifest's")
        else:
            yield from _check_content(path, header, manifest, entry)
    except (FormatError, NoDataError, OSError) as error:
        yield Problem(path, str(error))
    if entry.num_documents is not None:
        yield from _check_documents(path, entry)


def _check_content(
    path: str, header: ChunkHeader, manifest: Manifest, entry: ChunkEntry
) -> Iterator[Problem]:
    digest, low, high = _read_chunk(path, header, entry.num_tokens)
    if digest != entry.sha256:
        yield Problem(path, f"has the SHA-256 {digest}, the manifest says {entry.sha256}")
    if (low, high) != (entry.min_id, entry.max_id):
        expected = f"{entry.min_id} to {entry.max_id}"
        yield Problem(path, f"holds ids from {low} to {high}, the manifest says {expected}")
    limit = manifest.vocab_size
    if limit is not None and high is not None and (high >= limit or (low or 0) < 0):
        yield Problem(path, f"holds ids from {low} to {high}; the vocabulary has {limit}")


def _read_chunk(path: str, header: ChunkHeader, num_tokens: int) -> tuple[str, Any, Any]:
    """Reads a file once; returns its hash, and the smallest and largest valid id."""
    lows, highs = [], []
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read(len(header.to_bytes())))
        left = num_tokens
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            tokens = np.frombuffer(block, header.dtype)[:left]
            left -= len(tokens)
            if len(tokens):
                lows.append(tokens.min())
                highs.append(tokens.max())
    if not lows:
        return digest.hexdigest(), None, None
    low, high = (end.item() if np.isfinite(end) else None for end in (min(lows), max(highs)))
    return digest.hexdigest(), low, high


def _check_documents(chunk_path: str, entry: ChunkEntry) -> Iterator[Problem]:
    path = documents_path(chunk_path)
    try:
        read_documents(chunk_path, entry)
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (FormatError, NoDataError, OSError) as error:
        yield Problem(path, str(error))
        return
    if entry.documents_sha256 is not None and digest != entry.documents_sha256:
        yield Problem(path, f"has the SHA-256 {digest}, the manifest says {entry.documents_sha256}")
