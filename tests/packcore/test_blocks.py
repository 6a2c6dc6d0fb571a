import contextlib
import itertools
import os
import pickle
import random
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from corpora import fast_folder, write_corpus, write_files
from hypothesis import given, settings
from hypothesis import strategies as st

import packcore
from packcore import blocks as blocks_module
from packcore.blocks import BlockOrigin, Blocks, check_dtype
from packcore.chunks import Chunk
from packcore.dataset import Dataset
from packcore.errors import ArgumentError, ArgumentTypeError
from packcore.format import VERSION, ChunkHeader
from packcore.rows import RowTable


def open_corpus(folder, sizes, chunk_size, *, with_manifest=True, mmap=True):
    """Opens prefixes of `sizes` tokens; the tokens of the row are 1, 2, 3, ... and fill is 0."""
    first = 1
    for index, size in enumerate(sizes):
        tokens = list(range(first, first + size))
        if with_manifest:
            write_corpus(folder, f"part{index}", [tokens], chunk_size, dtype="int32")
        else:
            write_files(folder, f"part{index}", tokens, chunk_size, dtype="int32")
        first += size
    return packcore.open(folder, mmap=mmap)


def expected_starts(sizes, block_size, stride, *, within_chunks):
    """The first token of each block, from the sizes of the chunks."""
    rows = sizes if within_chunks else [sum(sizes)]
    offsets = [0, *itertools.accumulate(rows)]
    return [
        offset + start
        for offset, size in zip(offsets, rows, strict=False)
        for start in range(0, size - block_size + 1, stride)
    ]


@st.composite
def cuts(draw):
    """Files x chunk sizes x block size x stride x how they are read."""
    chunk_size = draw(st.integers(1, 12))
    with_manifest = draw(st.booleans())
    size = st.integers(1, 40)
    if not with_manifest:  # whole chunks: without a manifest fill cannot be told from tokens
        size = st.integers(1, 4).map(lambda count: count * chunk_size)
    return {
        "sizes": draw(st.lists(size, min_size=1, max_size=3)),
        "chunk_size": chunk_size,
        "block_size": draw(st.integers(1, 20)),
        "stride": draw(st.none() | st.integers(1, 25)),
        "within_chunks": draw(st.booleans()),
        "with_manifest": with_manifest,
        "mmap": draw(st.booleans()),
    }


@contextlib.contextmanager
def cut_corpus(cut):
    """Gives the blocks of a drawn cut, and the first token of each as it should be."""
    with fast_folder() as folder:
        dataset = open_corpus(
            folder,
            cut["sizes"],
            cut["chunk_size"],
            with_manifest=cut["with_manifest"],
            mmap=cut["mmap"],
        )
        block_size, within = cut["block_size"], cut["within_chunks"]
        stride = cut["stride"] or block_size
        blocks = dataset.blocks(block_size, stride=cut["stride"], within_chunks=within)
        sizes = np.diff(dataset.bounds).tolist()
        yield blocks, expected_starts(sizes, block_size, stride, within_chunks=within)


@given(cut=cuts())
def test_every_valid_token_is_in_one_block_or_counted_as_dropped(cut):
    with cut_corpus(cut) as (blocks, starts):
        total = blocks.dataset.num_tokens
        served = blocks.gather(np.arange(len(blocks)))
        counts = np.bincount(served.reshape(-1), minlength=total + 1)
        assert total == sum(cut["sizes"])
        assert counts[0] == 0  # the fill
        assert len(counts) == total + 1
        assert blocks.num_dropped_tokens == (counts[1:] == 0).sum()
        if cut["stride"] in (None, cut["block_size"]):
            assert counts.max() <= 1
            if not cut["within_chunks"]:
                assert blocks.num_dropped_tokens < cut["block_size"]
        size = cut["block_size"]
        assert served.tolist() == [list(range(at + 1, at + 1 + size)) for at in starts]


