import itertools
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packcore.errors import ArgumentError, ArgumentTypeError
from packcore.mixture import Mixture, MixtureOrder, Weights
from packcore.order import Order
from packcore.phases import MAX_PERIOD


class Source:
    """So many blocks that nobody reads."""

    dtype = np.dtype("uint16")
    fingerprint = "nothing"

    def __init__(self, num_blocks, block_size=4):
        self.num_blocks = num_blocks
        self.block_size = block_size

    def __len__(self):
        return self.num_blocks

    def gather(self, ids, out):
        raise NotImplementedError


def sources(**sizes_and_weights):
    """name=(num_blocks, weight) -> what `Mixture` takes."""
    return {name: (Source(size), weight) for name, (size, weight) in sizes_and_weights.items()}


def drawn(order, stop, start=0):
    """Returns [(source, position in it)] of positions [start, stop)."""
    found, indices = order.locate(np.arange(start, stop))
    return list(zip(found.tolist(), indices.tolist(), strict=True))


ON_EXHAUSTED = st.sampled_from(["repeat", "stop", "remove"])


@st.composite
def mixtures(draw):
    """Returns a mixture and the stages that it was made in: [(first changed position, mixture)]."""
    count = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(0, 400), min_size=count, max_size=count).filter(any))
    weight = st.sampled_from([0.0, 0.01, 0.5, 1.0, 3.0])
    weights = [draw(weight) for _ in range(count)]
    largest = sizes.index(max(sizes))
    weights[largest] = weights[largest] or 1.0
    names = [f"s{index}" for index in range(count)]
    limited = draw(st.lists(st.sampled_from(names), unique=True, max_size=count))
    limits = {name: draw(st.integers(1, 3)) for name in limited}
    mixture = Mixture(
        {
            name: (Source(size), weight)
            for name, size, weight in zip(names, sizes, weights, strict=True)
        },
        on_exhausted=draw(ON_EXHAUSTED),
        max_epochs=limits,
    )
    stages = [(0, mixture)]
    for number in range(draw(st.integers(0, 3))):
        position = mixture.weights[-1].start + draw(st.integers(0, 700))
        if draw(st.booleans()):
            name = f"new{number}"
            mixture = mixture.add(position, name, Source(draw(st.integers(1, 300))), draw(weight))
        else:
            name = draw(st.sampled_from(list(mixture.blocks)))
            changed = {**mixture.weights[-1].by_name, name: draw(weight)}
            if not any(changed[other] and mixture.limit(other) != 0 for other in changed):
                continue
            mixture = mixture.reweight(position, {name: changed[name]})
        stages.append((position, mixture))
    return mixture, stages


def end_of(order, at_most=6000):
    return at_most if order.num_positions is None else min(at_most, order.num_positions)


@given(mixture_and_stages=mixtures(), seed=st.integers(0, 2**64))
def test_nothing_is_lost_and_nothing_comes_twice_before_its_source_is_used_up(
    mixture_and_stages, seed
):
    mixture, _ = mixture_and_stages
    order = MixtureOrder(mixture, seed=seed)
    end = end_of(order)
    found, indices = order.locate(np.arange(end))
    for number, (name, blocks) in enumerate(mixture.blocks.items()):
        mine = indices[found == number]
        assert mine.tolist() == list(range(len(mine)))  # none lost, none repeated
        limit = mixture.limit(name)
        assert limit is None or len(mine) <= limit
        if len(mine) and len(blocks) > 20:  # of a tiny source there are thousands of epochs
            bounds = np.array([0, len(blocks)])
            epochs, ids = Order(name, bounds, seed=seed, shuffle="global", window=1).locate(mine)
            for epoch in range(epochs[-1]):
                assert sorted(ids[epochs == epoch].tolist()) == list(range(len(blocks)))
            assert len(set(ids[epochs == epochs[-1]].tolist())) == (epochs == epochs[-1]).sum()
    for position in np.linspace(0, end, 7).astype(int).tolist():
        expected = np.bincount(found[:position], minlength=len(mixture.blocks)).tolist()
        assert order.counts(position) == expected


