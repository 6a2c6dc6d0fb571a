"""Real runs of several processes: torchrun, gloo, DistributedDataParallel, and SIGKILL."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="packcore_torch needs PyTorch")

from torch_runs import IGNORED, as_lists, expected, make_loader, write_corpus  # noqa: E402
from train_ddp import NUM_STEPS, STEPS_PER_CHECKPOINT, loss_of, make_model  # noqa: E402

import packcore_torch.ranks  # noqa: E402
from packcore.errors import ArgumentError  # noqa: E402
from packcore_torch import BatchDataset, BatchLoader  # noqa: E402

pytestmark = [
    *IGNORED,
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo"),
]

SCRIPT = Path(__file__).with_name("train_ddp.py")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def curve(corpus):
    """The loss of every step in one process, without BatchLoader or ranks."""
    model, optimizer = make_model()
    loader, losses = make_loader(corpus, epochs=None), {}
    for step in range(NUM_STEPS):
        loss = loss_of(model, torch.from_numpy(loader.batch_at(step).astype("int64")))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = pytest.approx(loss.item(), rel=1e-12)
    return losses


def torchrun(num_ranks, *arguments):
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [sys.executable, *launch, SCRIPT, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def losses_in(folder):
    lines = (folder / "losses.jsonl").read_text().splitlines()
    return [tuple(json.loads(line)) for line in lines]


def test_the_losses_of_two_ranks_with_two_workers_are_those_of_one_process(corpus, curve, tmp_path):
    run = torchrun(2, corpus, tmp_path, 2)
    assert run.returncode == 0, run.stderr
    assert losses_in(tmp_path) == list(curve.items())


def test_four_ranks_are_killed_and_one_with_four_workers_goes_on_exactly(corpus, curve, tmp_path):
    killed_at = random.randrange(2 * STEPS_PER_CHECKPOINT, NUM_STEPS)
    run = torchrun(4, corpus, tmp_path, 1, killed_at)
    assert run.returncode != 0
    assert "SIGKILL" in run.stderr, run.stderr
    first = losses_in(tmp_path)
    assert first == list(curve.items())[:killed_at]
    run = torchrun(1, corpus, tmp_path, 4)
    assert run.returncode == 0, run.stderr
    resumed_at = killed_at // STEPS_PER_CHECKPOINT * STEPS_PER_CHECKPOINT
    assert losses_in(tmp_path) == first + list(curve.items())[resumed_at:]


# --- Ranks ---------------------------------------------------------------------------------


def processes(monkeypatch, rank, world_size, *, initialized=True, torchrun=False):
    """torch.distributed as this process would see it. A group is (rank, world_size)."""
    fake = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: initialized,
        is_torchelastic_launched=lambda: torchrun,
        get_rank=lambda group: (group or (rank, world_size))[0],
        get_world_size=lambda group: (group or (rank, world_size))[1],
    )
    monkeypatch.setattr(packcore_torch.ranks, "dist", fake)
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_rank_is_that_of_torch_distributed_where_it_is_not_given(
    corpus, monkeypatch, num_workers
):
    processes(monkeypatch, 2, 4)
    loader = make_loader(corpus)
    batches = BatchLoader(loader, num_workers=num_workers)
    want = [batch[4:6] for batch in expected(corpus)]
    assert as_lists(batches) == want
    assert as_lists(BatchLoader(make_loader(corpus, rank=2, world_size=4))) == want
    assert (loader.rank, loader.world_size) == (0, 1)


@pytest.mark.parametrize("given", [(1, 4), (0, 2), (2, 8)])
def test_a_rank_that_contradicts_torch_distributed_is_refused(corpus, monkeypatch, given):
    processes(monkeypatch, 2, 4)
    rank, world_size = given
    message = f"got {rank} of {world_size}, torch.distributed says 2 of 4. Where only some"
    with pytest.raises(ArgumentError, match=message) as caught:
        BatchDataset(make_loader(corpus, rank=rank, world_size=world_size))
    assert (caught.value.name, caught.value.value) == ("rank", given)


def test_a_group_says_which_processes_read_different_rows(corpus, monkeypatch):
    processes(monkeypatch, 5, 8)
    want = [batch[4:] for batch in expected(corpus)]
    assert as_lists(BatchLoader(make_loader(corpus), group=(1, 2))) == want
    loader = make_loader(corpus, rank=1, world_size=2)
    assert as_lists(BatchLoader(loader, group=(1, 2))) == want
    assert as_lists(BatchLoader(make_loader(corpus), group=(0, 1))) == expected(corpus)
    with pytest.raises(ArgumentError, match="This process must be in group"):
        BatchLoader(loader, group=(-1, 4))


def test_processes_that_would_all_read_the_same_are_told_so(corpus, monkeypatch):
    processes(monkeypatch, 0, 4, initialized=False, torchrun=True)
    with pytest.raises(ArgumentError, match="torchrun began 4 processes, which would all read"):
        BatchLoader(make_loader(corpus))
    assert BatchDataset(make_loader(corpus, rank=3, world_size=4)).rank == 3
    processes(monkeypatch, 0, 1, initialized=False, torchrun=True)
    assert as_lists(BatchLoader(make_loader(corpus))) == expected(corpus)