@given(cut=cuts(), seed=st.integers(0, 2**32))
def test_blocks_are_gathered_in_the_order_asked_for(cut, seed):
    with cut_corpus(cut) as (blocks, starts):
        count, rng = len(starts), np.random.default_rng(seed)
        assert len(blocks) == count
        ids = rng.integers(-count, count, rng.integers(30)) if count else np.arange(0)
        expected = [list(range(starts[at] + 1, starts[at] + 1 + blocks.block_size)) for at in ids]
        assert blocks.gather(ids).tolist() == expected
        assert [blocks[int(at)].tolist() for at in ids] == expected
        assert blocks.starts(ids % max(count, 1)).tolist() == [starts[at] for at in ids]
        rows = blocks.rows(ids % max(count, 1))
        table = RowTable(rows, blocks.block_size, blocks.dtype)
        assert table.copy(0, len(ids)).tolist() == expected


@given(cut=cuts(), slices=st.lists(st.slices(20), max_size=3))
def test_slices_are_views_and_so_are_slices_of_them(cut, slices):
    with cut_corpus(cut) as cut_blocks:
        blocks, starts = cut_blocks
        for piece in slices:
            if piece.step is not None and piece.step < 0:
                continue
            blocks, starts = blocks[piece], starts[piece]
        assert isinstance(blocks, Blocks)
        assert len(blocks) == len(starts)
        assert [block[0] - 1 for block in blocks] == starts
        assert blocks.starts(np.arange(len(starts))).tolist() == starts
        bounds = blocks.dataset.bounds.tolist()
        assert blocks.chunk_bounds.tolist() == [
            sum(start < bound for start in starts) for bound in bounds
        ]
        again = pickle.loads(pickle.dumps(blocks))
        assert again.fingerprint == blocks.fingerprint
        ids = np.arange(len(starts))
        assert (again.gather(ids) == blocks.gather(ids)).all()


