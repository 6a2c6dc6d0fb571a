"""Shows that the chunks which an earlier run finished are still of the size that they had.

Their bytes are not read: that is for `packcore.corpora.verify`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from packcore.errors import FormatError, NoDataError
from packcore.format import VERSION, ChunkHeader
from packcore.manifest import ChunkEntry, documents_path, encode_documents

__all__ = ["check_kept"]


def check_kept(
    outdir: str, entries: Sequence[ChunkEntry], chunk_size: int, dtype: np.dtype[Any]
) -> None:
    """Compares the sizes of finished chunks and their sidecars with what they must be.

    Args:
        outdir: the folder.
        entries: the chunks.
        chunk_size: tokens a chunk file.
        dtype: of the tokens on disk.

    Raises:
        NoDataError: a file is gone.
        FormatError: a file has another size.
    """
    for path, expected in _sizes(outdir, entries, chunk_size, dtype):
        try:
            got = os.path.getsize(path)
        except FileNotFoundError:
            raise NoDataError(
                f"There is no file {path}, which an earlier run of this build finished. Put it "
                "back, or build anew with overwrite=True.",
                path=path,
            ) from None
        if got != expected:
            raise FormatError(
                f"{path} must have {expected} bytes, as when an earlier run of this build "
                f"finished it; got {got}. Put it back, or build anew with overwrite=True.",
                path=path,
                expected=expected,
                got=got,
            )


def _sizes(
    outdir: str, entries: Sequence[ChunkEntry], chunk_size: int, dtype: np.dtype[Any]
) -> Iterator[tuple[str, int]]:
    """Yields the path of each file, and its size in bytes."""
    chunk_bytes = ChunkHeader(VERSION, dtype, chunk_size).file_bytes
    no_documents, one_document = (
        len(encode_documents(np.zeros(number, np.int64), chunk_size)) for number in (0, 1)
    )
    for entry in entries:
        path = os.path.join(outdir, entry.file)
        yield path, chunk_bytes
        if entry.num_documents is not None:
            starts = entry.num_documents * (one_document - no_documents)
            yield documents_path(path), no_documents + starts