@given(mixture_and_stages=mixtures(), seed=st.integers(0, 2**64))
def test_an_order_ends_where_its_sources_do(mixture_and_stages, seed):
    mixture, _ = mixture_and_stages
    order = MixtureOrder(mixture, seed=seed)
    if order.num_positions is None:
        last = mixture.weights[-1].by_name
        assert any(weight and mixture.limit(name) is None for name, weight in last.items())
        return
    counts = dict(zip(mixture.blocks, order.counts(order.num_positions), strict=True))
    assert sum(counts.values()) == order.num_positions
    if mixture.on_exhausted == "stop":
        used_up = [name for name in counts if counts[name] and counts[name] == mixture.limit(name)]
        assert len(used_up) == 1
        before = dict(zip(mixture.blocks, order.counts(order.num_positions - 1), strict=True))
        assert before[used_up[0]] == counts[used_up[0]] - 1
    else:
        for name, weight in mixture.weights[-1].by_name.items():
            assert not weight or counts[name] == mixture.limit(name)


@given(mixture_and_stages=mixtures(), seed=st.integers(0, 2**64))
def test_a_change_leaves_the_past_as_it_was(mixture_and_stages, seed):
    mixture, stages = mixture_and_stages
    whole = drawn(order := MixtureOrder(mixture, seed=seed), end_of(order))
    for (_, before), (position, _) in itertools.pairwise(stages):
        order = MixtureOrder(before, seed=seed)
        past = min(position, end_of(order))
        assert drawn(order, past) == whole[:past]


@given(
    mixture_and_stages=mixtures(),
    cuts=st.lists(st.integers(0, 3000), max_size=6),
    seed=st.integers(0, 99),
)
def test_any_split_of_positions_gives_the_same(mixture_and_stages, cuts, seed):
    mixture, _ = mixture_and_stages
    end = end_of(MixtureOrder(mixture, seed=seed), 3000)
    whole = MixtureOrder(mixture, seed=seed).locate(np.arange(end))
    again = MixtureOrder(pickle.loads(pickle.dumps(mixture)), seed=seed)
    parts = [again.locate(part) for part in np.split(np.arange(end), sorted(cuts))]
    for number in (0, 1):
        assert (np.concatenate([part[number] for part in parts]) == whole[number]).all()


@settings(max_examples=20)
@given(mixture_and_stages=mixtures(), seed=st.integers(0, 2**64))
def test_every_phase_draws_the_weights_that_hold_then(mixture_and_stages, seed):
    mixture, _ = mixture_and_stages
    order = MixtureOrder(mixture, seed=seed)
    ends = [phase.start for phase in order.phases[1:]] + [end_of(order)]
    for phase, end in zip(order.phases, ends, strict=True):
        held = [weights for weights in mixture.weights if weights.start <= phase.start]
        weights = list(held[-1].by_name.values())
        counts = order.counts(phase.start)
        limits = [mixture.limit(name) for name in mixture.blocks]
        left = [
            weight if limit is None or count < limit else 0
            for weight, limit, count in zip(weights, limits, counts, strict=True)
        ]
        if not any(left):
            continue  # a change that came too late has begun early
        for period_end in range(phase.start, end + 1, phase.period):
            exact = [
                Fraction(weight) / sum(map(Fraction, left)) * (period_end - phase.start)
                for weight in left
            ]
            got = [now - then for now, then in zip(order.counts(period_end), counts, strict=True)]
            assert all(abs(one - other) < 1 for one, other in zip(got, exact, strict=True))


# Shares


@pytest.mark.parametrize("weights", [(0.001, 0.999), (1, 1e-6), (0.3, 0.7)])
def test_shares_hold_over_a_million_draws_of_endless_sources(weights):
    mixture = Mixture(sources(a=(50, weights[0]), b=(10**9, weights[1])))
    order = MixtureOrder(mixture, seed=1)
    period = order.phases[0].period
    for position in range(0, 10**6 + 1, period):
        exact = Fraction(weights[0]) / sum(map(Fraction, weights)) * position
        assert abs(order.counts(position)[0] - exact) < 1
        assert sum(order.counts(position)) == position
    assert order.num_positions is None


