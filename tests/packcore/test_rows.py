import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packcore import rows as rows_module
from packcore.rows import Rows, RowTable, Span, address_of, rows_of

DTYPES = ["uint8", "uint16", "int32", "int64", "float32"]


@st.composite
def scattered(draw):
    """Returns rows in several arrays, some of them not aligned, and what is in them."""
    dtype, size = np.dtype(draw(st.sampled_from(DTYPES))), draw(st.integers(1, 9))
    owners, addresses, expected = [], [], []
    for number in range(draw(st.integers(1, 4))):
        raw = np.zeros(40 * dtype.itemsize + 3, np.uint8)
        shift = draw(st.integers(0, 3))
        tokens = raw[shift : shift + 40 * dtype.itemsize].view(dtype)
        tokens[:] = np.arange(40) + 50 * number
        owners.append(raw)
        for start in draw(st.lists(st.integers(0, 40 - size), max_size=6)):
            addresses.append(address_of(tokens) + start * dtype.itemsize)
            expected.append([50 * number + start + place for place in range(size)])
    order = draw(st.permutations(range(len(addresses))))
    found = np.array([addresses[place] for place in order], np.int64)
    return Rows(found, owners), size, dtype, [expected[place] for place in order]


@pytest.mark.parametrize("max_bytes", [0, 2**63 - 1])
@given(case=scattered(), ends=st.tuples(st.integers(0, 24), st.integers(0, 24)))
def test_rows_of_any_arrays_are_copied_in_their_order(max_bytes, case, ends):
    rows, size, dtype, expected = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "_MAX_TABLE_BYTES", max_bytes)
        table = RowTable(rows, size, dtype)
    low, high = ends
    copied = table.copy(low, high)
    assert copied.dtype == dtype
    assert copied.shape[1:] == (size,)
    assert copied.tolist() == expected[low:high]
    assert len(table) == len(expected)
    copied[:] = 0
    assert table.copy(0, len(table)).tolist() == expected


def test_there_may_be_no_row():
    table = RowTable(Rows(np.empty(0, np.int64), []), 3, np.dtype("int32"))
    assert len(table) == 0
    assert table.copy(0, 0).shape == (0, 3)


def test_a_table_keeps_its_arrays_alive():
    array = np.arange(12).reshape(4, 3)
    alive = weakref.ref(array)
    table = RowTable(rows_of(array), 3, array.dtype)
    del array
    gc.collect()
    assert alive() is not None
    assert table.copy(1, 3).tolist() == [[3, 4, 5], [6, 7, 8]]
    del table
    gc.collect()
    assert alive() is None


def test_rows_as_far_apart_as_memory_allows_are_copied():
    array = np.arange(2**16, dtype=np.uint8)
    far = Rows(np.array([address_of(array), 4096]), [array])  # the second is nobody's
    table = RowTable(far, 2**16, array.dtype)
    assert table.copy(0, 1).tolist() == [array.tolist()]


def test_a_span_is_contiguous():
    tokens = np.arange(10)
    span = Span.of(tokens)
    assert span.tokens is tokens
    assert span.address == tokens.ctypes.data
    copied = Span.of(tokens[::2])
    assert copied.tokens.tolist() == [0, 2, 4, 6, 8]
    assert copied.tokens.flags.c_contiguous
