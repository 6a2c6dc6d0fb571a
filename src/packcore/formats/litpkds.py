"""LITPKDS, the house's own chunk files, as one format among the others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from packcore.chunks import Chunk, find_chunks
from packcore.format import HDR_MAGIC
from packcore.formats.options import Options
from packcore.formats.reading import read_head
from packcore.rawfiles import list_folder

__all__ = ["find", "open_files"]

_BESIDE = (".manifest.json", ".docs.npy")


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns `path` if it is a chunk, what stands beside one, or a folder with a manifest."""
    if os.path.isdir(path):
        return path if any(name.endswith(_BESIDE[0]) for name in list_folder(path)) else None
    return path if path.endswith(_BESIDE) or read_head(path).startswith(HDR_MAGIC) else None


def open_files(paths: Sequence[str], options: Options) -> Iterable[Chunk]:
    """Returns the chunks."""
    return find_chunks(paths, sep_token=options.sep_token)