@given(
    prefixes=st.lists(
        st.lists(st.lists(st.integers(1, 9), max_size=8), min_size=1, max_size=6).filter(any),
        min_size=1,
        max_size=2,
    ),
    recorded=st.booleans(),
    chunk_size=st.integers(1, 7),
    block_size=st.integers(1, 12),
    stride=st.integers(1, 12),
    within_chunks=st.booleans(),
    start=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_documents_begin_in_blocks_where_they_begin_in_the_row(
    prefixes,
    recorded,
    chunk_size,
    block_size,
    stride,
    within_chunks,
    start,
    seed,
):
    with fast_folder() as folder:
        row_starts, total = [], 0
        for index, documents in enumerate(prefixes):
            ended = documents if recorded else [[*document, 0] for document in documents]
            row = write_corpus(folder, f"part{index}", ended, chunk_size, recorded=recorded)
            row_starts += [total + at for at in row.starts]
            total += len(row.tokens)
        blocks = packcore.open(folder, sep_token=0).blocks(
            block_size, stride=stride, within_chunks=within_chunks
        )[start::2]
        rng = np.random.default_rng(seed)
        ids = rng.integers(0, len(blocks), 8) if len(blocks) else np.arange(0)
        flat, offsets = blocks.document_starts(ids)
        assert (flat.dtype, offsets.dtype) == (np.int32, np.int64)
        found = [flat[low:high].tolist() for low, high in itertools.pairwise(offsets)]
        firsts = blocks.starts(ids).tolist()
        assert found == [
            sorted({0, *(at - first for at in row_starts if first < at < first + block_size)})
            for first in firsts
        ]
        ends = [*row_starts[1:], total]
        for number, first in zip(ids.tolist(), firsts, strict=True):
            origin = blocks.origin(number)
            touched = [
                index
                for index, (low, high) in enumerate(zip(row_starts, ends, strict=True))
                if max(low, first) < min(high, first + block_size)
            ]
            assert origin.documents == range(touched[0], touched[-1] + 1)
            tokens = packcore.open(origin.file, sep_token=0).tokens(
                origin.offset, origin.offset + 1
            )
            assert tokens.tolist() == blocks[number][:1].tolist()


@pytest.fixture
def dataset(tmp_path):
    """26 tokens, 1 to 26, in chunks of 10, 10 and 6."""
    return open_corpus(tmp_path, [26], 10)


# One block, many blocks


def test_blocks_run_over_chunk_boundaries(dataset):
    assert dataset.blocks(8)[1].tolist() == [9, 10, 11, 12, 13, 14, 15, 16]
    assert dataset.blocks(25)[0].tolist() == list(range(1, 26))


def test_within_chunks_blocks_end_where_the_chunk_does(dataset):
    blocks = dataset.blocks(4, within_chunks=True)
    assert [block[0] for block in blocks] == [1, 5, 11, 15, 21]
    assert blocks.num_dropped_tokens == 2 + 2 + 2


def test_chunks_without_a_valid_token_are_stepped_over(tmp_path):
    with packcore.PackedDatasetBuilder(tmp_path, "a", 4, 0, dtype="uint16") as builder:
        for tokens in ([], [1, 2], [], [], [3, 4, 5], []):
            builder.add_array(tokens)
            builder.write_reminder()
    dataset = packcore.open(tmp_path)
    assert [chunk.num_tokens for chunk in dataset.chunks] == [0, 2, 0, 0, 3, 0]
    blocks = dataset.blocks(3, stride=1)
    assert blocks.gather(np.arange(3)).tolist() == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert blocks.chunk_bounds.tolist() == [0, 0, 2, 2, 2, 3, 3]
    within = dataset.blocks(2, within_chunks=True)
    assert within.gather([1, 0]).tolist() == [[3, 4], [1, 2]]
    assert within.chunk_bounds.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert (blocks.num_dropped_tokens, within.num_dropped_tokens) == (0, 1)


def test_a_stride_one_below_the_block_size_repeats_one_token(dataset):
    blocks = dataset.blocks(6, stride=5)
    assert [(block[0], block[-1]) for block in blocks] == [
        (1, 6),
        (6, 11),
        (11, 16),
        (16, 21),
        (21, 26),
    ]
    assert blocks.num_dropped_tokens == 0


@pytest.mark.parametrize("within_chunks", [True, False])
def test_a_block_size_above_everything_gives_no_blocks(dataset, within_chunks):
    blocks = dataset.blocks(27, within_chunks=within_chunks)
    assert (len(blocks), blocks.num_dropped_tokens) == (0, 26)
    assert blocks.gather([]).shape == (0, 27)
    assert list(blocks) == []
    assert blocks.chunk_bounds.tolist() == [0, 0, 0, 0]


def test_a_block_is_a_copy(dataset):
    blocks = dataset.blocks(4)
    for block in (blocks[0], blocks.gather([0])[0], blocks[[0]][0]):
        block[:] = 0
        assert blocks[0].tolist() == [1, 2, 3, 4]


def test_blocks_kept_past_their_chunks_eviction_stay_right(tmp_path):
    dataset = open_corpus(tmp_path, [120], 4)
    dataset._maps.size = 1
    blocks = dataset.blocks(4)
    kept = [blocks[index] for index in range(30)]
    assert len(dataset._maps) <= 1
    assert np.concatenate(kept).tolist() == list(range(1, 121))


def test_a_block_says_which_file_it_comes_from(dataset):
    blocks = dataset.blocks(8)
    files = [chunk.path for chunk in dataset.chunks]
    assert blocks.origin(0) == BlockOrigin(files[0], 0, range(1))
    assert blocks.origin(1) == BlockOrigin(files[0], 8, range(1))
    assert blocks[2:].origin(0) == BlockOrigin(files[1], 6, range(1))


def test_the_documents_of_a_block_are_unknown_without_records(tmp_path):
    dataset = open_corpus(tmp_path, [10], 10, with_manifest=False)
    blocks = dataset.blocks(4)
    assert blocks.origin(1) == BlockOrigin(dataset.chunks[0].path, 4, None)
    with pytest.raises(ArgumentError, match="Where documents begin was not recorded"):
        blocks.document_starts(np.arange(1))


def test_blocks_say_what_they_are(dataset):
    blocks = dataset.blocks(4)
    assert repr(blocks) == "Blocks(6 blocks of 4 int32 tokens)"
    assert (blocks.block_size, blocks.stride, blocks.dtype) == (4, 4, np.int32)


@pytest.mark.parametrize(
    ("index", "first"),
    [(0, 1), (5, 21), (-1, 21), (-6, 1), (np.int8(2), 9), (np.uint64(2), 9), (np.array(2), 9)],
)
def test_any_integer_is_an_index(dataset, index, first):
    assert dataset.blocks(4)[index].tolist() == [first, first + 1, first + 2, first + 3]


def test_anything_with_an_index_is_an_index(dataset):
    class Second:
        def __index__(self):
            return 1

    assert dataset.blocks(4)[Second()][0] == 5


@pytest.mark.parametrize(
    "ids",
    [
        [3, 1, -1],
        (3, 1, -1),
        np.array([3, 1, -1], np.int8),
        np.array([3, 1, 5], np.uint64),
        np.array([[3, 1, 5]])[0],
        np.array([3, 0, 1, 0, 5])[::2],
    ],
)
def test_any_row_of_integers_is_gathered(dataset, ids):
    blocks = dataset.blocks(4)
    assert blocks.gather(ids)[:, 0].tolist() == [13, 5, 21]
    assert blocks[ids][:, 0].tolist() == [13, 5, 21]


def test_ids_are_left_as_they_were(dataset):
    ids = np.array([-1, 0])
    dataset.blocks(4).gather(ids)
    assert ids.tolist() == [-1, 0]


@pytest.mark.parametrize("ids", [[], (), np.arange(0), np.empty(0, np.uint8)])
def test_no_ids_give_no_blocks(dataset, ids):
    found = dataset.blocks(4).gather(ids)
    assert (found.shape, found.dtype) == ((0, 4), np.int32)


@pytest.mark.parametrize("index", [6, -7, 10**30, np.int64(6)])
def test_an_index_that_is_not_there_ends_an_iteration(dataset, index):
    blocks = dataset.blocks(4)
    with pytest.raises(IndexError, match=rf"index must be in \[-6, 6\); got {index} \(blocks\)"):
        blocks[index]
    assert len(list(blocks)) == 6


@pytest.mark.parametrize(
    ("ids", "at", "value"),
    [
        ([0, 6], 1, 6),
        ([-7], 0, -7),
        (np.array([0, 2**63], np.uint64), 1, 2**63),
        ([2**62], 0, 2**62),
    ],
)
def test_ids_that_are_not_there_are_refused_by_their_place(dataset, ids, at, value):
    message = rf"ids must be in \[-6, 6\); got {value} at index {at} \(blocks\)"
    with pytest.raises(ArgumentError, match=message) as info:
        dataset.blocks(4).gather(ids)
    assert (info.value.name, info.value.value) == ("ids", value)


JUNK = [
    1.0,
    float("nan"),
    None,
    True,
    np.True_,
    "1",
    ...,
    [1.0],
    [float("nan")],
    [True, False],
    ["1"],
    [None],
    [[0, 1]],
    [[0], [0, 1]],
    [2**70],
    {"a": 1},
    np.array(1.0),
    np.array([0, 1], object),
    np.array([[0]]),
    np.zeros((0, 3), np.int64),
]


@pytest.mark.parametrize("ids", JUNK, ids=repr)
def test_ids_that_are_no_row_of_integers_are_refused(dataset, ids):
    blocks = dataset.blocks(4)
    for read in (blocks.gather, blocks.__getitem__):
        with pytest.raises(ArgumentTypeError, match="ids must be a 1-D array of integers") as info:
            read(ids)
        assert info.value.name == "ids"
        assert info.value.value is ids


def test_a_number_is_no_row_of_ids(dataset):
    with pytest.raises(ArgumentTypeError, match="ids must be a 1-D array of integers; got 0-D"):
        dataset.blocks(4).gather(1)


def test_views_cannot_run_backwards(dataset):
    with pytest.raises(ArgumentError, match=r"must be positive; got -1\. Read them back") as info:
        dataset.blocks(4)[::-1]
    assert (info.value.name, info.value.value) == ("step", -1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"block_size": 0}, ArgumentError, r"block_size must be at least 1; got 0 \(tokens\)\."),
        ({"block_size": -4}, ArgumentError, r"block_size must be at least 1; got -4"),
        ({"block_size": 4.0}, ArgumentTypeError, r"block_size must be an integer; got 4\.0"),
        ({"block_size": "4"}, ArgumentTypeError, r"block_size must be an integer; got '4'"),
        ({"block_size": True}, ArgumentTypeError, r"block_size must be an integer; got True"),
        ({"block_size": 4, "stride": 0}, ArgumentError, r"stride must be at least 1; got 0"),
        ({"block_size": 4, "stride": 1.5}, ArgumentTypeError, r"stride must be an integer"),
    ],
)
def test_a_cut_against_the_rules_is_refused(dataset, arguments, error, message):
    with pytest.raises(error, match=message) as info:
        dataset.blocks(**arguments)
    assert info.value.value == list(arguments.values())[-1]


