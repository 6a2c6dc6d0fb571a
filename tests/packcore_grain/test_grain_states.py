"""States of whole pipelines: saved at one number of workers and ranks, resumed at another."""

import itertools
import json
from contextlib import closing

import numpy as np
import pytest
from pipelines import assert_same, grain, sent, states_of, workers

import packcore
from packcore.errors import ArgumentTypeError, NoDataError, StateError
from packcore_grain import LoaderDataset, read_state, resume

experimental = grain.experimental


def make_loader(corpus, **options):
    skip = [(2, 3), (6, 8)]
    return packcore.Loader(corpus.blocks(8), 12, **{"seed": 1, "epochs": 1, "skip": skip} | options)


@pytest.fixture
def loader(corpus):
    return make_loader(corpus)


def threaded(dataset, num_threads):
    return experimental.multithread_prefetch(dataset, num_threads, buffer_size=2)


@pytest.mark.parametrize("saved", [0, 1, 2, 3])
@pytest.mark.parametrize("resumed", [0, 1, 2, 3])
def test_threads_are_resumed_at_another_number_at_every_step(loader, saved, resumed):
    states, batches = states_of(threaded(LoaderDataset(loader), saved))
    for step, state in enumerate(states):
        resume(loader, state)
        assert loader.num_served == step
        assert_same(list(threaded(LoaderDataset(loader), resumed)), batches[step:])


def test_processes_are_resumed_at_another_number_from_the_first_step_on(loader, corpus):
    batches = list(make_loader(corpus))
    with closing(iter(LoaderDataset(loader).mp_prefetch(workers(3)))) as iterator:
        for step in range(5):
            state = sent(iterator.get_state())
            resume(loader, state)
            assert_same(list(LoaderDataset(loader)), batches[step:])
            np.testing.assert_array_equal(next(iterator), batches[step])
    resume(loader, state)
    assert_same(list(LoaderDataset(loader).mp_prefetch(workers(2))), batches[4:])


@pytest.mark.parametrize(("before", "after"), [(1, 3), (4, 2), (2, 1)])
def test_the_global_stream_goes_on_at_another_number_of_ranks(corpus, before, after):
    def ranks(world_size, state=None):
        loader = make_loader(corpus)
        if state is not None:
            resume(loader, state)
        return [
            iter(threaded(LoaderDataset(loader, rank=rank, world_size=world_size), rank))
            for rank in range(world_size)
        ]

    first = ranks(before)
    got = [np.concatenate([next(rank) for rank in first]) for _ in range(3)]
    states = [sent(rank.get_state()) for rank in first]
    for state in states:  # that of any rank will do, whatever its number of threads
        second = ranks(after, state)
        rest = [np.concatenate(rows) for rows in zip(*second, strict=True)]
        assert_same(got + rest, list(make_loader(corpus)))


def test_the_end_is_the_end_at_any_number_of_workers(loader):
    for num_threads in (0, 2, 3):
        state = states_of(threaded(LoaderDataset(loader), num_threads))[0][-1]
        resume(loader, state)
        assert list(loader) == []


def test_map_filter_and_prefetching_do_not_stand_in_the_way(loader, corpus):
    def piped():
        data = LoaderDataset(loader).map(np.int64).filter(lambda batch: batch[0, 0] > 30)
        return experimental.ThreadPrefetchIterDataset(data, prefetch_buffer_size=2)

    states, batches = states_of(piped())
    assert 2 < len(batches) < len(make_loader(corpus))
    for step, state in enumerate(states):
        resume(loader, state)
        assert_same(list(piped()), batches[step:])


def test_workers_that_filter_are_out_of_step_and_refused(loader):
    data = LoaderDataset(loader).filter(lambda batch: batch[0, 0] > 30)
    states = states_of(threaded(data, 2))[0]
    with pytest.raises(StateError, match="The workers are out of step: their next batches") as one:
        [resume(loader, state) for state in states]
    assert one.value.field == "served"


