"""BlockSource: single blocks for Grain's own machinery."""

import copy
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from pipelines import READ_HERE, assert_same, check_every_state, grain, states_of, workers

from packcore.errors import ArgumentError, ArgumentTypeError, StateError
from packcore_grain import BlockSource, CheckedDataset

cloudpickle = pytest.importorskip("cloudpickle", reason="Grain brings it")
experimental = grain.experimental


@pytest.fixture
def blocks(corpus):
    return corpus.blocks(8)


@pytest.fixture
def source(blocks):
    return BlockSource(blocks)


def test_elements_are_the_blocks_as_plain_arrays_of_their_own(source, blocks):
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert len(source) == len(blocks)
    first, again = source[3], source[3]
    assert type(first) is np.ndarray
    assert not np.shares_memory(first, again)
    np.testing.assert_array_equal(first, blocks[3])


@pytest.mark.parametrize("index", [5, np.int64(5), np.uint8(5), np.array(5), -3])
def test_an_index_is_anything_with_index(source, blocks, index):
    np.testing.assert_array_equal(source[index], blocks[int(index)])


def test_past_the_end_it_begins_anew_as_a_dataset_does(source, blocks):
    count = len(blocks)
    np.testing.assert_array_equal(source[count + 3], blocks[3])
    assert_same(source._getitems([2 * count, -1]), [blocks[0], blocks[-1]])
    far = [2**70, -(2**70), np.uint64(2**64 - 1)]
    assert_same(source._getitems(far), [blocks[int(index) % count] for index in far])
    assert_same(source._getitems(far), [source[index] for index in far])
    with pytest.raises(TypeError, match="float"):
        source[1.0]


def test_it_is_a_dataset_itself(source, blocks):
    assert_same(list(source.to_iter_dataset(READ_HERE)), list(blocks))
    assert_same(list(source[3:9:2].to_iter_dataset(READ_HERE)), [blocks[3], blocks[5], blocks[7]])
    spec = experimental.get_element_spec(source.batch(4, drop_remainder=True))
    assert (spec.shape, spec.dtype) == ((4, 8), np.uint16)


def test_no_blocks_are_no_source(blocks):
    with pytest.raises(ArgumentError, match="blocks must have at least one block; got Blocks"):
        BlockSource(blocks[:0])


def test_what_are_no_blocks_is_refused_by_its_type(corpus):
    for wrong in (5, None, {}, [1, 2], corpus):
        rule = rf"blocks must be packcore\.Blocks, .*; got {type(wrong).__name__}\."
        with pytest.raises(ArgumentTypeError, match=rule) as caught:
            BlockSource(wrong)
        assert caught.value.name == "blocks"
        assert caught.value.value is wrong


@pytest.mark.parametrize("read", [BlockSource.__getitems__, BlockSource._getitems])
def test_several_blocks_come_in_a_list(source, blocks, read):
    indices = [7, np.int32(0), 7, len(blocks) - 1]
    got = read(source, indices)
    assert type(got) is list
    assert_same(got, [blocks[int(index)] for index in indices])
    assert {type(block) for block in got} == {np.ndarray}
    assert read(source, []) == []


def test_tokens_come_in_the_dtype_that_was_asked_for(blocks):
    source = BlockSource(blocks, dtype="int32")
    assert (source[0].dtype, source._getitems([1])[0].dtype) == (np.int32, np.int32)
    with pytest.raises(ArgumentError, match="dtype must hold every id of the data; got bool"):
        BlockSource(blocks, dtype="bool")


def _files(blocks):
    return [chunk.path for chunk in blocks.dataset.chunks]


def test_threads_may_share_a_source(source, blocks):
    indices = np.random.default_rng(0).integers(len(source), size=2000).tolist()
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(source.__getitem__, indices))
    np.testing.assert_array_equal(got, blocks.gather(indices))


def test_copies_and_pickles_are_small_and_read_the_same(source):
    data = cloudpickle.dumps(source)
    assert len(data) < 10_000
    for other in (copy.deepcopy(source), cloudpickle.loads(data)):
        np.testing.assert_array_equal(other[5], source[5])
        assert repr(other) == repr(source)


SHOW = "import packcore as p, packcore_grain as g, sys; print(g.BlockSource(p.open(sys.argv[1]).blocks(8)))"  # noqa: E501


