"""LoaderDataset: the loader's batches as a grain.IterDataset."""

import copy
import gc
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from pipelines import READ_HERE, assert_same, check_every_state, grain, sent, states_of, workers

import packcore
from packcore.errors import ArgumentError, ArgumentTypeError, StateError
from packcore_grain import BlockSource, LoaderDataset, StepDataset

experimental = grain.experimental


def make_loader(corpus, batch_size=8, **options):
    return packcore.Loader(corpus.blocks(8), batch_size, **{"seed": 1, "epochs": 1} | options)


@pytest.fixture
def loader(corpus):
    return make_loader(corpus, 16)


FIELDS = ["tokens", "document_starts", "segment_ids", "positions", "loss_mask", "mask"]
LOADERS = {
    "arrays": {},
    "dicts": {"fields": FIELDS},
    "padded": {"remainder": "pad", "dtype": "int32"},
    "skipping": {"skip": [(0, 2), (4, 5)], "shuffle": None},
    "windows": {"shuffle": "window", "window": 2, "prefetch": 0},
}


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_grains_checker_passes_at_every_step_and_after_json(corpus, options):
    dataset = LoaderDataset(make_loader(corpus, **options))
    experimental.assert_equal_output_after_checkpoint(dataset)
    assert_same(check_every_state(dataset), list(make_loader(corpus, **options)))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_give_the_plain_order_and_states(loader, num_threads):
    dataset = experimental.multithread_prefetch(LoaderDataset(loader), num_threads, buffer_size=2)
    experimental.assert_equal_output_after_checkpoint(dataset)
    assert_same(check_every_state(dataset), list(loader))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_processes_give_the_plain_order_and_states(corpus, num_workers):
    # Without an end, so that no worker ends and has to be started again.
    loader = make_loader(corpus, 16, epochs=None)
    batches = [loader.batch_at(step) for step in range(8)]
    dataset = LoaderDataset(loader).map(np.int64).mp_prefetch(workers(num_workers))
    with closing(iter(dataset)) as iterator:
        states = []
        for batch in batches:
            states.append(sent(iterator.get_state()))
            np.testing.assert_array_equal(next(iterator), batch)
        for step in reversed(range(len(states))):
            iterator.set_state(states[step])
            assert sent(iterator.get_state()) == states[step]
            np.testing.assert_array_equal(next(iterator), batches[step])
        assert_same([next(iterator) for _ in batches[1:]], batches[1:])


