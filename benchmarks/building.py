"""Building chunk files from token ids that are in memory already."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.baseline import RawBuilder
from benchmarks.corpus import VOCAB_SIZE, make_documents
from benchmarks.harness import Contest
from packcore import PackedDatasetBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.harness import Sizes


def fresh(folder: Path) -> Path:
    """Empties a folder: every turn writes the same files again."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def contests(sizes: Sizes, folder: Path) -> Iterator[Contest]:
    """Checked, checksummed and synced builds, beside a builder that only copies and writes."""
    for mean_length in (1000, 100):
        yield from _contests(sizes, folder, mean_length)


def _contests(sizes: Sizes, folder: Path, mean_length: int) -> Iterator[Contest]:
    documents = make_documents(sizes, mean_length)
    flat, lengths = np.concatenate(documents), np.array([len(one) for one in documents])

    def raw(*, sync: bool = False) -> int:
        place = fresh(folder / "raw")
        builder = RawBuilder(place, "train", sizes.chunk_size, sep_token=0, sync=sync)
        for document in documents:
            builder.add_array(document)
        builder.write()
        return len(flat)

    def builder() -> PackedDatasetBuilder:
        place = fresh(folder / "ours")
        return PackedDatasetBuilder(
            place, "train", sizes.chunk_size, sep_token=0, vocab_size=VOCAB_SIZE
        )

    def one_by_one() -> int:
        with builder() as corpus:
            for document in documents:
                corpus.add_document(document)
        return len(flat)

    def at_once() -> int:
        with builder() as corpus:
            corpus.add_documents(flat, lengths)
        return len(flat)

    what = f"of {mean_length} tokens"
    yield Contest(f"build: add_document, {what}", one_by_one, raw, target=0.5)
    yield Contest(f"build: add_documents, {what}", at_once, raw, target=2.0)
    yield Contest(
        f"build: add_documents, {what}",
        at_once,
        lambda: raw(sync=True),
        target=None,
        rival="the same, each file synced",
    )
