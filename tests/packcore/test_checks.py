import numpy as np
import pytest

from packcore.checks import check_choice, check_int
from packcore.errors import ArgumentError, ArgumentTypeError


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3)])
def test_anything_that_is_an_integer_comes_back_as_an_int(value):
    assert check_int("block_size", value, low=1) == 3
    assert type(check_int("block_size", value, low=1)) is int


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "True (bool)"),
        (np.True_, "(bool"),
        (3.0, "3.0 (float)"),
        (np.float64(3), "(float64)"),
        ("3", "'3' (str)"),
        (None, "None (NoneType)"),
        (np.array([1, 2]), "array([1, 2]) (ndarray)"),
    ],
)
def test_what_is_no_integer_is_refused_by_its_type(value, shown):
    with pytest.raises(ArgumentTypeError) as caught:
        check_int("block_size", value, low=1)
    assert str(caught.value).startswith("block_size must be an integer; got ")
    assert shown in str(caught.value)
    assert caught.value.name == "block_size"
    assert caught.value.value is value


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (0, {"low": 1}, "n must be at least 1; got 0."),
        (-5, {"low": 0, "unit": "tokens"}, "n must be at least 0; got -5 (tokens)."),
        (9, {"low": 1, "high": 8}, "n must be in [1, 8]; got 9."),
        (0, {"low": 1, "high": 8, "unit": "rows"}, "n must be in [1, 8]; got 0 (rows)."),
        (2**63, {"low": 0}, f"n must be in [0, {2**63 - 1}]; got {2**63}."),
    ],
)
def test_a_value_outside_the_limits_is_refused_with_its_unit(value, limits, message):
    with pytest.raises(ArgumentError) as caught:
        check_int("n", value, **limits)
    assert str(caught.value) == message
    assert (caught.value.name, caught.value.value) == ("n", value)


def test_both_limits_are_legal_values():
    assert [check_int("n", value, low=1, high=8) for value in (1, 8)] == [1, 8]


@pytest.mark.parametrize("value", ["keep", "", None, 1, ["drop"]])
def test_a_choice_that_is_not_one_is_refused_with_the_choices(value):
    with pytest.raises(ArgumentError) as caught:
        check_choice("remainder", value, ("drop", "pad"))
    assert str(caught.value) == f"remainder must be one of 'drop', 'pad'; got {value!r}."
    assert (caught.value.name, caught.value.value) == ("remainder", value)


def test_a_choice_comes_back():
    assert check_choice("remainder", "pad", ("drop", "pad")) == "pad"