PIPELINES = {
    "map": lambda data: data.map(lambda batch: batch + 1),
    "filter": lambda data: data.filter(lambda batch: batch[0, 0] % 2 == 0),
    "thread": lambda data: experimental.ThreadPrefetchIterDataset(data, prefetch_buffer_size=1),
    "threads": lambda data: experimental.ThreadPrefetchIterDataset(data, prefetch_buffer_size=9),
    "rebatch": lambda data: experimental.RebatchIterDataset(data, 6),
    "repeat": lambda data: experimental.RepeatIterDataset(data, 2),
    "limit": lambda data: experimental.LimitIterDataset(data, 5),
    "zip": lambda data: experimental.ZipIterDataset([data, data]),
    "mix": lambda data: grain.IterDataset.mix([data, data.map(lambda batch: batch + 1)], [2, 1]),
    "options": lambda data: experimental.WithOptionsIterDataset(
        data, experimental.DatasetOptions(filter_raise_threshold_ratio=0.9)
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_grains_transformations_work_and_are_restored_at_every_step(loader, name):
    in_memory = grain.MapDataset.source(list(loader)).to_iter_dataset(READ_HERE)
    items = check_every_state(PIPELINES[name](LoaderDataset(loader)))
    assert_same(items, list(PIPELINES[name](in_memory)))


def test_slices_of_slices_are_slices(loader):
    dataset = LoaderDataset(loader)
    dataset.set_slice(slice(1, None, 2))
    dataset.set_slice(slice(2, None, 3), sequential_slice=True)
    assert_same(list(dataset), list(loader)[5::6])
    with pytest.raises(ArgumentError, match=r"must be slice\(worker, None, num_workers\); got"):
        dataset.set_slice(slice(0, 4))


@pytest.mark.parametrize(
    ("sl", "error", "message"),
    [
        (None, ArgumentTypeError, r"sl must be slice\(worker, .*; got None \(NoneType\)"),
        (3, ArgumentTypeError, r"sl must be slice\(worker, .*; got 3 \(int\)"),
        (slice(0.5, None, 2), ArgumentTypeError, r"sl\.start must be an integer; got 0\.5"),
        (slice(0, None, "2"), ArgumentTypeError, r"sl\.step must be an integer; got '2'"),
        (slice(0, None, 0), ArgumentError, r"sl\.step must be at least 1; got 0"),
        (slice(0, None, -1), ArgumentError, r"sl\.step must be at least 1; got -1"),
        (slice(-1, None, 2), ArgumentError, r"sl\.start must be at least 0; got -1"),
    ],
)
def test_what_is_no_slice_for_a_worker_is_refused_and_changes_nothing(loader, sl, error, message):
    datasets = (
        LoaderDataset(loader),
        StepDataset(loader),
        BlockSource(loader.mixture.blocks["data"]),
    )
    for dataset in datasets:
        with pytest.raises(error, match=message):
            dataset.set_slice(sl, sequential_slice=True)
    assert_same(list(datasets[0]), list(loader))
    assert len(datasets[1]) == len(loader)
    assert len(datasets[2]) == len(loader.mixture.blocks["data"])


def test_an_iterator_begins_where_the_loader_stood_and_moves_nothing_else(loader):
    batches = list(loader)
    loader.seek(2)
    dataset = LoaderDataset(loader)
    loader.seek(5)
    first, second = iter(dataset), iter(dataset)
    next(first)
    np.testing.assert_array_equal(next(first), batches[3])
    np.testing.assert_array_equal(next(second), batches[2])
    assert_same(list(dataset), batches[2:])
    assert loader.num_served == 5


def test_a_dataset_of_an_endless_loader_is_endless(corpus):
    dataset = LoaderDataset(make_loader(corpus, epochs=None))
    count = 3 * len(make_loader(corpus))
    assert len(list(experimental.LimitIterDataset(dataset, count))) == count


def test_the_next_index_counts_elements_and_can_be_set(loader):
    batches = list(loader)
    loader.seek(1)
    for data in (LoaderDataset(loader), LoaderDataset(loader).map(lambda batch: batch)):
        iterator = iter(data)
        next(iterator)
        assert experimental.get_next_index(iterator) == 1
        experimental.set_next_index(iterator, 4)
        assert experimental.get_next_index(iterator) == 4
        np.testing.assert_array_equal(next(iterator), batches[5])


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_the_element_spec_is_that_of_the_batches(corpus, options):
    dataset = LoaderDataset(make_loader(corpus, **options), rank=1, world_size=3)
    spec, batch = experimental.get_element_spec(dataset), next(iter(dataset))
    if not isinstance(batch, dict):
        spec, batch = {"tokens": spec}, {"tokens": batch}
    assert list(spec) == list(batch)
    for field, array in batch.items():
        shape = tuple(size or array.shape[axis] for axis, size in enumerate(spec[field].shape))
        assert (shape, spec[field].dtype) == (array.shape, array.dtype), field


def test_every_field_has_a_spec():
    assert set(FIELDS) == set(packcore.loader.FIELDS)


def test_ranks_share_each_batch(loader):
    ranks = [list(LoaderDataset(loader, rank=rank, world_size=3)) for rank in range(3)]
    assert_same([np.concatenate(rows) for rows in zip(*ranks, strict=True)], list(loader))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1}, "rank and world_size must be given together; got 1 and None"),
        ({"world_size": 2}, "rank and world_size must be given together; got None and 2"),
        ({"rank": 2, "world_size": 2}, r"rank must be in \[0, 1\]; got 2"),
        ({"rank": 0, "world_size": 20}, "global_batch_size must be at least world_size, 20"),
    ],
)
def test_a_wrong_rank_is_refused(loader, options, message):
    with pytest.raises(ArgumentError, match=message):
        LoaderDataset(loader, **options)


