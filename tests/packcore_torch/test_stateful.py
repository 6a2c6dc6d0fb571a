"""A loader's batches under torchdata's StatefulDataLoader, and from there to any topology."""

import copy
import json

import pytest

torch = pytest.importorskip("torch", reason="packcore_torch needs PyTorch")
pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata's loader")

from torch_runs import (  # noqa: E402  # after the skip
    IGNORED,
    as_lists,
    expected,
    global_batches,
    make_loader,
    write_corpus,
)
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

from packcore.errors import StateError  # noqa: E402
from packcore.testing import check_resume  # noqa: E402
from packcore_torch import BatchDataset, BatchLoader, resume  # noqa: E402

pytestmark = IGNORED

WORKERS = [0, 1, 2, 4]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def stateful(loader, **options):
    return StatefulDataLoader(BatchDataset(loader), batch_size=None, **options)


def test_an_iterator_resumes_at_every_step(corpus):
    dataset = BatchDataset(make_loader(corpus, skip=[(2, 4)]))
    report = check_resume(lambda: dataset, max_state_bytes=400)
    assert (report.num_steps, report.ended) == (9, True)


def test_a_used_iterator_goes_back_to_a_state(corpus):
    batches = iter(BatchDataset(make_loader(corpus)))
    state = batches.state_dict()
    assert len([next(batches) for _ in range(3)]) == 3
    batches.load_state_dict(state)
    assert as_lists(batches) == expected(corpus)


def test_a_state_shares_nothing_with_the_iterator_or_the_next_state(corpus):
    batches = iter(BatchDataset(make_loader(corpus)))
    state = batches.state_dict()
    untouched = copy.deepcopy(state)
    state["packcore_run"]["weights"][0][1]["data"] = 7.0
    state["packcore_run"]["fingerprint"].clear()
    assert batches.state_dict() == untouched


@pytest.mark.parametrize("num_workers", WORKERS)
def test_torchdata_serves_the_same_and_resumes_at_every_step(corpus, num_workers):
    def make():
        loader = make_loader(corpus, global_batch_size=29)
        return stateful(loader, num_workers=num_workers)

    assert as_lists(make()) == expected(corpus, global_batch_size=29)
    # A state from after the end begins the next epoch: so torchdata means it.
    report = check_resume(make, num_chained=2, max_state_bytes=3000, restarts=True)
    assert (report.num_steps, report.ended) == (3, True)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_from_the_last_batch_has_no_more_and_one_from_the_end_begins_anew(
    corpus, num_workers
):
    batches = stateful(make_loader(corpus), num_workers=num_workers)
    for _ in batches:
        last = copy.deepcopy(batches.state_dict())
    end = batches.state_dict()
    for state, rest in ((last, []), (end, expected(corpus))):
        batches = stateful(make_loader(corpus), num_workers=num_workers)
        batches.load_state_dict(state)
        assert as_lists(batches) == rest
        assert as_lists(batches) == expected(corpus)


@pytest.mark.parametrize("interval", [1, 4])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_its_state_at_every_step_moves_a_loader_there(corpus, num_workers, interval):
    options = {"skip": [(1, 3), (8, 9)]}
    batches = stateful(
        make_loader(corpus, **options), num_workers=num_workers, snapshot_every_n_steps=interval
    )
    states = [copy.deepcopy(batches.state_dict())]
    states.extend(copy.deepcopy(batches.state_dict()) for _ in batches)
    assert len(states) == 9
    for count, state in enumerate(states):
        loader = make_loader(corpus, **options)
        resume(loader, json.loads(json.dumps(state)))
        assert loader.state_dict() == loader.state_at(count)
        assert len(list(loader)) == 8 - count
    resume(loader, batches.state_dict())
    assert loader.num_served == 0  # the pass has ended: the next one begins


def test_a_resumed_run_is_saved_and_resumed_at_yet_another_topology(corpus):
    def take(batches, num_steps):
        return [batch for _, batch in zip(range(num_steps), batches, strict=False)]

    batches = stateful(make_loader(corpus), num_workers=4)
    got, place = take(batches, 3), batches.state_dict()
    for num_workers, num_steps in ((1, 2), (2, 3), (0, 1)):
        loader = make_loader(corpus)
        resume(loader, place)
        batches = stateful(loader, num_workers=num_workers)
        got += take(batches, num_steps)
        place = batches.state_dict()
    loader = make_loader(corpus)
    resume(loader, place)
    got += BatchLoader(loader, num_workers=2)
    assert as_lists(got) == expected(corpus)


def test_the_state_of_one_rank_resumes_every_rank(corpus):
    saved = stateful(make_loader(corpus, rank=1, world_size=2), num_workers=2)
    running = iter(saved)
    for _ in range(5):
        next(running)
    ranks = []
    for rank in range(4):
        loader = make_loader(corpus, rank=rank, world_size=4)
        resume(loader, saved.state_dict())
        ranks.append(as_lists(stateful(loader)))
    assert global_batches(ranks) == expected(corpus)[5:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_persistent_workers_serve_pass_after_pass(corpus, num_workers):
    batches = stateful(
        make_loader(corpus), num_workers=num_workers, persistent_workers=bool(num_workers)
    )
    assert as_lists(batches) == as_lists(batches) == expected(corpus)


@pytest.mark.parametrize("state", [{}, {"position": 3}, None, make_loader])
def test_a_state_of_something_else_is_refused(corpus, state):
    with pytest.raises(StateError, match="The state must be of a BatchDataset") as caught:
        resume(make_loader(corpus), state)
    assert caught.value.field == "packcore_run"


def test_a_state_of_another_seed_is_refused_by_the_field(corpus):
    state = stateful(make_loader(corpus)).state_dict()
    with pytest.raises(StateError, match="its seed is 3, here it is 4") as caught:
        resume(make_loader(corpus, seed=4), state)
    assert caught.value.field == "seed"
    batches = stateful(make_loader(corpus, seed=4))
    batches.load_state_dict(state)
    with pytest.raises(StateError, match="its seed is 3, here it is 4"):
        iter(batches)