# dtypes


def test_blocks_come_in_the_stored_dtype_or_in_the_one_asked_for(dataset):
    blocks = dataset.blocks(4)
    assert blocks.gather([0]).dtype == np.int32
    for dtype in ("int64", np.float64, ">i8", "uint8", "int16"):  # the manifest knows: below 27
        found = blocks.gather([0, 5], dtype=dtype)
        assert found.dtype == np.dtype(dtype)
        assert found.tolist() == [[1, 2, 3, 4], [21, 22, 23, 24]]


def test_out_is_filled_and_returned(dataset):
    blocks = dataset.blocks(4)
    expected = [[21, 22, 23, 24], [1, 2, 3, 4]]
    outs = [
        np.zeros((2, 4), np.int32),
        np.zeros((2, 4), np.int64),
        np.zeros((2, 8), np.int64)[:, ::2],
        np.zeros((4, 2), np.int32).T,
        np.zeros((2, 4), ">i4"),
    ]
    for out in outs:
        assert blocks.gather([5, 0], out=out) is out
        assert out.tolist() == expected
    assert blocks.gather([5, 0], out=outs[1], dtype=np.int64) is outs[1]


@pytest.mark.parametrize(
    ("stored", "largest", "wanted", "fits"),
    [
        ("uint16", 65535, "int32", True),
        ("uint16", 32767, "int16", True),
        ("uint16", 32768, "int16", False),
        ("uint16", 255, "uint8", True),
        ("uint16", 256, "uint8", False),
        ("int64", 2**31 - 1, "int32", True),
        ("int64", 2**31, "int32", False),
        ("int64", 2**31, "uint32", True),
        ("int32", 2**31 - 1, "float64", True),
        ("int32", 5, "float32", False),
        ("int32", 5, "bool", False),
        ("float32", 5, "int32", False),
        ("float32", 5, "float64", True),
    ],
)
def test_a_dtype_is_served_only_if_the_manifest_knows_that_every_id_fits(
    tmp_path, stored, largest, wanted, fits
):
    write_corpus(tmp_path, "a", [[0, largest]], 2, dtype=stored)
    blocks = packcore.open(tmp_path).blocks(2)
    out = np.full((1, 2), 9, wanted)
    if fits:
        assert blocks.gather([0], dtype=wanted).tolist() == [[0, largest]]
        assert blocks.gather([0], out=out).tolist() == [[0, largest]]
    else:
        for arguments in ({"dtype": wanted}, {"out": out}):
            with pytest.raises(ArgumentError, match="dtype must hold every id") as info:
                blocks.gather([0], **arguments)
            assert info.value.name == "dtype"
        assert (out == np.full((1, 2), 9, wanted)).all()


