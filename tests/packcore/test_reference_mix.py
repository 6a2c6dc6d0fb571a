"""lit-gpt's weighted mix, and its state."""

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_chunks import take, write_chunks

from packcore.errors import StateError
from packcore.reference import (
    CombinedDataset,
    CombinedDatasetIterator,
    PackedDataset,
)
from packcore.testing import check_resume

GOLDEN = Path(__file__).parents[1] / "golden"
MIX = json.loads((GOLDEN / "mix.json").read_text())


@pytest.mark.parametrize("case", MIX, ids=range(len(MIX)))
def test_a_mix_draws_the_golden_sequence(case):
    sources = [itertools.repeat(index) for index in range(case["n_datasets"])]
    mix = CombinedDataset(sources, case["seed"], case["weights"])
    assert list(mix.weights) == pytest.approx(case["normalized"], rel=1e-15)
    assert list(itertools.islice(mix, len(case["draws"]))) == case["draws"]
    direct = CombinedDatasetIterator(sources, case["seed"], case["normalized"])
    assert list(itertools.islice(direct, len(case["draws"]))) == case["draws"]


@given(
    weights=st.lists(st.floats(0, 1e6) | st.integers(0, 9), min_size=1, max_size=6).filter(any),
    seed=st.integers(-(2**40), 2**40),
)
def test_a_mix_draws_with_random_choices(weights, seed):
    generator = random.Random(seed)
    share = [weight / sum(weights) for weight in weights]
    expected = [generator.choices(range(len(weights)), share, k=1)[0] for _ in range(50)]
    mix = CombinedDataset([itertools.repeat(index) for index in range(len(weights))], seed, weights)
    assert list(itertools.islice(mix, 50)) == expected


def test_a_mix_can_be_looped_over_again_and_again():
    mix = CombinedDataset(["abc", "xyz"], seed=1)
    items = []
    for item in mix:
        items.append(item)  # noqa: PERF402  # a for loop is the point
    assert items == list(mix) == list(iter(mix))


def test_weights_may_be_anything_that_holds_numbers():
    expected = list(CombinedDataset(["abcde", "xyz"], 1, [3, 1]))
    for weights in (
        (3, 1),
        np.array([3, 1]),
        np.array([0.75, 0.25], np.float32),
        iter([0.75, 0.25]),
    ):
        assert list(CombinedDataset(["abcde", "xyz"], np.int64(1), weights)) == expected


def test_a_dataset_of_weight_zero_is_never_drawn():
    assert list(CombinedDataset([[], "abc", []], seed=1, weights=[0, 1, 0])) == ["a", "b", "c"]


def test_a_mix_ends_when_the_dataset_drawn_has_ended():
    draws = CombinedDataset([itertools.repeat(0), itertools.repeat(1)], seed=7)
    second_one = [i for i, source in enumerate(itertools.islice(draws, 50)) if source == 1][1]
    mix = iter(CombinedDataset([itertools.repeat(0), [1]], seed=7))
    assert len(list(mix)) == second_one
    for _ in range(50):
        with pytest.raises(StopIteration):
            next(mix)


class Flaky:
    """Counts; its third read fails once."""

    def __init__(self):
        self.count = 0
        self.failed = False

    def __iter__(self):
        return self

    def __next__(self):
        if self.count == 3 and not self.failed:
            self.failed = True
            raise OSError("a read that failed")
        self.count += 1
        return self.count

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_after_a_read_that_failed_the_same_dataset_is_asked_again():
    steady = [itertools.count(1), itertools.count(1)]
    expected = list(itertools.islice(CombinedDataset(steady, seed=1), 20))
    mix = iter(CombinedDataset([Flaky(), Flaky()], seed=1))
    got = []
    while len(got) < 20:
        try:
            got.append(next(mix))
        except OSError:
            state = json.loads(json.dumps(mix.state_dict()))
            mix = iter(CombinedDataset([Flaky(), Flaky()], seed=1))
            mix.load_state_dict(state)
            for flaky in mix._iterators:
                flaky.failed = True
    assert got == expected


