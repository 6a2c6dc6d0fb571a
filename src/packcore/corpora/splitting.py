"""Splits a corpus by documents, so that each one stays on its side when data is added."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.builder import PackedDatasetBuilder
from packcore.checks import check_int
from packcore.corpora.manifests import find_manifests
from packcore.dataset import Dataset
from packcore.dataset import open as open_dataset
from packcore.errors import ArgumentError, MismatchError
from packcore.manifest import Manifest, read_manifest

__all__ = ["split"]

_SPAN_TOKENS = 2**22
"""Documents are taken in spans of about this many tokens."""


def split(
    source: str | os.PathLike[str],
    outdir: str | os.PathLike[str],
    *,
    fraction: float,
    seed: int = 0,
    train: str = "train",
    validation: str = "validation",
    overwrite: bool = False,
    on_documents: Callable[[int], object] | None = None,
) -> tuple[Manifest, Manifest]:
    """Splits a corpus into two, document by document.

    A document's side is decided by a hash of its ids and the seed, and by nothing else: it keeps
    its side when documents are added or removed, and copies of it are on the same side. So the
    share of the validation side is `fraction` only on average. Both sides are written anew, as
    nearly every chunk has documents of both.

    Args:
        source: a folder, a manifest, or a prefix; with its documents recorded.
        outdir: the folder of both sides.
        fraction: the share of documents for validation, in (0, 1).
        seed: another one gives another split.
        train: the prefix of the larger side.
        validation: the prefix of the other side.
        overwrite: remove the files of these prefixes that are there.
        on_documents: called with the number of documents done, now and then.

    Returns:
        The manifests of both sides, train first.

    Raises:
        ArgumentError: an argument breaks its rule, or documents are unknown.
        NoDataError: there is no manifest.
        MismatchError: the manifests of a folder differ.
        OverwriteError: files of these prefixes are there, and `overwrite` is False.
        WriteError: the disk refused.
    """
    if not isinstance(fraction, float | int) or not 0 < fraction < 1:
        raise ArgumentError(
            f"fraction must be in (0, 1); got {fraction!r}.", name="fraction", value=fraction
        )
    seed = check_int("seed", seed, low=0)
    if train == validation:
        raise ArgumentError("train and validation must be two names.", name="train", value=train)
    paths = find_manifests(source)
    first = _read_alike(paths)
    for path in paths:
        here = os.path.realpath(os.path.dirname(path)) == os.path.realpath(outdir)
        if here and os.path.basename(path).removesuffix(".manifest.json") in (train, validation):
            raise ArgumentError(
                f"outdir must not hold the source under one of the new names; got {path}.",
                name="outdir",
                value=outdir,
            )
    dataset = open_dataset(source)
    dataset.check_documents()
    builders = [_builder(outdir, name, first, overwrite=overwrite) for name in (train, validation)]
    key = seed.to_bytes(8, "little")
    limit = math.floor(fraction * 2**64)
    with builders[0], builders[1]:
        done = 0
        for flat, lengths in _spans(dataset):
            is_validation = _choose(flat, lengths, key, limit)
            is_token = np.repeat(is_validation, lengths)
            builders[0].add_documents(flat[~is_token], lengths[~is_validation])
            builders[1].add_documents(flat[is_token], lengths[is_validation])
            done += len(lengths)
            if on_documents is not None:
                on_documents(done)
        origin = {"fingerprint": dataset.fingerprint, "fraction": fraction, "seed": seed}
        made = [
            builder.close(provenance={"split": {**origin, "side": side}})
            for builder, side in zip(builders, ("train", "validation"), strict=True)
        ]
    return made[0], made[1]


def _read_alike(paths: list[str]) -> Manifest:
    manifests = [read_manifest(path) for path in paths]
    for path, manifest in zip(paths, manifests, strict=True):
        for name in ("sep_token", "tokenizer_hash", "vocab_size"):
            expected, got = getattr(manifests[0], name), getattr(manifest, name)
            if expected != got:
                raise MismatchError(
                    f"{path} has {name} {got}, but {paths[0]} has {expected}. Split them one by "
                    "one, by their prefixes.",
                    path=path,
                    expected=expected,
                    got=got,
                )
    return manifests[0]


def _builder(
    outdir: str | os.PathLike[str], prefix: str, like: Manifest, *, overwrite: bool
) -> PackedDatasetBuilder:
    return PackedDatasetBuilder(
        outdir,
        prefix,
        like.chunk_size,
        like.sep_token,
        like.dtype,
        like.vocab_size,
        overwrite=overwrite,
        tokenizer=like.tokenizer,
        tokenizer_hash=like.tokenizer_hash,
    )


def _spans(dataset: Dataset) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
    """Yields the ids of some documents behind each other, and their lengths."""
    waiting: npt.NDArray[np.int64] = np.empty(0, np.int64)
    for index in range(len(dataset.chunks)):
        found = dataset.chunk_document_starts(index) + dataset.bounds[index]
        starts = np.concatenate((waiting, found))
        # The last one may run on.
        yield from _cut(dataset, starts)
        waiting = starts[-1:]
    yield from _cut(dataset, np.concatenate((waiting, [dataset.num_tokens])))


def _cut(
    dataset: Dataset, bounds: npt.NDArray[np.int64]
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
    low = 0
    while low + 1 < len(bounds):
        high = int(np.searchsorted(bounds, bounds[low] + _SPAN_TOKENS, side="right")) - 1
        high = min(max(high, low + 1), len(bounds) - 1)
        tokens = dataset.tokens(int(bounds[low]), int(bounds[high]))
        yield tokens, np.diff(bounds[low : high + 1])
        low = high


def _choose(
    flat: npt.NDArray[Any], lengths: npt.NDArray[np.int64], key: bytes, limit: int
) -> npt.NDArray[np.bool_]:
    """Returns `(num_documents,)`, bool: which documents are for validation."""
    content = memoryview(flat.astype("<i8").tobytes())  # the same in any dtype
    chosen = np.empty(len(lengths), np.bool_)
    at = 0
    for number, length in enumerate(lengths.tolist()):
        digest = hashlib.blake2b(content[8 * at : 8 * (at + length)], digest_size=8, key=key)
        chosen[number] = int.from_bytes(digest.digest(), "little") < limit
        at += length
    return chosen
