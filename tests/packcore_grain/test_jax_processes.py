"""Ranks of JAX processes, and batches as global arrays over a mesh."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pipelines import assert_same, grain

import packcore
from packcore.errors import ArgumentError
from packcore_grain import LoaderDataset, StepDataset, read_state, resume, sharding_rank

jax = pytest.importorskip("jax", reason="global arrays need JAX")

P = jax.sharding.PartitionSpec


@pytest.fixture
def loader(corpus):
    return packcore.Loader(corpus.blocks(8), 8, seed=1, epochs=1)


@pytest.fixture(scope="module")
def devices():
    found = jax.devices()
    if len(found) != 8:
        pytest.skip("conftest.py asks for 8 CPU devices, but JAX had begun before")
    return np.array(found)


@pytest.mark.parametrize("dataset", [LoaderDataset, StepDataset])
def test_the_rank_is_that_of_the_jax_process_unless_it_is_given(loader, monkeypatch, dataset):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    whole = loader.batch_at(0)
    assert_same([next(iter(dataset(loader)))], [whole[4:]])
    assert_same([next(iter(dataset(loader, rank=0, world_size=4)))], [whole[:2]])
    assert_same([next(iter(dataset(loader, rank=0, world_size=1)))], [whole])
    given = loader.for_rank(rank=0, world_size=2)
    assert_same([next(iter(dataset(given)))], [whole[:4]])


def test_without_jax_there_is_one_rank(loader, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    assert next(iter(LoaderDataset(loader))).shape == (8, 8)


@pytest.mark.parametrize("shape", [(8,), (4, 2), (2, 4), (1, 8)])
def test_a_batch_becomes_a_global_array_in_the_order_of_its_rows(loader, devices, shape):
    axes = ("data", "model")[: len(shape)]
    mesh = jax.sharding.Mesh(devices.reshape(shape), axes)
    sharding = jax.sharding.NamedSharding(mesh, P("data"))
    for batch in LoaderDataset(loader):
        array = jax.make_array_from_process_local_data(sharding, batch)
        np.testing.assert_array_equal(array, batch)
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(shard.data, batch[shard.index])


def test_a_dict_becomes_global_arrays_under_one_sharding(corpus, devices):
    fields = ["tokens", "document_starts", "segment_ids", "mask"]
    loader = packcore.Loader(corpus.blocks(8), 8, seed=1, epochs=1, fields=fields)
    sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, "data"), P("data"))
    batch = next(iter(LoaderDataset(loader)))
    arrays = jax.make_array_from_process_local_data(sharding, batch)
    assert_same([jax.device_get(arrays)], [batch])


def test_batches_that_jax_aliases_are_never_written_again(loader, devices):
    sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(devices[:1], "data"), P("data"))
    batches = list(loader)
    for data in (LoaderDataset(loader), StepDataset(loader).to_iter_dataset()):
        put = [
            (jax.device_put(batch), jax.make_array_from_process_local_data(sharding, batch))
            for batch in data
        ]
        for (one, other), batch in zip(put, batches, strict=True):
            np.testing.assert_array_equal(one, batch)
            np.testing.assert_array_equal(other, batch)


class Held:
    """A sharding of which this process holds some ranges of rows."""

    def __init__(self, *ranges):
        self.ranges = ranges

    def addressable_devices_indices_map(self, shape):
        columns = slice(0, shape[1])
        return {number: (slice(*rows), columns) for number, rows in enumerate(self.ranges)}


@pytest.mark.parametrize(
    ("held", "rank"),
    [
        (Held((None, None)), (0, 1)),
        (Held((0, 4), (4, 8)), (0, 2)),
        (Held((12, 14), (14, 16), (12, 14)), (3, 4)),
    ],
)
def test_the_rank_follows_from_the_rows_that_a_process_holds(held, rank):
    assert sharding_rank(held, (16, 8)) == rank


@pytest.mark.parametrize("held", [Held((0, 4), (8, 12)), Held((2, 6)), Held((0, 5))])
def test_rows_that_are_no_even_range_are_refused(held):
    with pytest.raises(ArgumentError, match="must hold one range of rows, an even share"):
        sharding_rank(held, (16, 8))


def test_one_process_holds_all_rows_of_any_mesh(devices):
    mesh = jax.sharding.Mesh(devices.reshape(4, 2), ("data", "model"))
    for spec in (P("data"), P("data", "model"), P(("data", "model")), P(None, "data")):
        assert sharding_rank(jax.sharding.NamedSharding(mesh, spec), (16, 8)) == (0, 1)


@pytest.fixture(scope="module")
def saved_by_two(corpus, tmp_path_factory):
    """The folder that two JAX processes of 2 devices each have written."""
    pytest.importorskip("orbax.checkpoint", reason="saving needs Orbax")
    out = tmp_path_factory.mktemp("two")
    folder = str(Path(corpus.chunks[0].path).parent)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("jax_process.py")
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    running = [
        subprocess.Popen(
            [sys.executable, str(script), str(index), "2", str(port), folder, str(out)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    errors = [process.communicate(timeout=100)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], "\n".join(errors)
    return out


def test_two_processes_build_the_loaders_global_batches(saved_by_two, loader):
    assert_same(list(np.load(saved_by_two / "seen.npy")), list(loader)[:3])


def test_what_two_processes_saved_goes_on_in_one_with_workers(saved_by_two, loader):
    batches = list(loader)
    folder = saved_by_two / "run" / "3"
    assert sorted(path.name for path in (folder / "grains").glob("process*")) == [
        "process_0-of-2.json",
        "process_1-of-2.json",
    ]
    with pytest.raises(ValueError, match=r"process_0-of-1\.json does not exist"):
        grain.checkpoint.CheckpointHandler().restore(folder / "grains", iter(LoaderDataset(loader)))
    for state in (
        read_state(folder / "grains"),
        json.loads(next((folder / "data").glob("*")).read_text()),
    ):
        resume(loader, state)
        data = grain.experimental.multithread_prefetch(LoaderDataset(loader), 2, 1)
        assert_same(list(data), batches[3:])
