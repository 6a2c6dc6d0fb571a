"""What the tests of packcore_torch share: a corpus, its loader, and what should be served."""

import numpy as np
import pytest
import torch

import packcore

IGNORED = [
    # Python 3.12 warns of fork in a process with threads, and torch always has some.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
    # torchdata 0.11 calls what torch 2.13 has deprecated.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    # Four workers on a machine of two cores are slow, which is no matter here.
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

NUM_TOKENS = 704


def write_corpus(folder):
    """Documents of 1 to 16 tokens with an end each: 88 blocks of 8 tokens, no two alike."""
    with packcore.PackedDatasetBuilder(folder, "train", 64, 0, vocab_size=4096) as builder:
        at, length = 0, 0
        while at < NUM_TOKENS:
            length = min(length % 16 + 1, NUM_TOKENS - at)
            document = np.arange(at + 1, at + length)
            builder.add_document(document, sep="after")
            at += length
    return folder


def make_loader(folder, **options):
    """11 steps of 8 blocks, unless `options` say otherwise."""
    blocks = packcore.open(folder).blocks(8)
    return packcore.Loader(blocks, **{"global_batch_size": 8, "seed": 3, "epochs": 1, **options})


def expected(folder, **options):
    """The batches of a run as lists, read one by one with no thread and no torch."""
    loader = make_loader(folder, **options)
    return [loader.batch_at(step).tolist() for step in range(len(loader))]


def as_lists(batches):
    """The same of tensors, if they are plain ones of int64."""
    batches = list(batches)
    assert all(type(batch) is torch.Tensor and batch.dtype == torch.int64 for batch in batches)
    return [batch.tolist() for batch in batches]


def joined(parts):
    return [row for part in parts for row in part]


def global_batches(ranks):
    """The rows of every rank's batches, put together step by step."""
    return [joined(parts) for parts in zip(*ranks, strict=True)]
