import hashlib
import itertools
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packcore import order as order_module
from packcore import phases as phases_module
from packcore.order import Order
from packcore.permutation import derive_key
from packcore.phases import MAX_PERIOD, Phase

NUM_DRAWS = 10**6

WEIGHTS = st.lists(
    st.just(0.0) | st.floats(0.01, 10) | st.integers(1, 9).map(float), min_size=1, max_size=6
).filter(any)

RANDOM_WEIGHTS = np.random.default_rng(0).random((4, 7)).tolist()


def exact_shares(weights, num_draws):
    parts = [Fraction(weight) for weight in weights]
    return [part / sum(parts) * num_draws for part in parts]


@pytest.mark.parametrize(
    "weights",
    [
        [0.001, 0.999],
        [0.999, 0.001],
        [1, 1e-6],
        [0.7, 0, 0.2, 0.1],
        [1, 1, 1],
        [1e-3, 1e-4, 1e-5, 1],
        [5e-324, 5e-324],
        [1e308, 1e308, 1e306],
        *RANDOM_WEIGHTS,
    ],
    ids=lambda weights: "-".join(f"{weight:.2g}" for weight in weights),
)
def test_shares_are_within_one_sample_of_exact_at_every_periods_end(weights):
    start = 12345
    base = list(range(len(weights)))
    phase = Phase(start, base, weights, seed=3)
    num_periods = max(1, NUM_DRAWS // phase.period)
    positions = start + np.arange(num_periods * phase.period)
    parts = np.array_split(positions, 1 + num_periods // 16)
    sources = np.concatenate([phase.locate(part)[0] for part in parts])
    one_hot = sources[:, None] == np.arange(len(weights))
    inside = one_hot.reshape(num_periods, phase.period, -1).sum(axis=1)
    for number, counts in enumerate(np.cumsum(inside, axis=0).tolist(), start=1):
        end = number * phase.period
        exact = exact_shares(weights, end)
        assert all(abs(got - share) < 1 for got, share in zip(counts, exact, strict=True))
        if number % 100 == 1:
            expected = [first + count for first, count in zip(base, counts, strict=True)]
            assert phase.counts(start + end) == expected


@given(weights=WEIGHTS, seed=st.integers(0, 2**64), start=st.integers(0, 10**15))
def test_each_sources_samples_follow_one_another(weights, seed, start):
    base = [10 * index for index in range(len(weights))]
    phase = Phase(start, base, weights, seed=seed)
    num_draws = 2 * phase.period + 100
    sources, indices = phase.locate(start + np.arange(num_draws))
    assert (sources.dtype, indices.dtype) == (np.int64, np.int64)
    for source, weight in enumerate(weights):
        mine = indices[sources == source]
        assert mine.tolist() == list(range(base[source], base[source] + len(mine)))
        assert bool(len(mine)) == bool(weight)
        for draws in (0, 1, 99, phase.period, num_draws):
            before = base[source] + int((sources[:draws] == source).sum())
            assert phase.counts(start + draws)[source] == before


@given(
    weights=WEIGHTS, cuts=st.lists(st.integers(0, 3000), max_size=8), shift=st.integers(0, 10**15)
)
def test_any_split_of_positions_gives_the_same(weights, cuts, shift):
    positions = shift + np.arange(3000)
    whole = Phase(0, [0] * len(weights), weights, seed=1).locate(positions)
    phase = Phase(0, [0] * len(weights), weights, seed=1)
    parts = [phase.locate(part) for part in np.split(positions, sorted(cuts))]
    for number in (0, 1):
        assert (np.concatenate([part[number] for part in parts]) == whole[number]).all()


@settings(max_examples=40)
@given(weights=WEIGHTS, position=st.integers(0, 2**62 - 5000) | st.integers(10**15, 10**15 + 5000))
def test_huge_positions_are_found_at_once_and_exactly(weights, position):
    phase = Phase(0, [0] * len(weights), weights, seed=1)
    sources, indices = phase.locate(position + np.arange(50))
    counts = phase.counts(position)
    assert sum(counts) == position
    for source, index in zip(sources.tolist(), indices.tolist(), strict=True):
        assert index == counts[source]
        counts[source] += 1
    assert counts == phase.counts(position + 50)
    end = position // phase.period * phase.period
    for got, share in zip(phase.counts(end), exact_shares(weights, end), strict=True):
        assert abs(got - share) < 1


@given(weights=WEIGHTS, counts=st.lists(st.integers(0, 20_000), min_size=1, max_size=5))
def test_the_position_of_a_count_is_where_the_count_is_reached(weights, counts):
    base = [7 * index for index in range(len(weights))]
    phase = Phase(1000, base, weights, seed=2)
    for source, count in itertools.product(phase.active, counts):
        wanted = base[source] + count
        position = phase.position_of(source, wanted)
        assert phase.counts(position)[source] == wanted
        if count:
            assert phase.counts(position - 1)[source] == wanted - 1
        else:
            assert position == 1000


def test_the_position_of_a_huge_count_is_found_at_once():
    phase = Phase(0, [0, 0], [0.001, 0.999], seed=2)
    position = phase.position_of(0, 10**15)
    assert phase.counts(position)[0] == 10**15
    assert phase.counts(position - 1)[0] == 10**15 - 1
    assert abs(position - 10**18) < 3000


def test_a_single_source_needs_no_period():
    phase = Phase(5, [3, 8, 1], [0, 2.5, 0], seed=1)
    sources, indices = phase.locate(np.array([5, 6, 10**15]))
    assert sources.tolist() == [1, 1, 1]
    assert indices.tolist() == [8, 9, 10**15 + 3]
    assert phase.counts(10) == [3, 13, 1]
    assert phase.active == [1]
    assert len(phase._periods) == 0


def test_only_the_ratios_of_weights_count():
    positions = np.arange(5000)
    expected, _ = Phase(0, [0, 0], [3, 1], seed=1).locate(positions)
    for weights in ([0.75, 0.25], [3e300, 1e300], [3 * 2**-1000, 2**-1000]):
        assert (Phase(0, [0, 0], weights, seed=1).locate(positions)[0] == expected).all()


@pytest.mark.parametrize(
    ("weights", "period"),
    [
        ([1], 1024),
        ([1, 0], 1024),
        ([0.001, 0.999], 1024),
        ([1, 1023], 1024),
        ([1, 1024], 2048),
        ([1, 1e-6], 2**20),
        ([1, MAX_PERIOD - 1], MAX_PERIOD),
    ],
)
def test_a_period_holds_a_sample_of_the_smallest_source(weights, period):
    assert Phase(0, [0] * len(weights), weights, seed=0).period == period


def test_the_draws_of_a_period_are_well_mixed():
    phase = Phase(0, [0, 0], [1, 1], seed=0)
    sources, _ = phase.locate(np.arange(64 * 1024))
    for num_ranks in (
        2,
        3,
        4,
        8,
    ):  # whoever takes every so many-th position sees both, half and half
        for rank in range(num_ranks):
            mine = sources[rank::num_ranks]
            assert abs(mine.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(mine))
    together = sources[0::2] == sources[1::2]
    assert abs(together.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(together))


def test_every_period_seed_and_start_is_another_order():
    drawn = [
        tuple(
            Phase(start, [0, 0], [1, 1], seed=seed)
            .locate(start + np.arange(2048))[0][part]
            .tolist()
        )
        for seed in (0, 1)
        for start in (0, 1)
        for part in (slice(1024), slice(1024, 2048))
    ]
    assert len(set(drawn)) == len(drawn)


def test_mixing_shares_no_key_with_a_source_of_any_name(monkeypatch):
    asked = []
    for module in (phases_module, order_module):
        monkeypatch.setattr(
            module, "derive_key", lambda *parts: asked.append(parts) or derive_key(*parts)
        )
    Phase(0, [0, 0], [1, 1], seed=5).locate(np.arange(5000))
    in_mixing = set(asked)
    asked.clear()
    for shuffle in ("global", "window"):
        bounds = np.arange(0, 5000, 100)
        Order("mixture", bounds, seed=5, shuffle=shuffle, window=2).locate(np.arange(10_000))
    assert in_mixing
    assert asked
    assert not in_mixing & set(asked)


def test_a_period_of_a_million_takes_little_memory():
    phase = Phase(0, [0, 0], [1, 1e-6], seed=1)
    tracemalloc.start()
    phase.locate(np.arange(3))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 6 * phase.period
    assert peak < 30 * phase.period


def test_draws_never_change():
    # A saved run goes on in a later release only if these stay.
    phase = Phase(0, [0, 0, 0], [0.5, 0.3, 0.2], seed=1)
    sources, indices = phase.locate(np.arange(16))
    assert sources.tolist() == [0, 1, 0, 1, 2, 0, 1, 1, 1, 0, 2, 2, 1, 0, 0, 0]
    assert indices.tolist() == [0, 0, 1, 1, 0, 2, 2, 3, 4, 3, 1, 2, 5, 4, 5, 6]
    digest = hashlib.sha256()
    for array in phase.locate(10**15 + np.arange(10_000)):
        digest.update(array.astype("<i8").tobytes())
    assert digest.hexdigest() == (
        "716da31537760feba8b97f420b97838965a1125441aa5fcdfe66d387eccdb2e6"
    )