@pytest.mark.parametrize("dataset", [LoaderDataset, StepDataset])
@pytest.mark.parametrize("options", [{}, {"rank": 0, "world_size": 1}])
def test_what_is_no_loader_is_refused_and_blocks_with_the_way(corpus, dataset, options):
    for wrong in (None, 5, "x", corpus.blocks(8)):
        rule = (
            rf"loader must be a packcore\.Loader; got {type(wrong).__name__}\. Make one of blocks"
        )
        with pytest.raises(ArgumentTypeError, match=rule) as caught:
            dataset(wrong, **options)
        assert caught.value.name == "loader"
        assert caught.value.value is wrong


def test_the_rank_of_a_loader_that_has_one_is_kept(corpus):
    loader = make_loader(corpus, rank=1, world_size=2)
    assert_same(list(LoaderDataset(loader)), list(loader))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 2}, "seed"),
        ({"shuffle": None}, "shuffle"),
        ({"shuffle": "window", "window": 3}, "shuffle"),
        ({"global_batch_size": 7}, "global_batch_size"),
    ],
)
def test_a_state_of_another_order_is_refused_by_the_field(corpus, change, field):
    iterator = iter(LoaderDataset(make_loader(corpus)))
    next(iterator)
    size = change.pop("global_batch_size", 8)
    other = iter(LoaderDataset(make_loader(corpus, size, **change)))
    with pytest.raises(StateError, match=field) as caught:
        other.set_state(iterator.get_state())
    assert caught.value.field == field


def test_a_state_of_other_data_or_blocks_or_version_is_refused_by_the_field(corpus, other_corpus):
    iterator = iter(LoaderDataset(make_loader(corpus)))
    state = iterator.get_state()
    with pytest.raises(StateError, match="fingerprint") as caught:
        iter(LoaderDataset(make_loader(other_corpus))).set_state(state)
    assert caught.value.field == "fingerprint"
    for field, value in {"version": 2, "block_size": 9, "position": -1, "slice": 3}.items():
        with pytest.raises(StateError, match=f"{field} ") as caught:
            iterator.set_state(state | {field: value})
        assert caught.value.field == field
    with pytest.raises(ArgumentTypeError, match="A state must be a dict"):
        iterator.set_state([state])


def test_a_state_of_another_number_of_workers_is_refused_with_the_way_out(loader):
    pairs, triples = LoaderDataset(loader), LoaderDataset(loader)
    pairs.set_slice(slice(1, None, 2))
    triples.set_slice(slice(1, None, 3))
    with pytest.raises(StateError, match=r"takes the batches 1 \+ 2 k.*1 \+ 3 k.*resume") as caught:
        iter(triples).set_state(iter(pairs).get_state())
    assert (caught.value.field, caught.value.expected) == ("slice", [1, 3])


def test_a_state_of_the_loader_itself_is_taken(loader):
    batches = list(loader)
    loader.seek(3)
    iterator = iter(LoaderDataset(make_loader_like(loader)))
    iterator.set_state(loader.state_dict())
    assert_same(list(iterator), batches[3:])


def make_loader_like(loader):
    return packcore.Loader(loader.mixture, loader.global_batch_size, seed=loader.seed)


def test_after_an_error_the_next_try_goes_on_without_a_gap(loader, monkeypatch):
    batches = list(loader)
    iterator = iter(LoaderDataset(loader))
    assert_same([next(iterator) for _ in range(2)], batches[:2])
    iterator.set_state(iterator.get_state())
    with monkeypatch.context() as patch:
        patch.setattr(packcore.Blocks, "rows", fails)
        for _ in range(2):
            with pytest.raises(OSError, match="gone"):
                next(iterator)
    assert_same(list(iterator), batches[2:])
    assert list(iterator) == []


def fails(*_, **__):
    raise OSError("gone")


def test_a_refused_state_changes_nothing(loader):
    batches = list(loader)
    iterator = iter(LoaderDataset(loader))
    next(iterator)
    with pytest.raises(StateError):
        iterator.set_state(iterator.get_state() | {"seed": 7})
    np.testing.assert_array_equal(next(iterator), batches[1])


