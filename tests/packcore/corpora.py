"""Small corpora on disk, with what should be read from them as plain Python lists."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

from packcore.format import VERSION, ChunkHeader
from packcore.manifest import (
    ChunkEntry,
    Manifest,
    chunk_path,
    documents_path,
    encode_documents,
    manifest_path,
    write_manifest,
)


@contextlib.contextmanager
def fast_folder():
    """A folder in memory if there is one: thousands of files are slow on disk."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield folder


@dataclass
class Row:
    """What should be read: the tokens, where documents begin, the tokens of each chunk."""

    tokens: list = field(default_factory=list)
    starts: list = field(default_factory=list)
    sizes: list = field(default_factory=list)

    @property
    def bounds(self):
        return [sum(self.sizes[:index]) for index in range(len(self.sizes) + 1)]

    def document(self, index):
        ends = [*self.starts[1:], len(self.tokens)]
        return self.tokens[self.starts[index] : ends[index]]

    def starts_in(self, start, stop):
        return [at for at in self.starts if start <= at < stop]

    def documents_in(self, start, stop):
        """The documents with a token in [start, stop), and the empty ones between them."""
        spans = zip(self.starts, [*self.starts[1:], len(self.tokens)], strict=True)
        found = [n for n, (low, high) in enumerate(spans) if max(low, start) < min(high, stop)]
        return list(range(found[0], found[-1] + 1)) if found else []

    def __add__(self, other):
        shifted = [start + len(self.tokens) for start in other.starts]
        return Row(self.tokens + other.tokens, self.starts + shifted, self.sizes + other.sizes)


def write_chunk(path, tokens, *, chunk_size=None, dtype="uint16", fill=0):
    """Writes one chunk file, the tail filled; returns its path."""
    dtype = np.dtype(dtype)
    size = len(tokens) if chunk_size is None else chunk_size
    filled = [*tokens, *[fill] * (size - len(tokens))]
    content = ChunkHeader(VERSION, dtype, size).to_bytes() + np.array(filled, dtype).tobytes()
    Path(path).write_bytes(content)
    return os.fspath(path)


def write_files(folder, prefix, tokens, chunk_size, *, dtype="uint16", fill=0):
    """Writes chunks as lit-gpt does: without a manifest, the last one filled. Returns the paths."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return [
        write_chunk(
            chunk_path(folder, prefix, index),
            tokens[start : start + chunk_size],
            chunk_size=chunk_size,
            dtype=dtype,
            fill=fill,
        )
        for index, start in enumerate(range(0, len(tokens), chunk_size))
    ]


def write_corpus(folder, prefix, documents, chunk_size, *, dtype="uint16", fill=0, recorded=True):
    """Writes chunks with a manifest, and with sidecars if documents are recorded.

    Returns:
        The `Row` that should be read.
    """
    tokens = [token for document in documents for token in document]
    starts, at = [], 0
    for document in documents:
        starts.append(at)
        at += len(document)
    paths = write_files(folder, prefix, tokens, chunk_size, dtype=dtype, fill=fill)
    entries = []
    for index, path in enumerate(paths):
        low, high = index * chunk_size, min((index + 1) * chunk_size, len(tokens))
        inside = [start - low for start in _starts_of_chunk(documents, starts, low, high)]
        entries.append(_entry(path, tokens[low:high], inside if recorded else None, chunk_size))
    manifest = Manifest(prefix, np.dtype(dtype), chunk_size, fill, tuple(entries))
    with mock.patch("os.fsync"):  # dozens of corpora in one test
        write_manifest(folder, manifest)
    return Row(tokens, starts, [entry.num_tokens for entry in entries])


def _starts_of_chunk(documents, starts, low, high):
    """The builder records an empty document in the chunk of the token before it."""
    for document, start in zip(documents, starts, strict=True):
        if document:
            if low <= start < high:
                yield start
        elif low < start <= high or start == low == 0:
            yield start


def _entry(path, tokens, starts, chunk_size):
    sha256 = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    ends = (min(tokens), max(tokens)) if tokens else (None, None)
    if starts is None:
        return ChunkEntry(Path(path).name, len(tokens), None, sha256, *ends)
    sidecar = encode_documents(np.array(starts, np.int64), chunk_size)
    Path(documents_path(path)).write_bytes(sidecar)
    digest = hashlib.sha256(sidecar).hexdigest()
    return ChunkEntry(Path(path).name, len(tokens), len(starts), sha256, *ends, digest)


def edit_manifest(folder, prefix, edit):
    """Rewrites a manifest's text: `edit` is given it and returns the new one."""
    path = Path(manifest_path(folder, prefix))
    path.write_text(edit(path.read_text()))
    return os.fspath(path)
