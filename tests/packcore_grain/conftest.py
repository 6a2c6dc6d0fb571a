import os

import numpy as np
import pytest

import packcore

collect_ignore = ["jax_process.py"]  # a script: it needs JAX and is run by its test

# Read when JAX begins, which is later. A mesh needs more than one device.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """60 documents in several chunks, each of 1 to 29 random tokens and a separator."""
    return build(tmp_path_factory.mktemp("corpus"), seed=0)


@pytest.fixture(scope="session")
def other_corpus(tmp_path_factory):
    return build(tmp_path_factory.mktemp("other"), seed=1)


def build(folder, *, seed):
    rng = np.random.default_rng(seed)
    with packcore.PackedDatasetBuilder(folder, "train", 64, 0, vocab_size=100) as builder:
        for length in rng.integers(1, 30, size=60):
            builder.add_document(rng.integers(1, 100, size=length), sep="after")
    return packcore.open(folder)