def test_the_weights_of_a_state_are_taken_over(corpus, other_corpus):
    blocks = {"a": (corpus.blocks(8), 1.0), "b": (other_corpus.blocks(8), 1.0)}
    plain = packcore.Mixture(blocks)
    changed = plain.reweight(40, {"a": 0.0})
    before = LoaderDataset(packcore.Loader(changed, 8, seed=1))
    after = LoaderDataset(packcore.Loader(plain, 8, seed=1))
    source, target = iter(before), iter(after)
    expected = [next(source) for _ in range(12)]
    source.set_state(iter(before).get_state())
    target.set_state(source.get_state())
    assert_same([next(target) for _ in range(12)], expected)


def test_a_state_is_small_and_the_same_on_every_rank(loader):
    states = []
    for rank in range(3):
        iterator = iter(LoaderDataset(loader, rank=rank, world_size=3))
        next(iterator)
        states.append(iterator.get_state())
    assert states[0] == states[1] == states[2]
    assert len(str(states[0])) < 500


@pytest.fixture
def new_threads():
    """Name the threads begun in this test: other tests leave Grain's idle pools behind."""
    before = set(threading.enumerate())

    def names():
        started = set(threading.enumerate()) - before
        return [thread.name for thread in started if thread.name.startswith(("packcore", "grain"))]

    return names


def test_closing_or_dropping_an_iterator_leaves_no_thread(loader, new_threads):
    iterator = iter(LoaderDataset(loader))
    next(iterator)
    assert new_threads()
    iterator.close()
    assert not new_threads()
    with pytest.raises(ValueError, match="closed iterator"):
        next(iterator)
    iterator.close()

    iterator = iter(LoaderDataset(loader))
    next(iterator)
    del iterator
    gc.collect()
    assert not new_threads()


def test_closing_grains_prefetching_closes_the_loader(loader, new_threads):
    data = experimental.ThreadPrefetchIterDataset(LoaderDataset(loader), prefetch_buffer_size=2)
    with closing(iter(data)) as iterator:
        next(iterator)
        assert new_threads()
    assert not new_threads()


LEFT_OPEN = """
import sys
import grain
import packcore, packcore_grain
loader = packcore.Loader(packcore.open(sys.argv[1]).blocks(8), 8, seed=1)
data = packcore_grain.LoaderDataset(loader)
if sys.argv[2] == "thread":
    data = grain.experimental.ThreadPrefetchIterDataset(data, prefetch_buffer_size=2)
iterators = [iter(data), iter(packcore_grain.StepDataset(loader).to_iter_dataset())]
print(all(next(iterator).size for iterator in iterators for _ in range(5)))
"""


@pytest.mark.parametrize("prefetch", ["loader", "thread"])
def test_iterators_that_are_left_open_print_nothing_at_exit(corpus, prefetch):
    folder = str(Path(corpus.chunks[0].path).parent)
    command = [sys.executable, "-c", LEFT_OPEN, folder, prefetch]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, "True\n")
    # Grain's own thread iterator prints at exit, whatever it reads, unless it is closed.
    assert "packcore" not in run.stderr
    assert prefetch == "thread" or "Exception" not in run.stderr


def test_a_copy_for_a_thread_shares_the_loader_and_has_its_own_slice(loader):
    dataset = LoaderDataset(loader)
    copied = copy.deepcopy(dataset)
    copied.set_slice(slice(1, None, 2))
    assert_same(list(copied), list(loader)[1::2])
    assert_same(list(dataset), list(loader))
    assert copied._loader is dataset._loader


def test_a_batch_that_was_handed_out_is_never_written_again(corpus):
    dataset = LoaderDataset(make_loader(corpus, fields=FIELDS, epochs=2))
    copies = [copy.deepcopy(batch) for batch in dataset]
    assert_same(list(dataset), copies)


def test_states_do_not_change_after_they_were_taken(loader):
    iterator = iter(LoaderDataset(loader))
    states = [iterator.get_state() for _ in iterator]
    assert [sent(state) for state in states] == states_of(LoaderDataset(loader))[0][1:]