def mix_of(tmp_path, wrap, seed=3):
    web = PackedDataset(write_chunks(tmp_path, 4, prefix="web"), 2, 5, seed=1, wrap=wrap)
    code = PackedDataset(write_chunks(tmp_path, 3, prefix="code"), 1, 5, seed=2, wrap=wrap)
    return CombinedDataset([web, code], seed=seed, weights=[0.7, 0.3])


@pytest.mark.parametrize("wrap", [False, True])
def test_a_mix_resumes_at_every_step_at_its_end_and_after_it(tmp_path, wrap):
    mix = mix_of(tmp_path, wrap)
    report = check_resume(lambda: mix, max_steps=20)
    assert report.ended is not wrap
    assert report.num_steps > 5
    assert 5_000 < report.state_bytes < 7_000


def test_a_mix_of_mixes_resumes(tmp_path):
    inner = mix_of(tmp_path, wrap=True)
    check_resume(
        lambda: iter(CombinedDataset([inner, inner], seed=9)), max_steps=12, max_state_bytes=20_000
    )


def test_the_size_of_a_mix_state_does_not_grow(tmp_path):
    mix = iter(mix_of(tmp_path, wrap=True))
    before = len(json.dumps(mix.state_dict()))
    take(mix, 1_000)
    assert abs(len(json.dumps(mix.state_dict())) - before) < 10


def test_a_state_of_another_mix_is_refused_by_name(tmp_path):
    mix = iter(mix_of(tmp_path, wrap=True))
    take(mix, 5)
    state = mix.state_dict()
    datasets = mix_of(tmp_path, wrap=True)._datasets
    others = [
        ("seed", CombinedDataset(datasets, seed=4, weights=[0.7, 0.3])),
        ("weights", CombinedDataset(datasets, seed=3)),
        ("num_datasets", CombinedDataset([*datasets, datasets[0]], seed=3)),
        ("datasets[0].wrap", mix_of(tmp_path, wrap=False)),
        ("datasets[0].num_files", CombinedDataset(datasets[::-1], seed=3, weights=[0.7, 0.3])),
    ]
    for field, other in others:
        with pytest.raises(StateError) as caught:
            iter(other).load_state_dict(state)
        assert caught.value.field == field


def test_a_refused_state_leaves_all_datasets_where_they_were(tmp_path):
    mix = iter(mix_of(tmp_path, wrap=True))
    take(mix, 5)
    state = mix.state_dict()
    take(mix, 5)
    before = mix.state_dict()
    state["datasets"][1]["block_index"] = -1
    with pytest.raises(StateError, match=r"datasets\[1\]: The state is damaged") as caught:
        mix.load_state_dict(state)
    assert caught.value.field == "datasets[1].block_index"
    assert mix.state_dict() == before


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        ({"drawn": 2}, "drawn"),
        ({"drawn": True}, "drawn"),
        ({"ended": 1}, "ended"),
        ({"datasets": []}, "datasets"),
        ({"datasets": None}, "datasets"),
        ({"generator": "00"}, "generator"),
        ({"version": 0}, "version"),
    ],
)
def test_a_damaged_mix_state_is_refused_and_changes_nothing(tmp_path, damage, field):
    mix = iter(mix_of(tmp_path, wrap=True))
    take(mix, 5)
    before = mix.state_dict()
    with pytest.raises(StateError) as caught:
        mix.load_state_dict(before | damage)
    assert caught.value.field == field
    assert mix.state_dict() == before


def test_a_mix_of_what_has_no_state_has_none():
    mix = iter(CombinedDataset(["abc", "xyz"], seed=1))
    with pytest.raises(StateError, match=r"that of datasets\[0\] is a str_"):
        mix.state_dict()
