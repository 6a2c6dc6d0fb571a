import array
import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packcore.errors import ArgumentError, ArgumentTypeError, TokenError
from packcore.ids import IdRule

INTEGERS = ["u1", "i1", "u2", "i2", "i4", "u4", "i8", "u8", ">i4", ">u8"]
STORED = ["uint8", "int8", "int16", "int32", "int64", "uint16"]


class Tensor:
    """What tensors of other libraries look like to NumPy."""

    def __array__(self, dtype=None, copy=None):
        return np.array([1, 2, 3])


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        iter([1, 2, 3]),
        (i for i in (1, 2, 3)),
        collections.deque([1, 2, 3]),
        array.array("H", [1, 2, 3]),
        b"\1\2\3",
        bytearray(b"\1\2\3"),
        memoryview(b"\1\2\3"),
        [np.uint16(1), 2, np.int64(3)],
        Tensor(),
        np.array([1, 9, 2, 9, 3])[::2],
        np.array([3, 2, 1])[::-1],
        *(np.array([1, 2, 3], dtype) for dtype in INTEGERS),
    ],
)
@pytest.mark.parametrize("vocab_size", [None, 4])
def test_whatever_holds_integers_is_admitted(ids, vocab_size):
    if vocab_size is None or not hasattr(ids, "__next__"):  # an iterator is used up once
        checked = IdRule(np.dtype("uint16"), vocab_size).check("ids", ids)
        assert checked.tolist() == [1, 2, 3]


@pytest.mark.parametrize("empty", [[], (), b"", iter(()), np.array([]), np.array([], np.int8)])
def test_no_ids_are_admitted_in_any_guise(empty):
    assert len(IdRule(np.dtype("uint16"), 4).check("ids", empty)) == 0


def test_an_array_comes_back_as_it_is():
    ids = np.array([1, 2, 3], np.int64)
    assert IdRule(np.dtype("uint16"), 4).check("ids", ids) is ids


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ("text", ArgumentTypeError, "ids must be token ids; got text. Tokenize it first."),
        (None, ArgumentTypeError, "ids must be an array, a list or an iterable of integers; got N"),
        (5, ArgumentTypeError, "ids must be an array, a list or an iterable of integers; got int."),
        ([[1], [2, 3]], ArgumentTypeError, "ids must be a flat row of integers: "),
        ([[1], [2]], ArgumentError, "ids must be 1-D; got shape (2, 1). Use reshape(-1)"),
        (np.array(5), ArgumentError, "ids must be 1-D; got shape ()."),
        (np.zeros((0, 4), int), ArgumentError, "ids must be 1-D; got shape (0, 4)."),
        ([True, False], ArgumentTypeError, "ids must be integers for a builder of uint16; got bo"),
        ([1.0, 2.0], ArgumentTypeError, "ids must be integers for a builder of uint16; got float"),
        ([1, 2.5], ArgumentTypeError, "ids must be integers for a builder of uint16; got float"),
        (["1"], ArgumentTypeError, "ids must be integers for a builder of uint16; got str"),
        ([1, None], ArgumentTypeError, "ids must be integers for a builder of uint16; got object"),
        (np.array([1], object), ArgumentTypeError, "ids must be integers for a builder of uint16"),
        (np.array([1 + 0j]), ArgumentTypeError, "ids must be integers for a builder of uint16"),
        (np.array([], bool), ArgumentTypeError, "ids must be integers for a builder of uint16"),
        ({"a": 1}, ArgumentTypeError, "ids must be integers for a builder of uint16; got str"),
    ],
)
def test_what_is_no_row_of_integers_is_refused(ids, error, message):
    with pytest.raises(error) as caught:
        IdRule(np.dtype("uint16"), 100).check("ids", ids)
    assert str(caught.value).startswith(message)
    assert caught.value.name == "ids"


