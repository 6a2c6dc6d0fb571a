"""lit-gpt's order of blocks, the blocks themselves, and what readers hold open."""

import concurrent.futures
import copy
import itertools
import json
import multiprocessing
import os
import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_chunks import take, tokens_of, write_chunks

import packcore
from packcore.format import VERSION, ChunkHeader
from packcore.reference import (
    CombinedDataset,
    CombinedDatasetIterator,
    PackedDataset,
    PackedDatasetIterator,
)

GOLDEN = Path(__file__).parents[1] / "golden"
ORDER = json.loads((GOLDEN / "order.json").read_text())


@pytest.mark.parametrize("case", ORDER["cases"], ids=range(len(ORDER["cases"])))
def test_every_shard_serves_the_golden_sequence(case):
    files = [GOLDEN / name for name in ORDER["files"]][: case["n_files"]]
    for shard, expected in case["first_token_of_each_block"].items():
        rank, worker = map(int, shard.split(","))
        dataset = PackedDataset(
            files,
            case["n_chunks"],
            case["block_size"],
            case["seed"],
            case["shuffle"],
            case["wrap"],
            case["world_size"],
            rank,
            num_workers=case["num_workers"],
            worker_id=worker,
        )
        blocks = list(itertools.islice(dataset, 150))
        assert [int(block[0]) for block in blocks] == expected
        for block in blocks:
            assert block.tolist() == list(range(block[0], block[0] + case["block_size"]))
        if not case["wrap"]:
            assert sum(1 for _ in dataset) == len(expected)


def slow_blocks(chunks, n_chunks, block_size, seed, shuffle, wrap):
    """The reference's algorithm on lists, one block at a time."""
    generator = np.random.default_rng(seed)
    while True:
        for start in range(0, len(chunks) - n_chunks + 1, n_chunks):
            blocks = []
            for chunk in chunks[start : start + n_chunks]:
                whole = len(chunk) // block_size * block_size
                blocks += [chunk[at : at + block_size] for at in range(0, whole, block_size)]
            indices = generator.permutation(len(blocks)) if shuffle else range(len(blocks))
            yield from (blocks[index] for index in indices)
        if not wrap:
            return


@settings(max_examples=60)
@given(data=st.data())
def test_the_order_is_that_of_a_slow_oracle(data):
    num_processes, num_workers = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    n_chunks = data.draw(st.integers(1, 3))
    num_files = num_processes * num_workers * n_chunks + data.draw(st.integers(0, 7))
    chunk_size = data.draw(st.integers(1, 12))
    block_size = data.draw(st.integers(1, chunk_size))
    seed, shuffle, wrap = (
        data.draw(st.integers(0, 2**70)),
        *data.draw(st.tuples(*[st.booleans()] * 2)),
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = write_chunks(folder, num_files, chunk_size=chunk_size, dtype="int32")
        chunks = np.arange(num_files * chunk_size).reshape(num_files, chunk_size).tolist()
        for rank, worker in itertools.product(range(num_processes), range(num_workers)):
            shard, num_shards = rank * num_workers + worker, num_processes * num_workers
            mine = chunks[shard : num_files // num_shards * num_shards : num_shards]
            expected = slow_blocks(mine, n_chunks, block_size, seed, shuffle, wrap)
            dataset = PackedDataset(
                paths,
                n_chunks,
                block_size,
                seed,
                shuffle,
                wrap,
                num_processes,
                rank,
                num_workers=num_workers,
                worker_id=worker,
            )
            assert take(dataset, 60) == list(itertools.islice(expected, 60))


def test_the_defaults_are_those_of_the_reference(tmp_path):
    paths = write_chunks(tmp_path, 2)
    explicit = PackedDataset(paths, 2, 5, 12345, True, False, 1, 0)
    assert tokens_of(PackedDataset(paths, 2, 5)) == tokens_of(explicit)


def test_every_iter_begins_anew_in_the_same_order(tmp_path):
    dataset = PackedDataset(write_chunks(tmp_path, 4), 2, 5)
    first = iter(dataset)
    next(first)
    assert tokens_of(dataset) == tokens_of(dataset)
    assert len(tokens_of(first)) == len(tokens_of(dataset)) - 1


def test_an_iterator_made_directly_serves_all_files_as_one_shard(tmp_path):
    paths = write_chunks(tmp_path, 4)
    iterator = PackedDatasetIterator(
        filenames=paths, n_chunks=2, block_size=3, seed=1, shuffle=True, wrap=False
    )
    assert tokens_of(iterator) == tokens_of(PackedDataset(paths, 2, 3, seed=1))


def test_a_file_may_be_listed_twice(tmp_path):
    (path,) = write_chunks(tmp_path, 1)
    assert take(PackedDataset([path, path], 2, 10, shuffle=False), 9) == [list(range(10))] * 2


def test_a_seed_of_none_shuffles_differently_each_time(tmp_path):
    dataset = PackedDataset(write_chunks(tmp_path, 20), 20, 1, seed=None)
    assert tokens_of(dataset) != tokens_of(dataset)


def test_numpy_integers_are_integers_here(tmp_path):
    paths = write_chunks(tmp_path, 4)
    dataset = PackedDataset(paths, np.int64(2), np.uint8(5), np.int32(3))
    assert tokens_of(dataset) == tokens_of(PackedDataset(paths, 2, 5, 3))
    json.dumps(iter(dataset).state_dict())


@pytest.mark.parametrize("kind", [tuple, iter, lambda paths: map(Path, paths)])
def test_paths_come_in_any_ordered_form(tmp_path, kind):
    paths = write_chunks(tmp_path, 4)
    dataset = PackedDataset(kind(paths), 2, 5)
    assert tokens_of(dataset) == tokens_of(PackedDataset(paths, 2, 5))


def test_sidecars_that_a_glob_finds_are_passed_over(tmp_path):
    paths = write_chunks(tmp_path, 4)
    (tmp_path / "train.manifest.json").write_text("not looked at")
    for path in paths:
        Path(path.removesuffix(".bin") + ".docs.npy").write_text("not looked at")
    found = sorted(map(str, tmp_path.glob("train*")))
    assert len(found) == 9
    assert tokens_of(PackedDataset(found, 2, 5)) == tokens_of(PackedDataset(paths, 2, 5))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "int32", "int64"])