def test_positions_far_out_are_found_at_once():
    order = MixtureOrder(Mixture(sources(a=(7, 1), b=(10**10, 3))), seed=1)
    found = drawn(order, 10**15 + 50, 10**15)
    counts = order.counts(10**15)
    assert counts == [10**15 // 4, 3 * 10**15 // 4]
    for source, index in found:
        assert index == counts[source]
        counts[source] += 1


def test_ranks_do_not_draw_in_lockstep():
    order = MixtureOrder(Mixture(sources(a=(10**6, 1), b=(10**6, 1))), seed=1)
    found, _ = order.locate(np.arange(8 * 4000))
    by_rank = found.reshape(4000, 8).T
    agreement = (by_rank[:, None] == by_rank[None, :]).mean(axis=2)
    assert (abs(agreement[~np.eye(8, dtype=bool)] - 0.5) < 5 * 0.5 / np.sqrt(4000)).all()


# Running out


def test_remove_serves_each_block_of_each_source_once():
    mixture = Mixture(sources(a=(10, 5), b=(900, 1), c=(0, 3), d=(40, 0)), on_exhausted="remove")
    order = MixtureOrder(mixture, seed=1)
    assert order.num_positions == 910
    found = drawn(order, 910)
    assert sorted(found) == [(0, index) for index in range(10)] + [
        (1, index) for index in range(900)
    ]


def test_remove_goes_on_with_the_others_at_their_weights():
    mixture = Mixture(sources(a=(500, 2), b=(10**6, 1), c=(10**6, 3)), on_exhausted="remove")
    order = MixtureOrder(mixture, seed=1)
    first, second = order.phases[:2]
    assert first.active == [0, 1, 2]
    assert second.active == [1, 2]
    assert order.counts(second.start)[0] == 500
    then, now = order.counts(second.start), order.counts(second.start + 1024)
    assert [late - early for late, early in zip(now, then, strict=True)] == [0, 256, 768]


def test_stop_ends_at_the_first_source_that_is_used_up():
    mixture = Mixture(sources(a=(10, 1), b=(900, 1), c=(0, 3)), on_exhausted="stop")
    order = MixtureOrder(mixture, seed=1)
    found = drawn(order, order.num_positions)
    assert found[-1] == (0, 9)
    assert sum(source == 0 for source, _ in found) == 10


def test_repeat_goes_on_for_ever():
    order = MixtureOrder(Mixture(sources(a=(3, 1), b=(5, 1))), seed=1)
    assert order.num_positions is None
    assert order.counts(1024 * 1000) == [512_000, 512_000]


def test_max_epochs_limits_a_source_and_the_others_repeat():
    mixture = Mixture(sources(a=(10, 1), b=(5, 1)), max_epochs={"a": 3})
    order = MixtureOrder(mixture, seed=1)
    assert order.num_positions is None
    assert order.counts(10**5) == [30, 10**5 - 30]
    assert mixture.max_epochs == {"a": 3, "b": None}


@pytest.mark.parametrize("on_exhausted", ["stop", "remove"])
def test_max_epochs_are_passes_over_a_source(on_exhausted):
    mixture = Mixture(
        sources(a=(10, 1), b=(500, 1)), on_exhausted=on_exhausted, max_epochs={"a": np.int64(4)}
    )
    order = MixtureOrder(mixture, seed=1)
    counts = order.counts(order.num_positions)
    assert counts[0] == 40
    assert counts[1] == 500 if on_exhausted == "remove" else counts[1] < 500
    assert type(order.num_positions) is int
    assert mixture.max_epochs == {"a": 4, "b": 1}
    assert type(mixture.max_epochs["a"]) is int


def test_a_source_of_no_epochs_is_never_drawn():
    mixture = Mixture(sources(a=(10, 1), b=(5, 1)), max_epochs={"a": 0})
    assert MixtureOrder(mixture, seed=1).counts(1000) == [0, 1000]


def test_empty_sources_and_weights_of_zero_are_never_drawn():
    mixture = Mixture(sources(a=(0, 5), b=(5, 1), c=(5, 0), d=(0, 0)))
    assert MixtureOrder(mixture, seed=1).counts(1000) == [0, 1000, 0, 0]
    assert repr(mixture) == (
        "Mixture(a: 0 blocks, weight 5.0, b: 5 blocks, weight 1.0, c: 5 blocks, weight 0.0, "
        "d: 0 blocks, weight 0.0)"
    )


# Changes


def test_a_mixture_does_not_change_in_place():
    mixture = Mixture(sources(a=(10, 1), b=(5, 1)))
    mixture.reweight(3, {"a": 2})
    mixture.add(3, "c", Source(4), 1)
    assert mixture.weights == (Weights(0, {"a": 1.0, "b": 1.0}),)
    assert list(mixture.blocks) == ["a", "b"]


def test_a_schedule_is_a_row_of_reweights():
    by_schedule = Mixture(
        sources(a=(10, 1), b=(5, 1)), schedule=[(100, {"a": 2}), (np.int64(300), {"b": 0})]
    )
    by_hand = Mixture(sources(a=(10, 1), b=(5, 1))).reweight(100, {"a": 2}).reweight(300, {"b": 0})
    assert (
        by_schedule.weights
        == by_hand.weights
        == (
            Weights(0, {"a": 1.0, "b": 1.0}),
            Weights(100, {"a": 2.0, "b": 1.0}),
            Weights(300, {"a": 2.0, "b": 0.0}),
        )
    )
    assert drawn(MixtureOrder(by_schedule, seed=1), 2000) == drawn(
        MixtureOrder(by_hand, seed=1), 2000
    )


def test_a_change_at_the_same_position_takes_the_earlier_ones_place():
    mixture = Mixture(sources(a=(10, 1), b=(5, 1)), schedule=[(0, {"a": 2}), (0, {"a": 3})])
    assert mixture.weights == (Weights(0, {"a": 3.0, "b": 1.0}),)


def test_a_change_that_has_begun_early_is_not_replaced_by_one_at_its_position():
    mixture = Mixture(sources(a=(2, 1), b=(1, 0)), on_exhausted="remove")
    mixture = mixture.reweight(3, {"b": 1})  # a runs out at 2: b is drawn there
    assert drawn(MixtureOrder(mixture, seed=1), 3) == [(0, 0), (0, 1), (1, 0)]
    order = MixtureOrder(mixture.add(3, "c", Source(2), 1), seed=1)
    assert drawn(order, 5) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]