@pytest.mark.parametrize(
    ("dtype", "vocab_size", "ids", "index", "value", "low", "high"),
    [
        ("uint16", None, [0, 65535, 65536], 2, 65536, 0, 65535),
        ("uint16", None, [0, -1], 1, -1, 0, 65535),
        ("uint16", None, np.array([5, -1], np.int8), 1, -1, 0, 65535),
        ("uint16", 32000, [31999, 32000, 40000], 1, 32000, 0, 31999),
        ("uint16", 32000, np.array([31999, 32000], ">u2"), 1, 32000, 0, 31999),
        ("uint16", 100_000, [65535, 65536], 1, 65536, 0, 65535),
        ("uint8", None, np.array([255, 256], np.uint16), 1, 256, 0, 255),
        ("int8", None, [-128, 127, -129, 200], 2, -129, -128, 127),
        ("int8", None, np.array([128], np.uint64), 0, 128, -128, 127),
        ("int32", None, [2**31 - 1, 2**31], 1, 2**31, -(2**31), 2**31 - 1),
        ("int32", 2**40, [-1], 0, -1, 0, 2**31 - 1),
        ("int64", None, [0, 2**63], 1, 2**63, -(2**63), 2**63 - 1),
        ("int64", None, [0, 2**64], 1, 2**64, -(2**63), 2**63 - 1),
        ("int64", None, [-1, 2**63], 1, 2**63, -(2**63), 2**63 - 1),
        ("int64", None, np.array([2**64 - 1], np.uint64), 0, 2**64 - 1, -(2**63), 2**63 - 1),
        ("int64", 10, (3, 2**70), 1, 2**70, 0, 9),
        ("float32", 10, [9.0, 9.5], 1, 9.5, 0, 9),
        ("float32", 10, [3, 10], 1, 10, 0, 9),
    ],
)
def test_the_first_id_that_does_not_fit_is_named(dtype, vocab_size, ids, index, value, low, high):
    with pytest.raises(TokenError) as caught:
        IdRule(np.dtype(dtype), vocab_size).check("ids", ids)
    error = caught.value
    assert (error.index, error.value, error.low, error.high) == (index, value, low, high)
    assert f"ids[{index}] is {value}, which does not fit: ids must be in [{low}, {high}] (" in str(
        error
    )
    assert "Nothing of this call was written." in str(error)


def test_a_float_that_is_no_number_does_not_fit_a_vocabulary():
    with pytest.raises(TokenError, match=r"ids\[1\] is nan, which does not fit"):
        IdRule(np.dtype("float32"), 10).check("ids", [1.0, float("nan")])


def test_a_float_that_would_become_infinite_does_not_fit():
    with pytest.raises(TokenError, match=r"ids\[1\] is 1e\+39, which does not fit") as caught:
        IdRule(np.dtype("float32")).check("ids", [float("inf"), 1e39, float("nan")])
    assert caught.value.index == 1


@pytest.mark.parametrize("ids", [[0.5, float("inf"), float("nan")], [1, 2], np.float32([1.5])])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_and_integers_fit_a_builder_of_floats(dtype, ids):
    assert len(IdRule(np.dtype(dtype)).check("ids", ids)) == len(ids)


@given(
    st.sampled_from(STORED),
    st.none() | st.integers(1, 300) | st.integers(1, 2**40),
    st.sampled_from(INTEGERS),
    st.data(),
)
def test_every_integer_is_judged_as_python_would(dtype, vocab_size, given_dtype, data):
    info, low, high = np.iinfo(given_dtype), np.iinfo(dtype).min, np.iinfo(dtype).max
    if vocab_size is not None:
        low, high = 0, min(int(high), vocab_size - 1)
    edges = [edge + i for edge in (0, int(low), int(high)) for i in (-1, 0, 1)]
    edges = [edge for edge in edges if info.min <= edge <= info.max]
    numbers = st.integers(int(info.min), int(info.max))
    ids = data.draw(st.lists((st.sampled_from(edges) if edges else numbers) | numbers, max_size=9))
    bad = [index for index, value in enumerate(ids) if not low <= value <= high]
    rule = IdRule(np.dtype(dtype), vocab_size)
    if bad:
        with pytest.raises(TokenError) as caught:
            rule.check("ids", np.array(ids, given_dtype))
        assert (caught.value.index, caught.value.value) == (bad[0], ids[bad[0]])
    else:
        assert rule.check("ids", np.array(ids, given_dtype)).tolist() == ids


@pytest.mark.parametrize(
    ("dtype", "vocab_size", "value", "message"),
    [
        ("uint16", None, -1, "sep_token must be in [0, 65535]; got -1."),
        ("uint16", 100, 100, "sep_token must be in [0, 99]; got 100."),
        ("uint16", None, 1.0, "sep_token must be an integer; got 1.0 (float)."),
        ("float32", None, 0.5, "sep_token must be an integer; got 0.5 (float)."),
        ("float32", None, float("nan"), "sep_token must be an integer; got nan (float)."),
    ],
)
def test_a_single_id_that_does_not_fit_is_refused(dtype, vocab_size, value, message):
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        IdRule(np.dtype(dtype), vocab_size).check_one("sep_token", value)
    assert str(caught.value) == message


def test_a_whole_float_is_an_id_where_tokens_are_floats():
    assert IdRule(np.dtype("float32")).check_one("sep_token", -3.0) == -3
