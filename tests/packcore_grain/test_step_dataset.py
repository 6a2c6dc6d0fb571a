"""StepDataset: the loader's batches by number, as a grain.MapDataset."""

import copy
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from pipelines import READ_HERE, assert_same, check_every_state, grain, states_of, workers

import packcore
from packcore.errors import ArgumentError, StateError
from packcore_grain import CheckedDataset, StepDataset

experimental = grain.experimental


@pytest.fixture
def loader(corpus):
    return packcore.Loader(corpus.blocks(8), 8, seed=1, epochs=1, skip=[(1, 3)])


@pytest.fixture
def steps(loader):
    return StepDataset(loader)


@pytest.mark.parametrize("options", [None, READ_HERE, grain.ReadOptions(2, 4)])
def test_grains_checker_passes_at_every_step_and_after_json(steps, loader, options):
    dataset = steps.to_iter_dataset(options)
    experimental.assert_equal_output_after_checkpoint(dataset)
    assert_same(check_every_state(dataset), list(loader))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("options", [None, READ_HERE])
def test_threads_give_the_plain_order_and_states(steps, loader, num_threads, options):
    dataset = experimental.multithread_prefetch(steps.to_iter_dataset(options), num_threads, 2)
    experimental.assert_equal_output_after_checkpoint(dataset)
    assert_same(check_every_state(dataset), list(loader))


def test_processes_give_the_plain_order_and_states(steps, loader):
    next(
        iter(steps.to_iter_dataset(READ_HERE))
    )  # what has been read from goes to another process as well
    batches = list(loader)
    dataset = steps.to_iter_dataset(READ_HERE).mp_prefetch(workers(2))
    with closing(iter(dataset)) as iterator:
        states = []
        for batch in batches[:6]:
            states.append(iterator.get_state())
            np.testing.assert_array_equal(next(iterator), batch)
        iterator.set_state(states[3])
        assert_same([next(iterator) for _ in range(4)], batches[3:7])


def test_any_step_can_be_read_at_any_time(steps, loader):
    batches = list(loader)
    order = np.random.default_rng(0).integers(len(batches), size=60).tolist()
    order += [0, 1, 2, 3, 3, 4, 5, 6, 9, 12, 11, 10, 9, 8, 2, 5, 8, 11, 12, 0, 0, 0]
    for index in order:
        np.testing.assert_array_equal(steps[index], batches[index])


def test_threads_may_share_a_dataset(steps, loader):
    batches = list(loader) * 20
    with ThreadPoolExecutor(8) as pool:
        assert_same(list(pool.map(steps.__getitem__, range(len(batches)))), batches)


def test_an_error_ends_reading_ahead(steps, loader, monkeypatch):
    assert_same([steps[index] for index in range(4)], list(loader)[:4])

    def fails(*_, **__):
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(packcore.Blocks, "rows", fails)
        with pytest.raises(OSError, match="gone"):
            [steps[index] for index in range(4, 100)]
    assert_same([steps[index] for index in range(4, 9)], list(loader)[4:9])


def test_past_the_end_it_begins_anew_and_repeats(steps, loader):
    count = len(steps)
    np.testing.assert_array_equal(steps[count + 3], steps[3])
    repeated = steps.repeat(2)
    assert len(repeated) == 2 * count
    assert_same(list(repeated), list(loader) * 2)


def test_slices_shuffles_and_maps_of_it_are_datasets(steps, loader):
    batches = list(loader)
    assert_same(list(steps[3::2]), batches[3::2])
    assert_same(list(steps.map(np.int64)[:2]), batches[:2])
    shuffled = list(steps.shuffle(seed=1))
    assert sorted(batch.tobytes() for batch in shuffled) == sorted(map(np.ndarray.tobytes, batches))


def test_an_endless_loader_has_the_longest_length_there_is(corpus):
    endless = StepDataset(packcore.Loader(corpus.blocks(8), 8, seed=1))
    assert len(endless) == sys.maxsize
    expected = packcore.Loader(corpus.blocks(8), 8, seed=1).batch_at(10**9)
    np.testing.assert_array_equal(endless[10**9], expected)
    assert len(list(experimental.LimitIterDataset(endless.to_iter_dataset(), 40))) == 40


def test_the_element_spec_is_that_of_the_batches(steps):
    spec = experimental.get_element_spec(steps.to_iter_dataset())
    assert (spec.shape, spec.dtype) == (steps[0].shape, steps[0].dtype)


def test_ranks_share_each_batch(steps, loader):
    ranks = [StepDataset(loader, rank=rank, world_size=3) for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate([rank[4] for rank in ranks]), steps[4])


def test_the_position_of_the_loader_does_not_matter(steps, loader):
    loader.seek(4)
    assert_same(list(StepDataset(loader).to_iter_dataset()), list(steps.to_iter_dataset()))