def test_a_negative_id_does_not_fit_an_unsigned_dtype(tmp_path):
    write_corpus(tmp_path, "a", [[-1, 5]], 2, dtype="int32")
    blocks = packcore.open(tmp_path).blocks(2)
    with pytest.raises(ArgumentError, match="got uint64 for stored int32"):
        blocks.gather([0], dtype=np.uint64)
    assert blocks.gather([0], dtype=np.int8).tolist() == [[-1, 5]]


def test_without_a_manifest_only_a_wider_dtype_is_served(tmp_path):
    write_files(tmp_path, "a", [1, 2], 2, dtype="int64")
    blocks = packcore.open(tmp_path).blocks(2)
    with pytest.raises(ArgumentError, match="largest id is unknown or too large") as info:
        blocks.gather([0], dtype=np.int32)
    assert "Use a wider dtype, or build with a manifest." in str(info.value)
    assert (info.value.name, info.value.value) == ("dtype", np.int32)


@pytest.mark.parametrize("dtype", ["no such", 3, []])
def test_what_is_no_dtype_is_refused(dataset, dtype):
    blocks = dataset.blocks(4)
    with pytest.raises(ArgumentError, match="dtype must") as info:
        blocks.gather([0], dtype=dtype)
    assert (info.value.name, info.value.value) == ("dtype", dtype)
    with pytest.raises(ArgumentError, match="dtype must"):
        blocks.gather([0], out=np.zeros((1, 4), np.int64), dtype=dtype)


