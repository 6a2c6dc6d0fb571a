"""What goes wrong, one row a fault: the error's type, its whole message, its attributes.

Rows marked "reference" say what lit-gpt's classes do there.
"""

import math
import os
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from reference_chunks import write_chunks

from packcore.errors import (
    ArgumentError,
    ArgumentTypeError,
    FormatError,
    MismatchError,
    NoDataError,
)
from packcore.format import VERSION, ChunkHeader
from packcore.reference import (
    CombinedDataset,
    CombinedDatasetIterator,
    PackedDataset,
    PackedDatasetIterator,
)


@pytest.fixture
def files(tmp_path):
    return write_chunks(tmp_path, 12)


def check(caught, message, attributes):
    assert str(caught.value) == textwrap.dedent(message).strip().replace("\n", " ")
    for name, value in attributes.items():
        assert getattr(caught.value, name) == value
    again = pickle.loads(pickle.dumps(caught.value))  # as a pool of processes sends it
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))


ARGUMENT_FAULTS = {
    # reference: StopIteration (lit-gpt) or IndexError (TinyLlama) out of iter()
    "fewer files than a window": (
        {"n_chunks": 13},
        ArgumentError,
        """
        There must be at least num_processes x num_workers x n_chunks files: 1 x 1 x 13 = 13; got
        12 (files) for 1 (shards). Use n_chunks of at most 12, or build again with a smaller
        chunk_size.
        """,
        {"name": "n_chunks", "value": 13},
    ),
    "fewer files than shards times n_chunks": (
        {"n_chunks": 2, "num_processes": 2, "num_workers": 4, "worker_id": 3},
        ArgumentError,
        """
        There must be at least num_processes x num_workers x n_chunks files: 2 x 4 x 2 = 16; got
        12 (files) for 8 (shards). Use n_chunks of at most 1, or build again with a smaller
        chunk_size.
        """,
        {"name": "n_chunks", "value": 2},
    ),
    # reference: IndexError out of iter(), in the worker
    "fewer files than shards": (
        {"num_processes": 13, "process_rank": 12},
        ArgumentError,
        """
        There must be at least num_processes x num_workers x n_chunks files: 13 x 1 x 1 = 13; got
        12 (files) for 13 (shards). Use fewer processes or workers, or build again with a smaller
        chunk_size.
        """,
        {"name": "n_chunks"},
    ),
    # reference: IndexError at the first block
    "blocks larger than the chunks": (
        {"block_size": 11},
        ArgumentError,
        """
        block_size must be in [1, chunk_size]; got 11 with chunk_size 10 (tokens). Use a smaller
        block_size or build again with larger chunks.
        """,
        {"name": "block_size", "value": 11},
    ),
    "no block size": (
        {"block_size": 0},
        ArgumentError,
        "block_size must be at least 1; got 0 (tokens).",
        {"name": "block_size", "value": 0},
    ),
    # reference: TypeError, int times None
    "no window": (
        {"n_chunks": 0},
        ArgumentError,
        "n_chunks must be at least 1; got 0.",
        {"name": "n_chunks", "value": 0},
    ),
    "half a chunk": (
        {"n_chunks": 1.5},
        ArgumentTypeError,
        "n_chunks must be an integer; got 1.5 (float).",
        {"name": "n_chunks", "value": 1.5},
    ),
    "a negative seed": (
        {"seed": -1},
        ArgumentError,
        f"seed must be in [0, {2**128 - 1}]; got -1.",
        {"name": "seed", "value": -1},
    ),
    "a seed of text": (
        {"seed": "1"},
        ArgumentTypeError,
        "seed must be an integer; got '1' (str).",
        {"name": "seed", "value": "1"},
    ),
    # reference: serves another rank's files
    "a rank that does not exist": (
        {"num_processes": 2, "process_rank": 2},
        ArgumentError,
        "process_rank must be in [0, 1]; got 2.",
        {"name": "process_rank", "value": 2},
    ),
    "no process": (
        {"num_processes": 0},
        ArgumentError,
        "num_processes must be at least 1; got 0.",
        {"name": "num_processes", "value": 0},
    ),
    "no worker": (
        {"num_workers": 0},
        ArgumentError,
        "num_workers must be at least 1; got 0.",
        {"name": "num_workers", "value": 0},
    ),
    "a worker that does not exist": (
        {"num_workers": 3, "worker_id": 3},
        ArgumentError,
        "worker_id must be in [0, 2]; got 3.",
        {"name": "worker_id", "value": 3},
    ),
    # reference: there is no file "t"
    "one path as text": (
        {"filenames": "train_0000000000.bin"},
        ArgumentTypeError,
        """
        filenames must be a list of chunk files; got the single path 'train_0000000000.bin'. Put it
        into a list, or list a folder's files with sorted(glob.glob(...)).
        """,
        {"name": "filenames"},
    ),
    # sorted differently in every process: ranks would share files
    "a set": (
        {"filenames": {"a.bin", "b.bin"}},
        ArgumentTypeError,
        """
        filenames must be a list of chunk files, in the same order on every rank and worker; got a
        set. Use sorted(...).
        """,
        {"name": "filenames"},
    ),
    "no list": (
        {"filenames": 7},
        ArgumentTypeError,
        """
        filenames must be a list of chunk files, in the same order on every rank and worker; got a
        int. Use sorted(...).
        """,
        {"name": "filenames", "value": 7},
    ),
    "no path in the list": (
        {"filenames": ["a.bin", None]},
        ArgumentTypeError,
        "filenames must hold paths; got None (NoneType) at index 1.",
        {"name": "filenames", "value": None},
    ),
    # reference: IndexError out of iter()
    "an empty list": (
        {"filenames": []},
        NoDataError,
        """
        filenames must name at least one chunk file; got an empty list. Check the folder and the
        pattern that the list was made with.
        """,
        {},
    ),
    "sidecars only": (
        {"filenames": ["a.manifest.json", "a_0000000000.docs.npy"]},
        NoDataError,
        """
        filenames must name at least one chunk file; got a list of 2 sidecars only. Check the
        folder and the pattern that the list was made with.
        """,
        {},
    ),
}