def test_the_repr_is_the_same_in_another_process(source, blocks):
    command = [sys.executable, "-c", SHOW, str(Path(_files(blocks)[0]).parent)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == repr(source)


def test_the_repr_differs_where_anything_differs(corpus, other_corpus):
    sources = [
        BlockSource(corpus.blocks(8)),
        BlockSource(corpus.blocks(9)),
        BlockSource(corpus.blocks(8, stride=7)),
        BlockSource(corpus.blocks(8)[1:]),
        BlockSource(corpus.blocks(8), dtype="int32"),
        BlockSource(other_corpus.blocks(8)),
    ]
    assert len({repr(source) for source in sources}) == len(sources)


def shuffled(source, batch_size=4, *, wrap=lambda source: source):
    data = wrap(source).shuffle(seed=1).batch(batch_size, drop_remainder=True)
    return CheckedDataset(data.to_iter_dataset(READ_HERE), source)


def test_wrapped_as_a_source_it_gives_the_same(source):
    assert_same(list(shuffled(source, wrap=grain.MapDataset.source)), list(shuffled(source)))


def test_grains_checker_passes_for_its_shuffle_and_batch(source, blocks):
    dataset = shuffled(source, 10)
    experimental.assert_equal_output_after_checkpoint(dataset)
    rows = np.concatenate(check_every_state(dataset))
    assert sorted(rows.tolist()) == sorted(blocks.gather(_order(len(blocks))).tolist())


def _order(count):
    """What Grain's shuffle puts first, in whole batches of 10."""
    numbers = grain.MapDataset.range(count).shuffle(seed=1).batch(10, drop_remainder=True)
    return np.concatenate(list(numbers))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_give_the_plain_order_and_states(source, num_threads):
    dataset = experimental.multithread_prefetch(shuffled(source, 16), num_threads, 2)
    experimental.assert_equal_output_after_checkpoint(dataset)
    assert_same(check_every_state(dataset), list(shuffled(source, 16)))


def test_processes_give_the_plain_order(source):
    got = list(shuffled(source, 16).mp_prefetch(workers(2)))
    assert_same([np.array(batch) for batch in got], list(shuffled(source, 16)))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda corpus, _: BlockSource(corpus.blocks(16)), "block_size"),
        (lambda corpus, _: BlockSource(corpus.blocks(8), dtype="int32"), "dtype"),
        (lambda _, other: BlockSource(other.blocks(8)), "fingerprint"),
        (lambda corpus, _: BlockSource(corpus.blocks(8)[:-1]), "fingerprint"),
    ],
)
def test_a_state_of_other_blocks_is_refused_by_the_field(
    corpus, other_corpus, source, change, field
):
    state = states_of(shuffled(source))[0][2]
    other = shuffled(change(corpus, other_corpus))
    with pytest.raises(StateError, match=field) as caught:
        iter(other).set_state(state)
    assert caught.value.field == field


def data_loader(source, num_workers=0):
    sampler = grain.samplers.IndexSampler(
        len(source), grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=3
    )
    batch = grain.transforms.Batch(10, drop_remainder=True)
    return grain.DataLoader(
        data_source=source, sampler=sampler, operations=[batch], worker_count=num_workers
    )


def test_grains_data_loader_serves_it_and_refuses_other_data(corpus, other_corpus):
    source, other = (BlockSource(one.blocks(8)[:100]) for one in (corpus, other_corpus))
    iterator = iter(data_loader(source))
    batches = [next(iterator) for _ in range(4)]
    state = iterator.get_state()
    assert json.loads(state)["data_source"] == repr(source)
    restored = iter(data_loader(source))
    restored.set_state(state)
    assert_same(list(restored), list(data_loader(source))[4:])
    assert_same(batches, list(data_loader(source))[:4])
    with pytest.raises(ValueError, match="DataSource in checkpoint does not match"):
        iter(data_loader(other)).set_state(state)


def test_grains_elastic_iterator_goes_on_at_another_number_of_shards(source):
    def shard(index, count):
        data = grain.MapDataset.source(source).shuffle(seed=1)
        options = grain.sharding.ShardOptions(index, count)
        return iter(experimental.ElasticIterator(data, 12, options, read_options=READ_HERE))

    whole = shard(0, 1)
    expected = [np.sort(next(whole), axis=0) for _ in range(4)]
    pair = [shard(index, 2) for index in range(2)]
    got = [np.concatenate([next(one) for one in pair]) for _ in range(2)]
    state = pair[0].get_state()
    triple = [shard(index, 3) for index in range(3)]
    for one in triple:
        one.set_state(state)
    got += [np.concatenate([next(one) for one in triple]) for _ in range(2)]
    assert_same([np.sort(batch, axis=0) for batch in got], expected)


def test_a_mix_of_sources_is_a_dataset(source, other_corpus):
    parts = [grain.MapDataset.source(one) for one in (source, BlockSource(other_corpus.blocks(8)))]
    mixed = grain.MapDataset.mix(parts, weights=[1, 1])
    np.testing.assert_array_equal(mixed[0], source[0])
    np.testing.assert_array_equal(mixed[1], other_corpus.blocks(8)[0])
    assert len(list(mixed.to_iter_dataset(READ_HERE))) == len(mixed)


@pytest.mark.parametrize("num_workers", [1, 3, 7])
def test_a_sequential_slice_gives_each_worker_a_stretch(source, num_workers):
    whole, name, count = list(source), repr(source), len(source)
    for _ in range(2):  # a slice is always one of the whole
        parts = []
        for worker in range(num_workers):
            source.set_slice(slice(worker, None, num_workers), sequential_slice=True)
            parts.append([source[index] for index in range(len(source))])
        assert_same([block for part in parts for block in part], whole)
        assert {len(part) for part in parts} <= {count // num_workers, count // num_workers + 1}
        assert repr(source) == name


def test_sequential_slices_are_those_of_grains_sources(source):
    def threaded(dataset):
        data = dataset.to_iter_dataset(READ_HERE)
        return list(experimental.multithread_prefetch(data, 3, 2, sequential_slice=True))

    assert_same(threaded(source), threaded(grain.MapDataset.source(list(source))))


@pytest.mark.parametrize("sl", [slice(0, 4, 2), slice(2, None, 2)])
def test_another_slice_of_a_source_is_refused(source, sl):
    with pytest.raises(ArgumentError, match="A source is sliced for workers only"):
        source.set_slice(sl, sequential_slice=True)
    with pytest.raises(ArgumentError, match=r"got slice\(0, None, 2\) and False"):
        source.set_slice(slice(0, None, 2))
