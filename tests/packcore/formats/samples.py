"""The samples of other formats, and ways to look at them and to damage them."""

from __future__ import annotations

import itertools
import shutil
import tracemalloc
from pathlib import Path

import numpy as np

import packcore
from packcore.errors import PackcoreError

SAMPLES = Path(__file__).parents[2] / "formats"
DOCUMENTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [50000, 65535]]
WITH_0 = [[*document, 0] for document in DOCUMENTS]

MOST_MEMORY = 64 * 2**20


def documents_of(source, **options):
    """All documents of a data set, and a check that they are all of its tokens."""
    dataset = packcore.open(source, **options)
    documents = [dataset.document(index).tolist() for index in range(dataset.num_documents)]
    assert list(itertools.chain(*documents)) == dataset.tokens(0, dataset.num_tokens).tolist()
    return documents


def copy_of(name, folder):
    """A copy of a sample's folder that may be damaged."""
    target = Path(folder) / Path(name).name
    shutil.copytree(SAMPLES / name, target)
    return target


def damage(content, rng):
    """Flips bits, cuts off, repeats, overwrites with extreme numbers, or makes up the content."""
    kind = rng.integers(6)
    data = bytearray(content)
    if kind == 0 or not data:
        return rng.bytes(int(rng.integers(200)))
    if kind == 1:
        return bytes(data[: rng.integers(len(data))])
    if kind == 2:
        return bytes(data) + rng.bytes(int(rng.integers(1, 40)))
    at = int(rng.integers(min(len(data), 600)))
    if kind == 3:
        extreme = int(rng.choice([0, 1, 2**7, 2**15, 2**31, 2**32 - 1, 2**63 - 1]))
        data[at : at + 8] = extreme.to_bytes(8, "little")
        return bytes(data)
    for _ in range(rng.integers(1, 4)):
        data[int(rng.integers(min(len(data), 600)))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def check_damaged(folder, files, source, *, seed, rounds, **options):
    """Shows that damaged files are read or refused, and that nothing else happens.

    Returns:
        How many were read and how many were refused.
    """
    rng = np.random.default_rng(seed)
    contents = {file: (folder / file).read_bytes() for file in files}
    counts = {"read": 0, "refused": 0}
    tracemalloc.start()
    try:
        for _ in range(rounds):
            file = files[int(rng.integers(len(files)))]
            (folder / file).write_bytes(damage(contents[file], rng))
            try:
                dataset = packcore.open(source, **options)
                size = dataset.tokens(0, dataset.num_tokens).nbytes
                assert size <= 64 * sum(path.stat().st_size for path in folder.rglob("*"))
                assert len(dataset.fingerprint) == 64
                if dataset.has_documents:
                    starts = dataset.document_starts(0, dataset.num_tokens)
                    assert (np.diff(starts) >= 0).all()
                    assert len(starts) <= dataset.num_documents
                counts["read"] += 1
            except PackcoreError:
                counts["refused"] += 1
            (folder / file).write_bytes(contents[file])
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    return counts