@pytest.mark.parametrize(
    ("arguments", "error", "message", "attributes"), ARGUMENT_FAULTS.values(), ids=ARGUMENT_FAULTS
)
def test_a_wrong_argument_is_named_when_the_dataset_is_made(
    files, arguments, error, message, attributes
):
    with pytest.raises(error) as caught:
        PackedDataset(**({"filenames": files, "n_chunks": 1, "block_size": 5} | arguments))
    check(caught, message, attributes)


ITERATOR_FAULTS = ("fewer files than a window", "blocks larger than the chunks", "an empty list")


@pytest.mark.parametrize("fault", ITERATOR_FAULTS)
def test_an_iterator_made_directly_checks_the_same(files, fault):
    arguments, error, message, attributes = ARGUMENT_FAULTS[fault]
    defaults = {"filenames": files, "n_chunks": 1, "block_size": 5}
    defaults |= {"seed": 1, "shuffle": True, "wrap": False}
    with pytest.raises(error) as caught:
        PackedDatasetIterator(**defaults | arguments)
    check(caught, message, attributes)


def test_too_many_workers_for_the_files_are_named(files):
    dataset = PackedDataset(files, 4, 5, num_processes=3)
    with pytest.raises(ArgumentError) as caught:
        dataset.for_worker(num_workers=2, worker_id=0)
    message = """
        There must be at least num_processes x num_workers x n_chunks files: 3 x 2 x 4 = 24; got
        12 (files) for 6 (shards). Use n_chunks of at most 2, or build again with a smaller
        chunk_size.
    """
    check(caught, message, {"name": "n_chunks", "value": 4})


def test_with_as_many_files_as_needed_there_is_no_fault(files):
    for worker in range(2):
        dataset = PackedDataset(files, 2, 5, num_processes=3, num_workers=2, worker_id=worker)
        assert sum(1 for _ in dataset) == 4


def rewrite(path, *, dtype="uint16", chunk_size=10, cut=None, magic=None, more=b"", text=None):
    payload = np.zeros(chunk_size, dtype).tobytes()
    content = ChunkHeader(VERSION, np.dtype(dtype), chunk_size).to_bytes() + payload + more
    content = (magic or content[:7]) + content[7:cut]
    with open(path, "wb") as file:
        file.write(content if text is None else text)


