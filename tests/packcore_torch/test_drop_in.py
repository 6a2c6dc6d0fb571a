"""packcore_torch in place of lit-gpt's packed_dataset module."""

import glob
import json
import multiprocessing
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="packcore_torch needs PyTorch")

from torch.utils.data import DataLoader, get_worker_info  # noqa: E402  # after the skip

import packcore  # noqa: E402
import packcore_torch as packed_dataset  # noqa: E402  # as a training script imports it
from packcore.errors import ArgumentError, ArgumentTypeError, NoDataError, StateError  # noqa: E402
from packcore.testing import check_resume  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "golden"
ORDER = json.loads((GOLDEN / "order.json").read_text())
MIX = json.loads((GOLDEN / "mix.json").read_text())
CHUNK_SIZE = 40

pytestmark = [
    # Python 3.12 warns of fork in a process with threads, and torch always has some.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
    # torchdata 0.11 calls what torch 2.13 has deprecated.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two prefixes, 24 and 12 chunks and what else the builder puts beside them."""
    folder = tmp_path_factory.mktemp("corpus")
    for prefix, num_chunks, first in (("train_slim", 24, 0), ("train_star", 12, 30_000)):
        builder = packed_dataset.PackedDatasetBuilder(
            outdir=folder,
            prefix=prefix,
            chunk_size=CHUNK_SIZE,
            sep_token=0,
            dtype="auto",
            vocab_size=50_000,
        )
        builder.add_array(np.arange(first, first + num_chunks * CHUNK_SIZE, dtype=builder.dtype))
        builder.write_reminder()
        builder.close()
    assert len(list(folder.glob("train_slim*"))) > 24
    return folder


def paths_of(folder, prefix):
    return sorted(map(str, folder.glob(f"{prefix}*.bin")))


def tokens_of(batches):
    return [batch.tolist() for batch in batches]


# --- The module ----------------------------------------------------------------------------


def test_every_public_name_of_the_original_module_is_there():
    names = {
        "CombinedDataset",
        "CombinedDatasetIterator",
        "HDR_MAGIC",
        "HDR_SIZE",
        "PackedDataset",
        "PackedDatasetBuilder",
        "PackedDatasetIterator",
        "code",
        "dtypes",
    }
    assert names <= set(packed_dataset.__all__)
    assert (packed_dataset.HDR_MAGIC, packed_dataset.HDR_SIZE) == (b"LITPKDS", 24)
    assert packed_dataset.code(packed_dataset.dtypes[8]) == 8


def test_without_torch_the_pip_command_is_named():
    code = """
import sys
sys.modules["torch"] = None
from packcore.errors import MissingExtraError
try:
    import packcore_torch
except MissingExtraError as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.endswith('not installed: pip install "packcore[torch]"\n')


# --- The order -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", ORDER["cases"], ids=range(len(ORDER["cases"])))
def test_every_shard_serves_the_golden_sequence_as_int64_tensors(case, monkeypatch):
    files = [GOLDEN / name for name in ORDER["files"]][: case["n_files"]]
    for shard, expected in case["first_token_of_each_block"].items():
        rank, worker = map(int, shard.split(","))
        info = SimpleNamespace(id=worker, num_workers=case["num_workers"])
        monkeypatch.setattr("packcore_torch.reference.get_worker_info", lambda info=info: info)
        dataset = packed_dataset.PackedDataset(
            files,
            case["n_chunks"],
            case["block_size"],
            case["seed"],
            case["shuffle"],
            case["wrap"],
            case["world_size"],
            rank,
        )
        for block, first in zip(dataset, expected, strict=False):
            assert (block.dtype, block.shape) == (torch.int64, (case["block_size"],))
            assert block.tolist() == list(range(first, first + case["block_size"]))


@pytest.mark.parametrize("case", MIX, ids=range(len(MIX)))
def test_a_mix_draws_the_golden_sequence(case):
    sources = [[index] * len(case["draws"]) for index in range(case["n_datasets"])]
    mix = packed_dataset.CombinedDataset(sources, case["seed"], case["weights"])
    assert isinstance(mix, torch.utils.data.IterableDataset)
    assert [item for item, _ in zip(mix, case["draws"], strict=False)] == case["draws"]
    assert list(mix.weights) == pytest.approx(case["normalized"], rel=1e-15)


def test_tensors_are_those_of_the_numpy_classes(corpus):
    arguments = {"n_chunks": 3, "block_size": 7, "seed": 5, "shuffle": True, "wrap": False}
    paths = paths_of(corpus, "train_slim")
    expected = tokens_of(packcore.PackedDataset(paths, **arguments))
    assert tokens_of(packed_dataset.PackedDataset(paths, **arguments)) == expected
    assert tokens_of(packed_dataset.PackedDatasetIterator(paths, **arguments)) == expected


def test_floating_chunks_give_tensors_of_their_own_dtype():
    folder = GOLDEN / "chunks"
    for dtype in (torch.float32, torch.float64):
        paths = sorted((folder / str(dtype).replace("torch.", "dtype_")).iterdir())
        assert next(iter(packed_dataset.PackedDataset(paths, 1, 4))).dtype == dtype


def test_a_tensor_may_be_written_to(corpus):
    dataset = packed_dataset.PackedDataset(paths_of(corpus, "train_slim"), 1, 40, shuffle=False)
    first, second, *_ = dataset
    first.fill_(-1)
    assert second.tolist() == list(range(40, 80))
    assert next(iter(dataset)).tolist() == list(range(40))


# --- A training script ---------------------------------------------------------------------

TRAIN = (("train_slim", 0.693584), ("train_star", 0.306416))


def create_dataloader(
    data_dir, fabric, *, batch_size, block_size, n_chunks, seed, wrap=False, shuffle=True, **options
):
    """As TinyLlama's pretraining script makes its loader, `wrap` and worker options aside."""
    datasets = []
    for prefix, _ in TRAIN:
        filenames = sorted(glob.glob(str(data_dir / f"{prefix}*")))
        random.Random(seed).shuffle(filenames)
        datasets.append(
            packed_dataset.PackedDataset(
                filenames,
                n_chunks=n_chunks,
                block_size=block_size,
                shuffle=shuffle,
                seed=seed + fabric.global_rank,
                num_processes=fabric.world_size,
                process_rank=fabric.global_rank,
                wrap=wrap,
            )
        )
    weights = [weight for _, weight in TRAIN]
    weights = [weight / sum(weights) for weight in weights]
    mix = packed_dataset.CombinedDataset(datasets=datasets, seed=seed, weights=weights)
    return DataLoader(mix, batch_size=batch_size, shuffle=False, **options)


def expected_batches(data_dir, fabric, *, batch_size, block_size, n_chunks, seed, num_workers):
    """The same with the NumPy classes: batches of each worker in turn."""
    by_worker = []
    for worker in range(max(num_workers, 1)):
        datasets = []
        for prefix, _ in TRAIN:
            filenames = sorted(glob.glob(str(data_dir / f"{prefix}*")))
            random.Random(seed).shuffle(filenames)
            datasets.append(
                packcore.PackedDataset(
                    filenames,
                    n_chunks,
                    block_size,
                    seed + fabric.global_rank,
                    num_processes=fabric.world_size,
                    process_rank=fabric.global_rank,
                    num_workers=max(num_workers, 1),
                    worker_id=worker,
                )
            )
        blocks = tokens_of(packcore.CombinedDataset(datasets, seed, [w for _, w in TRAIN]))
        by_worker.append([blocks[at : at + batch_size] for at in range(0, len(blocks), batch_size)])
    turns = max(map(len, by_worker))
    return [batches[turn] for turn in range(turns) for batches in by_worker if turn < len(batches)]


RUN = {"batch_size": 4, "block_size": 9, "n_chunks": 2, "seed": 3407}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_tinyllama_like_script_gets_the_reference_stream(corpus, rank, num_workers):
    fabric = SimpleNamespace(global_rank=rank, world_size=2)
    loader = create_dataloader(corpus, fabric, num_workers=num_workers, **RUN)
    batches = list(loader)
    assert tokens_of(batches) == expected_batches(corpus, fabric, num_workers=num_workers, **RUN)
    assert len(batches) >= 6
    assert {batch.dtype for batch in batches} == {torch.int64}


@pytest.mark.parametrize(
    "method", sorted({"spawn", "forkserver"} & set(multiprocessing.get_all_start_methods()))
)
def test_workers_start_in_every_way(corpus, method):
    fabric = SimpleNamespace(global_rank=1, world_size=2)
    loader = create_dataloader(corpus, fabric, num_workers=2, multiprocessing_context=method, **RUN)
    assert tokens_of(loader) == expected_batches(corpus, fabric, num_workers=2, **RUN)


def test_a_script_that_wraps_goes_on_without_end(corpus):
    fabric = SimpleNamespace(global_rank=0, world_size=1)
    loader = create_dataloader(corpus, fabric, num_workers=0, wrap=True, **RUN)
    once = create_dataloader(corpus, fabric, num_workers=0, **RUN)
    num_batches = len(tokens_of(once))
    many = [batch for _, batch in zip(range(3 * num_batches), loader, strict=False)]
    assert len(many) == 3 * num_batches


def test_persistent_workers_serve_the_same_epoch_again(corpus):
    dataset = packed_dataset.PackedDataset(paths_of(corpus, "train_star"), 2, 20)
    loader = DataLoader(dataset, batch_size=3, num_workers=2, persistent_workers=True)
    first = tokens_of(loader)
    assert len(first) == 8
    assert tokens_of(loader) == first


class Shards(torch.utils.data.IterableDataset):
    """Which worker serves which blocks."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return ((get_worker_info().id, int(block[0])) for block in self.dataset)


def test_workers_share_the_files_and_no_block_comes_twice(corpus):
    dataset = packed_dataset.PackedDataset(paths_of(corpus, "train_star"), 3, 40)
    served = list(DataLoader(Shards(dataset), batch_size=None, num_workers=2))
    files = [((first - 30_000) // CHUNK_SIZE, worker) for worker, first in served]
    assert sorted(files) == [(index, index % 2) for index in range(12)]


# --- Reports and faults --------------------------------------------------------------------


def test_too_few_files_for_the_workers_are_named_in_the_worker(corpus):
    dataset = packed_dataset.PackedDataset(paths_of(corpus, "train_star"), 8, 10)
    message = (
        r"There must be at least num_processes x num_workers x n_chunks files: 1 x 2 x 8 = 16; got "
        r"12 \(files\) for 2 \(shards\)\. Use n_chunks of at most 6"
    )
    batches = iter(DataLoader(dataset, num_workers=2))
    with pytest.raises(ArgumentError, match=message):
        next(batches)
    batches._shutdown_workers()  # left to the garbage collector, torch waits 10 s for them
    with pytest.raises(ArgumentError, match=message):
        dataset.report(num_workers=2)


def test_too_few_files_for_the_ranks_are_named_when_the_dataset_is_made(corpus):
    paths = paths_of(corpus, "train_star")
    with pytest.raises(ArgumentError, match="2 x 1 x 8 = 16; got 12"):
        packed_dataset.PackedDataset(paths, 8, 10, num_processes=2)
    with pytest.raises(ArgumentError, match="1 x 1 x 13 = 13; got 12"):
        packed_dataset.PackedDatasetIterator(paths, 13, 10, 1, True, False)


def test_a_prefix_that_matches_nothing_is_named_when_the_dataset_is_made(corpus):
    with pytest.raises(NoDataError, match="filenames must name at least one chunk file"):
        packed_dataset.PackedDataset(sorted(glob.glob(str(corpus / "no_such*"))), 8, 10)


def test_a_numpy_dataset_in_a_torch_mix_is_refused(corpus):
    paths = paths_of(corpus, "train_star")
    datasets = [packed_dataset.PackedDataset(paths, 2, 10), packcore.PackedDataset(paths, 2, 10)]
    with pytest.raises(ArgumentTypeError, match=r"datasets\[1\] is a packcore\.PackedDataset: "):
        packed_dataset.CombinedDataset(datasets, seed=1)


def test_the_report_is_that_of_the_numpy_dataset(corpus):
    paths = paths_of(corpus, "train_star")
    expected = packcore.PackedDataset(paths, 2, 9, num_processes=2, num_workers=2).report()
    dataset = packed_dataset.PackedDataset(paths, 2, 9, num_processes=2)
    assert dataset.report(num_workers=2) == expected
    assert len(dataset.report().shards) == 2


# --- State ---------------------------------------------------------------------------------


def torch_mix(corpus, wrap=False):
    datasets = [
        packed_dataset.PackedDataset(paths_of(corpus, prefix)[:6], 2, 20, seed=1, wrap=wrap)
        for prefix, _ in TRAIN
    ]
    return packed_dataset.CombinedDataset(datasets, seed=2, weights=[0.7, 0.3])


def test_an_iterator_of_tensors_resumes_at_every_step(corpus):
    dataset = packed_dataset.PackedDataset(paths_of(corpus, "train_star"), 5, 20)
    report = check_resume(lambda: dataset, max_state_bytes=700)
    assert (report.num_steps, report.ended) == (20, True)


@pytest.mark.parametrize("wrap", [False, True])
def test_a_mix_of_tensors_resumes_at_every_step(corpus, wrap):
    mix = torch_mix(corpus, wrap)
    assert check_resume(lambda: mix, max_steps=20).ended is not wrap


def test_a_state_goes_from_numpy_to_torch_and_back(corpus):
    paths = paths_of(corpus, "train_star")
    arrays = iter(packcore.PackedDataset(paths, 2, 20))
    for _ in range(5):
        next(arrays)
    tensors = iter(packed_dataset.PackedDataset(paths, 2, 20))
    tensors.load_state_dict(arrays.state_dict())
    assert tensors.state_dict() == arrays.state_dict()
    assert next(tensors).tolist() == next(arrays).tolist()


def test_a_state_of_other_arguments_is_refused(corpus):
    paths = paths_of(corpus, "train_star")
    state = iter(packed_dataset.PackedDataset(paths, 2, 20)).state_dict()
    with pytest.raises(StateError, match="its block_size is 20, here it is 10") as caught:
        iter(packed_dataset.PackedDataset(paths, 2, 10)).load_state_dict(state)
    assert caught.value.field == "block_size"


@pytest.fixture(scope="module")
def stateful_dataloader():
    reason = "needs torchdata, whose loader saves the iterators' states"
    return pytest.importorskip("torchdata.stateful_dataloader", reason=reason).StatefulDataLoader


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["packed", "mix"])
def test_torchdata_resumes_at_every_step(corpus, stateful_dataloader, num_workers, kind):
    if kind == "packed":
        dataset = packed_dataset.PackedDataset(paths_of(corpus, "train_star")[:6], 1, 20)
    else:
        dataset = torch_mix(corpus)

    def make():
        return stateful_dataloader(dataset, batch_size=3, num_workers=num_workers)

    # A state from after the end begins the next epoch: so torchdata means it.
    report = check_resume(make, max_steps=8, max_state_bytes=20_000, restarts=True)
    assert report.ended
    assert report.num_steps >= 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdata_begins_the_next_epoch_from_a_state_after_the_end(
    corpus, stateful_dataloader, num_workers
):
    dataset = packed_dataset.PackedDataset(paths_of(corpus, "train_star"), 3, 20)
    loader = stateful_dataloader(dataset, batch_size=4, num_workers=num_workers)
    epoch = tokens_of(loader)
    other = stateful_dataloader(dataset, batch_size=4, num_workers=num_workers)
    other.load_state_dict(loader.state_dict())
    assert tokens_of(other) == tokens_of(loader) == epoch
