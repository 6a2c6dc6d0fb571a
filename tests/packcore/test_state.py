import json
import random

import numpy as np
import pytest

from packcore.errors import ArgumentTypeError, StateError
from packcore.state import (
    check_identity,
    check_position,
    pack_pcg64,
    pack_random,
    unpack_pcg64,
    unpack_random,
)


def test_a_state_with_the_same_identity_passes():
    state = {"seed": 1, "weights": [0.5, 0.5], "step": 3}
    assert check_identity(state, {"seed": 1, "weights": [0.5, 0.5]}) is state


def test_the_first_field_that_differs_is_named():
    with pytest.raises(StateError, match="its shuffle is True, here it is False") as caught:
        check_identity({"seed": 1, "shuffle": True, "wrap": 1}, {"shuffle": False, "wrap": 2})
    assert (caught.value.field, caught.value.expected, caught.value.got) == ("shuffle", False, True)


def test_a_field_that_is_missing_is_named():
    with pytest.raises(StateError, match="seed must be there") as caught:
        check_identity({"step": 1}, {"seed": 1})
    assert caught.value.field == "seed"


@pytest.mark.parametrize("state", [None, "{}", [("seed", 1)], 3])
def test_a_state_must_be_a_dict(state):
    with pytest.raises(ArgumentTypeError, match="A state must be a dict") as caught:
        check_identity(state, {"seed": 1})
    assert caught.value.name == "state"


@pytest.mark.parametrize("state", [{"step": 9}, {"step": -1}, {"step": "3"}, {"step": None}, {}])
def test_a_position_that_cannot_be_is_damage(state):
    with pytest.raises(StateError, match=r"damaged: step must be in \[0, 8\]") as caught:
        check_position(state, "step", lambda step: 0 <= step < 9, "in [0, 8]")
    assert caught.value.field == "step"


def test_a_missing_position_is_damage_even_where_none_would_pass():
    assert check_position({"drawn": None}, "drawn", lambda drawn: drawn is None, "null") is None
    with pytest.raises(StateError, match="drawn must be null"):
        check_position({}, "drawn", lambda drawn: drawn is None, "null")


@pytest.mark.parametrize("draws", [0, 1, 1000])
def test_a_pcg64_goes_on_where_it_was_packed(draws):
    generator = np.random.default_rng(5)
    generator.integers(0, 9, draws, dtype=np.uint16)  # leaves half a word in the generator
    state = json.loads(json.dumps({"g": pack_pcg64(generator)}))
    restored = unpack_pcg64(state, "g")
    assert restored.permutation(50).tolist() == generator.permutation(50).tolist()


def test_a_packed_pcg64_has_the_same_size_whatever_its_numbers():
    generators = [np.random.default_rng(seed) for seed in range(50)]
    for generator in generators:
        generator.integers(0, 9, 1, dtype=np.uint16)
    assert len({len(json.dumps(pack_pcg64(generator))) for generator in generators}) == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"bit_generator": "MT19937"},
        {"state": "no number"},
        {"inc": None},
        {"inc": "f" * 33},
        {"has_uint32": "x"},
        {"uinteger": "-1"},
        {"uinteger": 1},
    ],
)
def test_a_damaged_pcg64_is_refused(damage):
    packed = pack_pcg64(np.random.default_rng(1)) | damage
    with pytest.raises(StateError, match="g must be the state of a PCG64 generator") as caught:
        unpack_pcg64({"g": packed}, "g")
    assert caught.value.field == "g"


@pytest.mark.parametrize("packed", [None, "", 3, [], {}, {"state": "0"}])
def test_what_is_no_pcg64_is_refused(packed):
    with pytest.raises(StateError, match="PCG64"):
        unpack_pcg64({"g": packed}, "g")


@pytest.mark.parametrize("draws", [0, 1, 1000])
def test_a_random_goes_on_where_it_was_packed(draws):
    generator = random.Random(5)
    for _ in range(draws):
        generator.random()
    state = json.loads(json.dumps({"g": pack_random(generator)}))
    restored = unpack_random(state, "g")
    assert [restored.random() for _ in range(700)] == [generator.random() for _ in range(700)]


@pytest.mark.parametrize("packed", [None, "", "00" * 2499, "zz" * 2500, "ff" * 2500, 7, [1]])
def test_what_is_no_random_is_refused(packed):
    with pytest.raises(StateError, match=r"g must be the state of a random\.Random") as caught:
        unpack_random({"g": packed}, "g")
    assert caught.value.field == "g"


def test_a_long_damaged_value_does_not_flood_the_message():
    with pytest.raises(StateError) as caught:
        unpack_random({"g": "0" * 9_000}, "g")
    assert len(str(caught.value)) < 400