# {first} and {bad} stand for the first file's path and that of the file which is at fault.
FILE_FAULTS = {
    # reference: serves 100, 0, 101, 0 for 100, 101
    "another dtype": (
        lambda path: rewrite(path, dtype="int32"),
        MismatchError,
        (
            "All chunks of a dataset must have the same dtype: {first} has uint16, {bad} has "
            "int32. Make two datasets of them and mix these with CombinedDataset."
        ),
        {"expected": np.dtype("uint16"), "got": np.dtype("int32")},
    ),
    # reference: leaves tokens out, or ValueError when a block is past a shorter file's end
    "another chunk_size": (
        lambda path: rewrite(path, chunk_size=12),
        MismatchError,
        (
            "All chunks of a dataset must have the same chunk_size: {first} has 10, {bad} has 12. "
            "Make two datasets of them and mix these with CombinedDataset."
        ),
        {"expected": 10, "got": 12},
    ),
    # reference: serves what is there as tokens
    "a foreign file": (
        lambda path: rewrite(path, magic=b"FOREIGN"),
        FormatError,
        (
            "{bad} is not a LITPKDS chunk: expected b'LITPKDS' at byte 0, but it starts with "
            "b'FOREIGN' and has 44 bytes."
        ),
        {"offset": 0, "expected": b"LITPKDS", "got": b"FOREIGN"},
    ),
    "a JSON file that is no sidecar": (
        lambda path: rewrite(path, text=b'{"format": 1}'),
        FormatError,
        "{bad} is not a LITPKDS chunk: expected b'LITPKDS' at byte 0, but it looks like JSON text.",
        {"offset": 0},
    ),
    "an empty file": (
        lambda path: rewrite(path, text=b""),
        FormatError,
        "{bad} is not a LITPKDS chunk: expected b'LITPKDS' at byte 0, but it is empty.",
        {"got": b""},
    ),
    # reference: ValueError at the block that is cut off, hours later
    "a truncated file": (
        lambda path: rewrite(path, cut=-1),
        FormatError,
        (
            "{bad} is truncated: its header says 10 tokens of uint16, so 44 bytes; got 43. Copy or "
            "build it again."
        ),
        {"offset": 43, "expected": 44, "got": 43},
    ),
    "trailing bytes": (
        lambda path: rewrite(path, more=b"xx"),
        FormatError,
        (
            "{bad} has trailing bytes: its header says 10 tokens of uint16, so 44 bytes; got 46. "
            "Copy or build it again."
        ),
        {"offset": 44, "expected": 44, "got": 46},
    ),
    # reference: FileNotFoundError when its window comes
    "a file that is gone": (
        os.remove,
        NoDataError,
        "There is no file {bad}.",
        {},
    ),
    "a folder": (
        lambda path: (os.remove(path), os.mkdir(path)),
        NoDataError,
        "A chunk must be a file; {bad} is a folder. Open it with packcore.open.",
        {},
    ),
}


@pytest.mark.parametrize("bad", [1, 11], ids=["second", "last"])
@pytest.mark.parametrize(
    ("spoil", "error", "message", "attributes"), FILE_FAULTS.values(), ids=FILE_FAULTS
)
def test_every_file_is_checked_when_the_dataset_is_made(
    files, spoil, error, message, attributes, bad
):
    spoil(files[bad])
    message = message.format(first=files[0], bad=files[bad])
    for make in (
        # Files 2, 6 and 10 are this rank's: it would never read the one that is bad.
        lambda: PackedDataset(files, 3, 5, num_processes=4, process_rank=2),
        lambda: PackedDatasetIterator(files, 3, 5, 1, True, False),
    ):
        with pytest.raises(error) as caught:
            make()
        check(caught, message, {"path": files[bad]} | attributes)


def test_a_file_that_shrinks_after_it_was_checked_is_named(files):
    dataset = PackedDataset(files, 2, 5)
    rewrite(files[0], cut=-2)
    message = "is truncated: its header says 10 tokens of uint16, so 44 bytes; got 42"
    with pytest.raises(FormatError, match=message) as caught:
        next(iter(dataset))
    assert caught.value.path == files[0]