def test_integer_chunks_give_int64_blocks(tmp_path, dtype):
    (block, *_) = PackedDataset(write_chunks(tmp_path, 1, dtype=dtype), 1, 10)
    assert (block.dtype, block.shape, block.tolist()) == (np.int64, (10,), list(range(10)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floating_chunks_give_blocks_of_their_own_dtype(tmp_path, dtype):
    (path,) = write_chunks(tmp_path, 1, dtype=dtype)
    values = np.array([0.5, -1e30, np.inf, 1 / 3], dtype)
    Path(path).write_bytes(ChunkHeader(VERSION, np.dtype(dtype), 4).to_bytes() + values.tobytes())
    (block,) = PackedDataset([path], 1, 4)
    assert block.dtype == dtype
    assert block.tobytes() == values.tobytes()


def test_the_largest_and_smallest_ids_are_kept(tmp_path):
    path = tmp_path / "a_0000000000.bin"
    tokens = np.array([0, 65535, 32768], np.uint16)
    path.write_bytes(ChunkHeader(VERSION, tokens.dtype, 3).to_bytes() + tokens.tobytes())
    assert take(PackedDataset([path], 1, 3), 1) == [[0, 65535, 32768]]


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_a_block_is_a_copy_that_may_be_written_to(tmp_path, dtype):
    dataset = PackedDataset(write_chunks(tmp_path, 1, dtype=dtype), 1, 10, wrap=True)
    blocks = iter(dataset)
    first = next(blocks)
    first[:] = 77
    assert first.base is None
    assert next(blocks).tolist() == list(range(10))


def test_blocks_live_on_after_their_window_is_closed(tmp_path):
    blocks = list(PackedDataset(write_chunks(tmp_path, 6), 1, 10, shuffle=False))
    assert tokens_of(blocks) == np.arange(60).reshape(6, 10).tolist()


def test_without_wrap_the_files_after_the_last_whole_window_are_not_served(tmp_path):
    dataset = PackedDataset(write_chunks(tmp_path, 5), 2, 10, shuffle=False)
    assert tokens_of(dataset) == np.arange(40).reshape(4, 10).tolist()


def test_with_wrap_the_first_window_follows_the_last_whole_one(tmp_path):
    dataset = PackedDataset(write_chunks(tmp_path, 3), 2, 10, shuffle=False, wrap=True)
    assert [block[0] for block in take(dataset, 7)] == [0, 10, 0, 10, 0, 10, 0]


def test_with_wrap_every_round_is_shuffled_differently(tmp_path):
    blocks = iter(PackedDataset(write_chunks(tmp_path, 20), 20, 10, wrap=True))
    rounds = [take(blocks, 20) for _ in range(3)]
    assert rounds[0] != rounds[1] != rounds[2]
    assert [sorted(blocks) for blocks in rounds] == [sorted(rounds[0])] * 3


def test_a_finished_iterator_stays_finished(tmp_path):
    blocks = iter(PackedDataset(write_chunks(tmp_path, 3), 1, 5))
    assert len(list(blocks)) == 6
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(blocks)


def count_maps(folder):
    return Path("/proc/self/maps").read_text().count(str(folder))


@pytest.mark.skipif(sys.platform != "linux", reason="counts maps and descriptors in /proc")
def test_at_most_n_chunks_files_are_open(tmp_path):
    def open_files():
        return len(os.listdir("/proc/self/fd")), count_maps(tmp_path)

    dataset = PackedDataset(write_chunks(tmp_path, 12), 3, 5)
    descriptors, maps = open_files()
    assert maps == 0
    blocks = iter(dataset)
    assert open_files() == (descriptors, 0)
    kept = []
    for block in blocks:
        kept.append(block)
        assert open_files()[0] <= descriptors + 3
        assert open_files()[1] == 3
    assert open_files() == (descriptors, 0)


def test_a_dataset_and_an_iterator_pickle_small(tmp_path):
    paths = write_chunks(tmp_path, 20, chunk_size=10_000)
    dataset = PackedDataset(paths, 10, 1, num_processes=2)
    blocks = iter(dataset)
    next(blocks)
    names = sum(map(len, paths))
    assert len(pickle.dumps(dataset)) < names + 1_000
    assert len(pickle.dumps(blocks)) < names + 2_000


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda obj: pickle.loads(pickle.dumps(obj))])
@pytest.mark.parametrize("served", [0, 1, 8, 11, 16, 99])
def test_a_pickled_iterator_goes_on_where_it_is(tmp_path, served, duplicate):
    blocks = iter(PackedDataset(write_chunks(tmp_path, 5), 2, 2, seed=5))
    take(blocks, served)
    other = duplicate(blocks)
    assert tokens_of(other) == tokens_of(blocks)