def test_a_source_with_weight_zero_can_be_taken_in_later():
    mixture = Mixture(sources(a=(1000, 1), b=(500, 0)), schedule=[(100, {"a": 0, "b": 1})])
    order = MixtureOrder(mixture, seed=1)
    assert drawn(order, 200) == [(0, index) for index in range(100)] + [
        (1, index) for index in range(100)
    ]


def test_a_source_that_is_added_is_drawn_from_there_on():
    mixture = Mixture(sources(a=(1000, 1))).add(50, "b", Source(30), 3)
    order = MixtureOrder(mixture, seed=1)
    assert order.counts(50) == [50, 0]
    assert order.counts(50 + 1024) == [50 + 256, 768]


def test_a_change_after_everything_is_used_up_begins_at_the_end():
    mixture = Mixture(sources(a=(10, 1)), on_exhausted="remove").add(500, "b", Source(30), 1)
    order = MixtureOrder(mixture, seed=1)
    assert order.num_positions == 40
    assert drawn(order, 40) == [(0, index) for index in range(10)] + [
        (1, index) for index in range(30)
    ]


def test_what_was_used_up_is_not_drawn_again_after_a_change():
    mixture = Mixture(sources(a=(10, 1), b=(10**5, 1)), on_exhausted="remove")
    order = MixtureOrder(mixture.reweight(5000, {"a": 100}), seed=1)
    assert order.counts(10**4)[0] == 10


# What is refused


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ((0, 0), ArgumentError, r"At least one source with blocks must have a weight above 0; got"),
        ((-1, 2), ArgumentError, r"The weight of 'a' must be finite and at least 0; got -1\.0\."),
        ((1, float("nan")), ArgumentError, r"The weight of 'b' must be finite .* got nan\."),
        ((1, float("inf")), ArgumentError, r"The weight of 'b' must be finite .* got inf\."),
        ((1, np.float32("nan")), ArgumentError, r"The weight of 'b' must be finite .* got nan\."),
        ((10**400, 1), ArgumentError, r"The weight of 'a' must be finite and at least 0; got inf"),
        (("1", 1), ArgumentTypeError, r"The weight of 'a' must be a number; got '1'\."),
        ((True, 1), ArgumentTypeError, r"The weight of 'a' must be a number; got True\."),
        ((None, 1), ArgumentTypeError, r"The weight of 'a' must be a number; got None\."),
        (([1], 1), ArgumentTypeError, r"The weight of 'a' must be a number; got \[1\]\."),
        ((1j, 1), ArgumentTypeError, r"The weight of 'a' must be a number; got 1j\."),
        (
            (1, 1e-8),
            ArgumentError,
            r"A weight must be 0 or at least 1/16777216 of their sum; got 1e-08",
        ),
    ],
)
def test_weights_against_the_rules_are_refused_everywhere(weights, error, message):
    first, second = weights
    good = Mixture(sources(a=(5, 1), b=(5, 1)))
    makers = [
        lambda: Mixture(sources(a=(5, first), b=(5, second))),
        lambda: Mixture(sources(a=(5, 1), b=(5, 1)), schedule=[(7, {"a": first, "b": second})]),
        lambda: good.reweight(3, {"a": first, "b": second}),
        lambda: Mixture(sources(a=(5, 1))).reweight(0, {"a": first}).add(1, "b", Source(5), second),
    ]
    for make in makers[: 3 if weights == (0, 0) else 4]:
        with pytest.raises(error, match=message) as info:
            make()
        assert info.value.name == "weights"