def test_it_reads_without_threads_whatever_the_loader_does(steps, loader):
    assert loader.prefetch == 2
    before = threading.active_count()
    iterator = iter(steps.to_iter_dataset())
    assert [next(iterator).shape for _ in range(6)] == [(8, 8)] * 6
    assert threading.active_count() == before


def test_copies_and_pickles_read_the_same(steps):
    for _ in range(3):
        expected = steps[len(steps) // 2]
    for other in (copy.deepcopy(steps), pickle.loads(pickle.dumps(steps))):
        np.testing.assert_array_equal(other[len(steps) // 2], expected)


@pytest.mark.parametrize("options", [None, READ_HERE])
@pytest.mark.parametrize(
    ("change", "field"),
    [({"seed": 2}, "seed"), ({"shuffle": None}, "shuffle"), ({"size": 7}, "global_batch_size")],
)
def test_a_state_of_another_order_is_refused_by_the_field(corpus, steps, change, field, options):
    others = {"seed": 1, "epochs": 1} | change
    loader = packcore.Loader(corpus.blocks(8), others.pop("size", 8), **others)
    state = states_of(steps.to_iter_dataset(options))[0][1]
    with pytest.raises(StateError, match=field) as caught:
        iter(StepDataset(loader).to_iter_dataset(options)).set_state(state)
    assert caught.value.field == field


@pytest.mark.parametrize("options", [None, READ_HERE])
def test_a_state_of_other_data_or_version_is_refused_by_the_field(other_corpus, steps, options):
    iterator = iter(steps.to_iter_dataset(options))
    state = iterator.get_state()
    others = packcore.Loader(other_corpus.blocks(8), 8, seed=1, epochs=1)
    with pytest.raises(StateError, match="version") as caught:
        iterator.set_state(state | {"version": 2})
    assert caught.value.field == "version"
    with pytest.raises(StateError, match="fingerprint") as caught:
        iter(StepDataset(others).to_iter_dataset(options)).set_state(state)
    assert caught.value.field == "fingerprint"


def test_a_state_without_grains_own_is_refused(steps):
    iterator = iter(steps.to_iter_dataset(READ_HERE))
    with pytest.raises(StateError, match="parent must be a dict; got 3") as caught:
        iterator.set_state(iterator.get_state() | {"parent": 3})
    assert caught.value.field == "parent"


@pytest.mark.parametrize("parent", [{}, {"next_index": "many"}, {"next_index": 10**9}])
def test_a_state_with_a_damaged_one_of_grains_is_refused(steps, parent):
    iterator = iter(steps.to_iter_dataset(READ_HERE))
    rule = "The state is damaged, or of another pipeline: parent can not be restored"
    with pytest.raises(StateError, match=rule) as caught:
        iterator.set_state(iterator.get_state() | {"parent": parent})
    assert caught.value.field == "parent"
    assert caught.value.got == parent


def test_after_a_transformation_states_are_checked_by_wrapping(steps, other_corpus):
    def piped(steps):
        return CheckedDataset(steps.map(np.int64).to_iter_dataset(READ_HERE), steps)

    assert_same(check_every_state(piped(steps)), list(steps.to_iter_dataset()))
    others = StepDataset(packcore.Loader(other_corpus.blocks(8), 8, seed=1, epochs=1))
    with pytest.raises(StateError, match="fingerprint"):
        iter(piped(others)).set_state(states_of(piped(steps))[0][1])


@pytest.mark.parametrize("options", [None, READ_HERE])
def test_the_next_index_counts_elements_and_can_be_set(steps, options):
    iterator = iter(steps.to_iter_dataset(options))
    next(iterator)
    assert experimental.get_next_index(iterator) == 1
    experimental.set_next_index(iterator, 4)
    np.testing.assert_array_equal(next(iterator), steps[4])


@pytest.mark.parametrize("options", [None, READ_HERE])
def test_a_closed_iterator_gives_nothing_more(steps, options):
    iterator = iter(steps.to_iter_dataset(options))
    iterator.close()
    with pytest.raises(ValueError, match="closed iterator"):
        next(iterator)


def test_a_sequential_slice_gives_each_worker_a_stretch_of_the_steps(steps, loader):
    data = steps.to_iter_dataset(READ_HERE)
    got = list(experimental.multithread_prefetch(data, 2, 2, sequential_slice=True))
    batches = list(loader)
    middle = (len(batches) + 1) // 2
    assert_same(got[0::2], batches[:middle])
    assert_same(got[1::2], batches[middle:])


def test_an_endless_run_has_no_stretches(corpus):
    steps = StepDataset(packcore.Loader(corpus.blocks(8), 8, seed=1))
    with pytest.raises(ArgumentError, match="has no end can not be cut into stretches"):
        steps.set_slice(slice(0, None, 2), sequential_slice=True)