@pytest.mark.parametrize(
    ("pipeline", "key"),
    [
        (lambda data: experimental.RebatchIterDataset(data, 5), "batch_idx"),
        (lambda data: experimental.LimitIterDataset(data, 5), "count_elements_read"),
        (lambda data: experimental.RepeatIterDataset(data, 2), "epoch"),
        (lambda data: grain.IterDataset.mix([data, data]), "index"),
    ],
)
def test_a_state_with_more_in_it_than_a_position_is_refused(loader, pipeline, key):
    state = iter(pipeline(LoaderDataset(loader))).get_state()
    with pytest.raises(StateError, match=rf"it has .*'{key}'.* Restore it with set_state in the"):
        resume(loader, state)


def test_what_is_no_state_is_refused_and_the_loader_stays(loader):
    loader.seek(2)
    with pytest.raises(ArgumentTypeError, match="A state must be a dict, as get_state"):
        resume(loader, b"state")
    with pytest.raises(StateError, match="seed is 2, here it is 1"):
        resume(loader, states_of(LoaderDataset(make_loader_like(loader, seed=2)))[0][0])
    assert loader.num_served == 2


def test_a_damaged_state_is_refused_by_the_field(loader):
    state = iter(threaded(LoaderDataset(loader), 2)).get_state()
    for field, value in {"served": "many", "slice": [1], "position": 5}.items():
        damaged = json.loads(json.dumps(state))
        for part in damaged["iterators_in_use_states"]:
            part[field] = value
        with pytest.raises(StateError, match=field) as caught:
            resume(loader, damaged)
        assert caught.value.field in (field, "global_batch_size")


STATES, WORKERS = "iterators_in_use_states", "iterators_in_use_indices"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (STATES, 5),
        (STATES, "ab"),
        (STATES, [5, None]),
        (STATES, {"0": {}, "1": {}}),
        (WORKERS, None),
        (WORKERS, "cd"),
        (WORKERS, [0]),
        (WORKERS, [0, "1"]),
        (WORKERS, [None, 1]),
        (WORKERS, [-1, 0]),
    ],
)
def test_damaged_states_of_workers_are_refused_by_the_field(loader, field, value):
    state = sent(iter(threaded(LoaderDataset(loader), 2)).get_state())
    outer = {WORKERS: [0], STATES: [state | {field: value}]}
    for damaged in (state | {field: value}, outer):
        with pytest.raises(StateError, match=f"The state is damaged: {field} must be a") as caught:
            resume(loader, damaged)
        assert caught.value.field == field
    del state[WORKERS]
    with pytest.raises(StateError, match=f"{WORKERS} must be a list of 2 integers"):
        resume(loader, state)


def wrecks(state):
    """Yields the state with one value, however deep, of a wrong type or gone."""
    keys = list(state) if isinstance(state, dict) else range(len(state))
    for key in keys:
        for wrong in (None, "x", 1.5, [], {}, [None], {"a": 1}, -1):
            wrecked = sent(state)
            wrecked[key] = wrong
            yield wrecked
        if isinstance(state, dict):
            yield {name: value for name, value in state.items() if name != key}
        if isinstance(state[key], dict | list):
            for part in wrecks(state[key]):
                wrecked = sent(state)
                wrecked[key] = part
                yield wrecked


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_wrong_value_anywhere_in_a_state_is_a_state_error_or_does_not_matter(loader, num_threads):
    loader.seek(3)
    state = sent(iter(threaded(LoaderDataset(loader), num_threads)).get_state())
    loads = [lambda wrecked: resume(loader, wrecked)]
    if not num_threads:  # else it is Grain's
        loads.append(iter(LoaderDataset(loader)).set_state)
    fields = set()
    for wrecked, load in itertools.product(wrecks(state), loads):
        try:
            load(wrecked)
        except StateError as error:
            fields.add(error.field)
    assert fields >= {
        "version",
        "seed",
        "fingerprint",
        "weights",
        "num_changes",
        "position",
        "slice",
    }
    assert None not in fields


def test_a_state_of_the_loader_itself_is_taken(loader):
    loader.seek(4)
    state = loader.state_dict()
    loader.seek(0)
    resume(loader, state)
    assert loader.num_served == 4


def make_loader_like(loader, **options):
    return packcore.Loader(loader.mixture, 12, **options)