def test_huge_and_tiny_weights_are_legal_if_their_ratio_is():
    for scale in (1e308, 5e-324 * 2**20):
        mixture = Mixture(sources(a=(5, scale), b=(5, scale), c=(5, scale / 2)))
        assert MixtureOrder(mixture, seed=1).counts(1024 * 5) == [2048, 2048, 1024]
    assert Mixture(sources(a=(5, 1), b=(5, 1e-6))).weights[0].by_name["b"] == 1e-6
    Mixture(sources(a=(5, MAX_PERIOD - 1), b=(5, 1)))
    with pytest.raises(ArgumentError, match="at least 1/16777216 of their sum"):
        Mixture(sources(a=(5, MAX_PERIOD), b=(5, 1)))


def test_any_real_number_is_a_weight():
    numbers = {"a": 2, "b": np.float32(0.5), "c": Fraction(1, 4), "d": np.int8(3)}
    mixture = Mixture({name: (Source(5), number) for name, number in numbers.items()})
    assert mixture.weights[0].by_name == {"a": 2.0, "b": 0.5, "c": 0.25, "d": 3.0}


def test_sources_that_are_all_empty_are_refused():
    for make in (
        lambda: Mixture(sources(a=(0, 1), b=(0, 1))),
        lambda: Mixture(sources(a=(0, 1), b=(5, 0))),
        lambda: Mixture(sources(a=(5, 1)), max_epochs={"a": 0}),
    ):
        with pytest.raises(
            ArgumentError, match="At least one source with blocks must have"
        ) as info:
            make()
        assert info.value.name == "weights"


@pytest.mark.parametrize("given", [{}, [], None, [("a", 1)], Source(3), "a"])
def test_no_sources_are_refused(given):
    with pytest.raises(
        ArgumentError, match=r"sources must be a dict of name -> \(blocks, weight\)"
    ) as info:
        Mixture(given)
    assert info.value.name == "sources"
    assert info.value.value is given


@pytest.mark.parametrize(
    ("name", "pair", "message"),
    [
        (1, (Source(3), 1), "A source's name must be a string; got 1"),
        ("a", Source(3), r"sources\['a'\] must be \(blocks, weight\); got"),
        ("a", (Source(3),), r"sources\['a'\] must be \(blocks, weight\); got"),
        ("a", (Source(3), 1, 2), r"sources\['a'\] must be \(blocks, weight\); got"),
        ("a", (1, Source(3)), r"sources\['a'\] must hold blocks, from packcore\.open"),
        ("a", ("corpus/web", 1), r"sources\['a'\] must hold blocks, from packcore\.open"),
    ],
)
def test_a_source_of_another_form_is_refused(name, pair, message):
    with pytest.raises(ArgumentTypeError, match=message) as info:
        Mixture({name: pair})
    assert info.value.name == "sources"


def test_sources_of_different_block_sizes_are_refused():
    good = Mixture(sources(a=(5, 1)))
    for make in (
        lambda: Mixture({"a": (Source(5, 4), 1), "b": (Source(5, 8), 1)}),
        lambda: good.add(0, "b", Source(5, 8), 1),
    ):
        with pytest.raises(
            ArgumentError, match=r"the same block_size; got \{'a': 4, 'b': 8\}"
        ) as info:
            make()
        assert (info.value.name, info.value.value) == ("sources", {"a": 4, "b": 8})


def test_names_that_are_not_there_are_refused():
    good = Mixture(sources(a=(5, 1), b=(5, 1)))
    for make in (
        lambda: good.reweight(3, {"c": 1}),
        lambda: Mixture(sources(a=(5, 1), b=(5, 1)), schedule=[(3, {"c": 1})]),
        lambda: Mixture(sources(a=(5, 1), b=(5, 1)), max_epochs={"c": 1}),
    ):
        with pytest.raises(
            ArgumentError, match="A source must be one of 'a', 'b'; got 'c'"
        ) as info:
            make()
        assert (info.value.name, info.value.value) == ("name", "c")


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(ArgumentError, match=r"must be a new one; got 'a'.* Use reweight") as info:
        Mixture(sources(a=(5, 1))).add(3, "a", Source(3), 1)
    assert (info.value.name, info.value.value) == ("name", "a")


