"""Joins corpora into one without rewriting a token: chunk files are linked, or copied."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from packcore.corpora.manifests import find_manifests
from packcore.errors import ArgumentError, MismatchError, WriteError
from packcore.files import sync_folder
from packcore.manifest import (
    ChunkEntry,
    Manifest,
    check_prefix,
    chunk_path,
    documents_path,
    read_manifest,
    write_manifest,
)
from packcore.writer import prepare_folder

__all__ = ["merge"]

_ALIKE = ("dtype", "chunk_size", "sep_token", "tokenizer_hash")


def merge(
    sources: Iterable[str | os.PathLike[str]],
    outdir: str | os.PathLike[str],
    *,
    prefix: str = "train",
    overwrite: bool = False,
    provenance: dict[str, Any] | None = None,
) -> Manifest:
    """Makes one corpus of several, in their order.

    No token is written again: the chunk files are hard links to those of the sources, or copies
    where the file system has no such links. A chunk that is not full stays so.

    Args:
        sources: folders, manifests or prefixes; a folder stands for all its manifests.
        outdir: the folder of the new corpus; made if there is none.
        prefix: what the new files' names begin with.
        overwrite: remove the files of this prefix that are there.
        provenance: how the corpus was made, for the manifest; the fingerprints of the sources by
            default.

    Returns:
        The new manifest.

    Raises:
        NoDataError: a source has no manifest.
        MismatchError: two sources differ in dtype, chunk_size, sep_token or tokenizer, or only
            some have their documents recorded.
        ArgumentError: there is no source, or one of them is the corpus to be written.
        OverwriteError: files of this prefix are there, and `overwrite` is False.
        WriteError: the disk refused.
    """
    check_prefix(prefix)
    paths = [path for source in sources for path in find_manifests(source)]
    if not paths:
        raise ArgumentError("sources must name at least one corpus; got none.", name="sources")
    manifests = [read_manifest(path) for path in paths]
    for path, manifest in zip(paths, manifests, strict=True):
        _check_alike(paths[0], manifests[0], path, manifest)
        here = os.path.realpath(os.path.dirname(path)), manifest.prefix
        if here == (os.path.realpath(outdir), prefix):
            raise ArgumentError(
                f"outdir and prefix must not be a source's; got {path}. Choose another prefix.",
                name="prefix",
                value=prefix,
            )
    outdir = os.fspath(outdir) or "."
    prepare_folder(outdir, prefix, overwrite=overwrite)
    entries: list[ChunkEntry] = []
    for path, manifest in zip(paths, manifests, strict=True):
        for entry in manifest.chunks:
            target = chunk_path(outdir, prefix, len(entries))
            _take_files(os.path.join(os.path.dirname(path), entry.file), target, entry)
            entries.append(replace(entry, file=os.path.basename(target)))
    sync_folder(outdir)
    sizes = [manifest.vocab_size for manifest in manifests]
    known = [size for size in sizes if size is not None]
    if provenance is None:
        provenance = {"merged": [manifest.fingerprint for manifest in manifests]}
    merged = replace(
        manifests[0],
        prefix=prefix,
        chunks=tuple(entries),
        vocab_size=max(known) if len(known) == len(sizes) else None,
        provenance=provenance,
    )
    write_manifest(outdir, merged)
    return merged


def _check_alike(first_path: str, first: Manifest, path: str, manifest: Manifest) -> None:
    facts: list[tuple[str, object, object]] = [
        (name, getattr(first, name), getattr(manifest, name)) for name in _ALIKE
    ]
    recorded = [one.num_documents is not None for one in (first, manifest)]
    facts.append(("documents recorded", recorded[0], recorded[1]))
    for name, expected, got in facts:
        if got != expected:
            raise MismatchError(
                f"{path} has {name} {got}, but {first_path} has {expected}. Read them as two data "
                "sets and mix them with packcore.Mixture, or build them again alike.",
                path=path,
                expected=expected,
                got=got,
            )


def _take_files(source: str, target: str, entry: ChunkEntry) -> None:
    try:
        if entry.num_documents is not None:
            _link_or_copy(documents_path(source), documents_path(target))
        _link_or_copy(source, target)
    except OSError as error:
        raise WriteError(
            f"Could not make {target} of {source}: {error.strerror or error}. There is no manifest "
            "yet; see to it and merge again with overwrite=True.",
            path=target,
            errno=error.errno,
        ) from error


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or a file system without links
        temporary = f"{target}.{secrets.token_hex(4)}.tmp"
        try:
            shutil.copyfile(source, temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)