@pytest.mark.parametrize("dtype", [object, str, bytes, "U8", "V4", "m8[s]", "M8[s]", complex])
def test_a_dtype_that_is_not_of_integers_or_floats_is_refused(dataset, dtype):
    with pytest.raises(ArgumentError, match="dtype must be of integers or floats") as info:
        dataset.blocks(4).gather([0], dtype=dtype)
    assert (info.value.name, info.value.value) == ("dtype", dtype)


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((1, 4), np.int32),
        np.zeros((2, 5), np.int32),
        np.zeros(8, np.int32),
        np.zeros((2, 4, 1), np.int32),
        np.broadcast_to(np.zeros(4, np.int32), (2, 4)),
    ],
)
def test_an_out_of_another_shape_or_that_is_read_only_is_refused(dataset, out):
    with pytest.raises(ArgumentError, match=r"writeable array of shape \(2, 4\); got") as info:
        dataset.blocks(4).gather([0, 1], out=out)
    assert info.value.name == "out"


@pytest.mark.parametrize("out", [[[0] * 4] * 2, "out", memoryview(bytearray(8))])
def test_an_out_that_is_no_array_is_refused(dataset, out):
    with pytest.raises(ArgumentTypeError, match="out must be a NumPy array") as info:
        dataset.blocks(4).gather([0, 1], out=out)
    assert (info.value.name, info.value.value) == ("out", out)


def test_out_and_dtype_must_agree(dataset):
    with pytest.raises(
        ArgumentError, match="dtype must be out's, int64, or be left out; got"
    ) as info:
        dataset.blocks(4).gather([0], out=np.zeros((1, 4), np.int64), dtype=np.int32)
    assert (info.value.name, info.value.value) == ("dtype", np.int32)


def test_a_reader_of_another_kind_is_held_to_its_stored_dtype():
    class Reader:
        block_size, dtype = 4, np.dtype("uint16")

    assert check_dtype(Reader(), None) == np.uint16
    assert check_dtype(Reader(), "int32") == np.int32
    with pytest.raises(ArgumentError, match="got int16 for stored uint16"):
        check_dtype(Reader(), np.int16)


@pytest.mark.parametrize("part_bytes", [1, 16, 40, 10**6])
def test_large_gathers_are_made_in_parts(dataset, monkeypatch, part_bytes):
    monkeypatch.setattr(blocks_module, "_PART_BYTES", part_bytes)
    blocks = dataset.blocks(3, stride=2)
    ids = [11, 0, 5, 5, 3, 9, 1, 2, 7]
    for dtype in ("int32", "int64"):
        assert blocks.gather(ids, dtype=dtype)[:, 0].tolist() == [1 + 2 * at for at in ids]


# Large


def virtual(num_chunks, chunk_size):
    """A data set of chunks that are nowhere on disk."""
    header = ChunkHeader(VERSION, np.dtype("uint16"), chunk_size)
    return Dataset(
        Chunk(f"/nowhere/{index}.bin", header, chunk_size, None) for index in range(num_chunks)
    )