def test_a_mix_pickles_too(tmp_path):
    dataset = PackedDataset(write_chunks(tmp_path, 4), 2, 2, wrap=True)
    mixed = iter(CombinedDataset([dataset, dataset], seed=1))
    take(mixed, 5)
    assert take(pickle.loads(pickle.dumps(mixed)), 9) == take(mixed, 9)


# From Python 3.12 on, fork warns of threads; NumPy's OpenBLAS has some.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_another_process_serves_the_same_blocks(tmp_path, method):
    dataset = PackedDataset(write_chunks(tmp_path, 4), 2, 2)
    blocks = iter(dataset)
    take(blocks, 7)  # maps are open when the process starts
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        served = list(pool.map(tokens_of, [blocks, dataset]))
    assert served == [tokens_of(blocks), tokens_of(dataset)]


def test_for_worker_serves_as_the_keywords_do(tmp_path):
    paths = write_chunks(tmp_path, 8)
    dataset = PackedDataset(paths, 2, 5, 9, num_processes=2, process_rank=1)
    for worker in range(2):
        explicit = PackedDataset(paths, 2, 5, 9, True, False, 2, 1, num_workers=2, worker_id=worker)
        one = dataset.for_worker(num_workers=2, worker_id=worker)
        assert tokens_of(one) == tokens_of(explicit)


def test_for_worker_reads_no_file_again(tmp_path):
    paths = write_chunks(tmp_path, 4)
    dataset = PackedDataset(paths, 2, 5)
    for path in paths:
        os.rename(path, path + ".away")
    iter(dataset.for_worker(num_workers=2, worker_id=1))


def test_the_classes_are_at_the_top_of_the_package():
    assert packcore.PackedDataset is PackedDataset
    assert packcore.PackedDatasetIterator is PackedDatasetIterator
    assert packcore.CombinedDataset is CombinedDataset
    assert packcore.CombinedDatasetIterator is CombinedDatasetIterator