def write_states(folder, states):
    for index, state in enumerate(states):
        path = folder / f"process_{index}-of-{len(states)}.json"
        path.write_text(json.dumps(state))


def test_any_file_of_grain_checkpoint_is_read(loader, tmp_path):
    state = states_of(LoaderDataset(loader))[0][3]
    write_states(tmp_path, [state] * 3)
    assert read_state(tmp_path) == read_state(str(tmp_path)) == state


def test_files_of_grain_checkpoint_that_differ_are_refused(loader, tmp_path):
    write_states(tmp_path, states_of(LoaderDataset(loader))[0][:2])
    with pytest.raises(StateError, match="had not served the same number of steps"):
        read_state(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"position": 3', b"[3]", b"\xff\x00"])
def test_a_damaged_file_of_grain_checkpoint_is_refused_by_its_name(loader, tmp_path, content):
    write_states(tmp_path, [states_of(LoaderDataset(loader))[0][3]] * 2)
    (tmp_path / "process_1-of-2.json").write_bytes(content)
    with pytest.raises(StateError, match=r"process_1-of-2\.json is damaged: it is not a dict"):
        read_state(tmp_path)


@pytest.mark.parametrize("folder", ["", "missing"])
def test_a_folder_without_states_is_refused(tmp_path, folder):
    with pytest.raises(NoDataError, match=r"Name the folder that grain\.checkpoint wrote"):
        read_state(tmp_path / folder)


@pytest.fixture
def checkpoints():
    pytest.importorskip("jax", reason="Orbax needs JAX")
    return pytest.importorskip("orbax.checkpoint", reason="saving needs Orbax")


@pytest.mark.parametrize("num_threads", [0, 2])
def test_grain_checkpoint_saves_it_beside_parameters(checkpoints, loader, tmp_path, num_threads):
    params = {"weights": np.arange(6.0).reshape(2, 3)}
    batches = list(loader)
    with checkpoints.CheckpointManager(tmp_path / "run") as manager:
        iterator = iter(threaded(LoaderDataset(loader), num_threads))
        for step in range(5):
            np.testing.assert_array_equal(next(iterator), batches[step])
        items = checkpoints.args.Composite(
            params=checkpoints.args.StandardSave(params),
            data=grain.checkpoint.CheckpointSave(iterator),
        )
        manager.save(5, args=items)
        manager.wait_until_finished()

        target = iter(threaded(LoaderDataset(loader), num_threads))
        wanted = checkpoints.args.Composite(
            params=checkpoints.args.StandardRestore(params),
            data=grain.checkpoint.CheckpointRestore(target),
        )
        restored = manager.restore(5, args=wanted)
        np.testing.assert_array_equal(restored.params["weights"], params["weights"])
        assert_same(list(restored.data), batches[5:])

    resume(loader, read_state(tmp_path / "run" / "5" / "data"))
    ranks = [LoaderDataset(loader, rank=rank, world_size=3) for rank in range(3)]
    rest = zip(*[list(threaded(rank, 3)) for rank in ranks], strict=True)
    assert_same([np.concatenate(rows) for rows in rest], batches[5:])


def test_orbax_saves_the_state_as_json_once_for_all_processes(checkpoints, loader, tmp_path):
    params = {"weights": np.arange(6.0)}
    batches = list(loader)
    with checkpoints.CheckpointManager(tmp_path / "run") as manager:
        iterator = iter(threaded(LoaderDataset(loader), 2))
        for step in range(3):
            np.testing.assert_array_equal(next(iterator), batches[step])
        items = checkpoints.args.Composite(
            params=checkpoints.args.StandardSave(params),
            data=checkpoints.args.JsonSave(iterator.get_state()),
        )
        manager.save(3, args=items)
        manager.wait_until_finished()
        wanted = checkpoints.args.Composite(
            params=checkpoints.args.StandardRestore(params),
            data=checkpoints.args.JsonRestore(),
        )
        restored = manager.restore(3, args=wanted)
    resume(loader, restored.data)
    assert_same(list(LoaderDataset(loader)), batches[3:])
