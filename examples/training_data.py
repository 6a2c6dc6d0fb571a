"""The corpus and the batches that the training examples share: the same ones, bit for bit."""

from __future__ import annotations

from pathlib import Path

import stdlib_corpus

import packcore

FOLDER = Path(__file__).resolve().parent.parent / "demo-data" / "training"
LENGTH = 256
"""Tokens that the model reads: a block has one more, so that each has a target."""
BATCH_SIZE = 16
VOCAB_SIZE = stdlib_corpus.VOCAB_SIZE
FIELDS = ("tokens", "segment_ids", "positions", "loss_mask")


def loader() -> packcore.Loader:
    """Returns endless shuffled batches with document boundaries; packs the corpus if need be."""
    if not (FOLDER / "train.manifest.json").exists():
        pack()
    # The stride makes neighbours share a token: no target is lost between two blocks.
    blocks = packcore.open(FOLDER).blocks(LENGTH + 1, stride=LENGTH)
    return packcore.Loader(blocks, BATCH_SIZE, seed=1, fields=FIELDS)


def pack() -> None:
    """Packs Python's standard library, a token a byte."""
    print(f"packing Python's standard library into {FOLDER}")
    with packcore.PackedDatasetBuilder(
        FOLDER,
        "train",
        2**20,
        sep_token=stdlib_corpus.END_OF_DOCUMENT,
        vocab_size=VOCAB_SIZE,
        overwrite=True,  # what a killed try left
    ) as builder:
        for path in stdlib_corpus.documents():
            builder.add_document(stdlib_corpus.encode(path.read_bytes()), sep="after")