def test_checks_hold_under_python_minus_o(tmp_path):
    # reference: asserts the magic and the version, so -O lets any file pass
    (path,) = write_chunks(tmp_path, 1)
    rewrite(path, magic=b"FOREIGN")
    code = f"from packcore import PackedDataset; PackedDataset([{path!r}], 1, 5)"
    run = subprocess.run(
        [sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "packcore.errors.FormatError" in run.stderr


def test_no_map_is_closed_under_a_block_that_is_in_use(files):
    # reference: closes its maps when the next window comes and when the iterator goes; what
    # still looks into them is a crash
    blocks = iter(PackedDataset(files, 1, 10, shuffle=False))
    first = next(blocks)
    view = blocks._window[0]
    list(blocks)
    del blocks
    assert first.tolist() == view[0].tolist() == list(range(10))


MIX_FAULTS = {
    # reference: divides by zero
    "no dataset": (
        {"datasets": []},
        ArgumentError,
        "datasets must hold at least one dataset; got none.",
        {"name": "datasets"},
    ),
    "a dataset that is no list": (
        {"datasets": iter(["abc"])},
        ArgumentTypeError,
        "datasets must be a list of datasets; got a list_iterator.",
        {"name": "datasets"},
    ),
    "a dataset that cannot be iterated": (
        {"datasets": ["abc", 3]},
        ArgumentTypeError,
        "datasets must be a list of what can be iterated; got a int at index 1.",
        {"name": "datasets", "value": 3},
    ),
    # reference: ValueError at the first block
    "too few weights": (
        {"weights": [1.0]},
        ArgumentError,
        "weights must be as many as the datasets, 2; got 1: [1.0].",
        {"name": "weights", "value": [1.0]},
    ),
    "too many weights": (
        {"weights": [1, 1, 1]},
        ArgumentError,
        "weights must be as many as the datasets, 2; got 3: [1, 1, 1].",
        {"name": "weights"},
    ),
    # reference: draws the first dataset only
    "a negative weight": (
        {"weights": [2, -1]},
        ArgumentError,
        "weights must be finite and at least 0; got [2, -1].",
        {"name": "weights", "value": [2, -1]},
    ),
    # reference: ValueError at the first block
    "a weight that is no number": (
        {"weights": [1, math.nan]},
        ArgumentError,
        "weights must be finite and at least 0; got [1, nan].",
        {"name": "weights"},
    ),
    "an infinite weight": (
        {"weights": [1, math.inf]},
        ArgumentError,
        "weights must be finite and at least 0; got [1, inf].",
        {"name": "weights"},
    ),
    # reference: ValueError at the first block
    "all weights zero": (
        {"weights": [0, 0.0]},
        ArgumentError,
        "weights must be above 0 and finite together; got [0, 0.0].",
        {"name": "weights", "value": [0, 0.0]},
    ),
    "weights whose sum is too large": (
        {"weights": [1e308, 1e308]},
        ArgumentError,
        "weights must be above 0 and finite together; got [1e+308, 1e+308].",
        {"name": "weights"},
    ),
    "weights of text": (
        {"weights": ["much", "little"]},
        ArgumentTypeError,
        "weights must be numbers, one for each dataset; got ['much', 'little'].",
        {"name": "weights"},
    ),
    "one weight": (
        {"weights": 0.5},
        ArgumentTypeError,
        "weights must be numbers, one for each dataset; got 0.5.",
        {"name": "weights", "value": 0.5},
    ),
    "a fractional seed": (
        {"seed": 0.5},
        ArgumentTypeError,
        "seed must be an integer; got 0.5 (float).",
        {"name": "seed", "value": 0.5},
    ),
}


@pytest.mark.parametrize("kind", [CombinedDataset, CombinedDatasetIterator])
@pytest.mark.parametrize(
    ("arguments", "error", "message", "attributes"), MIX_FAULTS.values(), ids=MIX_FAULTS
)
def test_a_wrong_mix_is_named_when_it_is_made(arguments, error, message, attributes, kind):
    with pytest.raises(error) as caught:
        kind(**({"datasets": ["abc", "xyz"], "seed": 1, "weights": None} | arguments))
    check(caught, message, attributes)


def test_one_dataset_is_not_taken_for_a_list_of_its_blocks(files):
    endless = PackedDataset(files, 2, 5, wrap=True)
    with pytest.raises(ArgumentTypeError, match="must be a list of datasets; got a PackedDataset"):
        CombinedDataset(endless, seed=1)