@pytest.mark.parametrize("within_chunks", [False, True])
def test_five_thousand_million_blocks_are_planned_in_milliseconds(within_chunks):
    dataset = virtual(1000, 2**34 + 1)
    block_size = 3437
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        blocks = dataset.blocks(block_size, within_chunks=within_chunks)
        count = len(blocks)
        part = blocks[count // 2 :: 3]
        ids = np.array([0, 1, len(part) - 1])
        firsts = part.starts(ids).tolist()
        bounds = part.chunk_bounds
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.02
    assert count > 4_990_000_000
    each = (2**34 + 1) // block_size

    def first(index):
        if not within_chunks:
            return index * block_size
        return index // each * (2**34 + 1) + index % each * block_size

    assert firsts == [first(count // 2 + 3 * index) for index in ids.tolist()]
    assert (bounds[0], bounds[-1]) == (0, len(part))


def test_the_largest_row_is_cut_without_an_overflow():
    dataset = virtual(4, 2**60)
    for block_size, stride in (
        (1, 1),
        (2**61, 1),
        (2**62, 2**62),
        (2**63 - 1, 2**63 - 1),
        (7, 2**62),
    ):
        blocks = dataset.blocks(block_size, stride=stride)
        count = max(0, (2**62 - block_size) // stride + 1)
        assert blocks._ids == range(count)
        covered = count * block_size if stride >= block_size else 2**62
        assert blocks.num_dropped_tokens == (2**62 - covered if count else 2**62)
        assert blocks.chunk_bounds[-1] == count
        if count:
            assert blocks.starts(np.array([count - 1])).tolist() == [(count - 1) * stride]


def run(script, *arguments):
    script = textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MANY_CHUNKS = """
    import resource, sys, time
    import numpy as np
    import packcore

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    began = time.perf_counter()
    dataset = packcore.open(sys.argv[1])
    opened = time.perf_counter() - began
    blocks = dataset.blocks(6)
    ids = np.random.default_rng(0).permutation(len(blocks))
    for part in np.split(ids, 5):
        found = blocks.gather(part)
        assert (found == part[:, None] * 6 + np.arange(6)).all()
    print(len(dataset.chunks), len(blocks))
"""


def test_ten_thousand_chunks_are_read_below_a_limit_of_256_open_files():
    pytest.importorskip("resource")
    with fast_folder() as folder:
        write_files(folder, "a", list(range(30_000)), 3, dtype="uint16")
        assert run(MANY_CHUNKS, folder) == "10000 5000\n"


FLAT_MEMORY = """
    import sys
    import numpy as np
    import packcore

    def megabytes(field):
        for line in open("/proc/self/status"):
            if line.startswith(field):
                return int(line.split()[1]) // 1024

    blocks = packcore.open(sys.argv[1]).blocks(2049)
    order = np.random.default_rng(0)
    seen = []
    for _ in range(10):
        ids = order.permutation(len(blocks))
        for start in range(0, len(ids), 64):
            blocks.gather(ids[start : start + 64])
        seen.append((megabytes("RssAnon:"), megabytes("VmRSS:")))
    print(*(max(last) - min(last) for last in zip(*seen[2:])))
"""


def test_memory_stays_flat_over_ten_passes():
    if not os.path.exists("/proc/self/status"):
        pytest.skip("needs /proc")
    with fast_folder() as folder:
        tokens = np.arange(2**20) % 50_000
        for prefix in range(8):
            write_files(folder, f"part{prefix}", tokens, 2**18, dtype="int64")
        anonymous, resident = map(int, run(FLAT_MEMORY, folder).split())
    assert anonymous <= 4
    assert resident <= 4


def test_threads_may_read_one_data_set_with_a_tiny_cache(tmp_path):
    dataset = open_corpus(tmp_path, [600], 20)
    dataset._maps.size = 2
    blocks = dataset.blocks(7, stride=5)
    wrong, interval = [], sys.getswitchinterval()

    def read(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(150):
                ids = rng.integers(0, len(blocks), 9)
                if (blocks.gather(ids) != ids[:, None] * 5 + 1 + np.arange(7)).any():
                    wrong.append(ids)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


@settings(max_examples=30)
@given(size=st.integers(1, 400), chunk_size=st.integers(1, 90), seed=st.integers(0, 2**32))
def test_windows_of_every_kind_are_copied_alike(size, chunk_size, seed):
    """Few rows, rows on one grid and rows that overlap take three different ways."""
    with fast_folder() as folder:
        dataset = open_corpus(folder, [size], chunk_size)
        rng = random.Random(seed)
        for block_size in (1, 3, 8):
            for stride in (1, 2, block_size, 2 * block_size):
                blocks = dataset.blocks(block_size, stride=stride)
                for count in (1, 3, 4, 50):
                    ids = [rng.randrange(len(blocks)) for _ in range(count)] if len(blocks) else []
                    expected = [
                        list(range(at * stride + 1, at * stride + 1 + block_size)) for at in ids
                    ]
                    assert blocks.gather(ids).tolist() == expected