def test_changes_may_not_come_before_the_last_one():
    mixture = Mixture(sources(a=(5, 1), b=(5, 1)), schedule=[(100, {"a": 2})])
    for make in (
        lambda: mixture.reweight(99, {"a": 1}),
        lambda: mixture.add(99, "c", Source(3), 1),
        lambda: Mixture(sources(a=(5, 1)), schedule=[(100, {"a": 2}), (99, {"a": 2})]),
    ):
        with pytest.raises(
            ArgumentError, match=r"position must be at least 100; got 99 \(blocks\)"
        ) as info:
            make()
        assert (info.value.name, info.value.value) == ("position", 99)


@pytest.mark.parametrize("position", [-1, 1.5, "3", None, True])
def test_a_position_that_is_none_is_refused(position):
    mixture = Mixture(sources(a=(5, 1)))
    for change in (
        lambda: mixture.reweight(position, {"a": 1}),
        lambda: mixture.add(position, "c", Source(3), 1),
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError), match="position must be") as info:
            change()
        assert info.value.name == "position"


@pytest.mark.parametrize("weights", [None, 1, [1, 2], ["a"], "a", {"a"}])
def test_weights_that_are_no_dict_are_refused(weights):
    with pytest.raises(ArgumentTypeError, match="weights must be a dict of name -> weight") as info:
        Mixture(sources(a=(5, 1))).reweight(3, weights)
    assert (info.value.name, info.value.value) == ("weights", weights)


@pytest.mark.parametrize(
    "schedule", [7, [7], {5: {"a": 1}}, [(5, {"a": 1}, 3)], [(5,)], "ab", [None], [{"a": 1}]]
)
def test_a_schedule_of_another_form_is_refused(schedule):
    with pytest.raises(
        ArgumentTypeError, match=r"schedule must be a list of \(position, \{name"
    ) as info:
        Mixture(sources(a=(5, 1)), schedule=schedule)
    assert (info.value.name, info.value.value) == ("schedule", schedule)


@pytest.mark.parametrize("max_epochs", [3, ["a"], "a", [("a", 1)]])
def test_max_epochs_that_are_no_dict_are_refused(max_epochs):
    with pytest.raises(
        ArgumentTypeError, match="max_epochs must be a dict of name -> epochs"
    ) as info:
        Mixture(sources(a=(5, 1)), max_epochs=max_epochs)
    assert (info.value.name, info.value.value) == ("max_epochs", max_epochs)


@pytest.mark.parametrize(
    ("epochs", "error"),
    [
        (-1, ArgumentError),
        (1.5, ArgumentTypeError),
        ("1", ArgumentTypeError),
        (None, ArgumentTypeError),
    ],
)
def test_epochs_against_the_rules_are_refused(epochs, error):
    with pytest.raises(error, match=r"max_epochs\['a'\] must be") as info:
        Mixture(sources(a=(5, 1), b=(5, 1)), max_epochs={"a": epochs})
    assert (info.value.name, info.value.value) == ("max_epochs['a']", epochs)


@pytest.mark.parametrize("on_exhausted", ["loop", None, True, ["stop"]])
def test_another_way_to_run_out_is_refused(on_exhausted):
    message = "on_exhausted must be one of 'repeat', 'stop', 'remove'; got"
    with pytest.raises(ArgumentError, match=message) as info:
        Mixture(sources(a=(5, 1)), on_exhausted=on_exhausted)
    assert (info.value.name, info.value.value) == ("on_exhausted", on_exhausted)


def test_draws_never_change():
    # A saved run goes on in a later release only if these stay.
    mixture = Mixture(
        sources(a=(3, 1), b=(4, 1), c=(50, 2)), on_exhausted="remove", schedule=[(6, {"c": 0.5})]
    )
    assert drawn(MixtureOrder(mixture, seed=1), 16) == [
        (1, 0),
        (2, 0),
        (1, 1),
        (2, 1),
        (2, 2),
        (1, 2),
        (2, 3),
        (1, 3),
        (0, 0),
        (0, 1),
        (0, 2),
        (2, 4),
        (2, 5),
        (2, 6),
        (2, 7),
        (2, 8),
    ]
