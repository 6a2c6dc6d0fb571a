"""Fast code beside a slow oracle that walks through documents one by one."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packcore import documents
from packcore.errors import ArgumentError, ArgumentTypeError

# Documents of [6], [2, 3, 1], none (fill) and [1, 5] tokens, in rows of block_size 6.
FLAT = np.array([0, 0, 2, 5, 0, 1], np.int32)
OFFSETS = np.array([0, 1, 4, 4, 6])
PADDED = np.array([[0, 6, 6], [0, 2, 5], [6, 6, 6], [0, 1, 6]], np.int32)
DERIVED = ["segment_ids", "positions", "loss_mask", "cu_seqlens"]


@st.composite
def batches(draw):
    """(block_size, rows of documents' lengths); rows may be fill, and there may be none."""
    block_size = draw(st.integers(1, 12))
    cuts = st.sets(st.integers(1, block_size - 1)) if block_size > 1 else st.just(set())
    drawn = draw(st.lists(st.none() | cuts, max_size=6))
    edges = [None if row is None else [0, *sorted(row), block_size] for row in drawn]
    rows = [[] if row is None else [b - a for a, b in pairwise(row)] for row in edges]
    return block_size, rows


def ragged(rows):
    flat, offsets = [], [0]
    for row in rows:
        start = 0
        for length in row:
            flat.append(start)
            start += length
        offsets.append(len(flat))
    return np.array(flat, np.int32), np.array(offsets, np.int64)


def oracle(rows, block_size, value):
    """value(document_index, position, is_first_of_row) for every token, 0 for fill."""
    out = []
    for row in rows:
        tokens = [
            value(index, position, (index, position) == (0, 0))
            for index, length in enumerate(row)
            for position in range(length)
        ]
        out.append(tokens or [0] * block_size)
    return np.array(out).reshape(len(rows), block_size)


@given(batches())
def test_each_token_has_the_number_of_its_document(batch):
    block_size, rows = batch
    found = documents.segment_ids(*ragged(rows), block_size)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, oracle(rows, block_size, lambda index, *_: index + 1))


@given(batches())
def test_positions_restart_at_each_document(batch):
    block_size, rows = batch
    found = documents.positions(*ragged(rows), block_size)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, oracle(rows, block_size, lambda _, position, __: position))


@given(batches())
def test_a_documents_first_token_is_no_target(batch):
    block_size, rows = batch
    found = documents.loss_mask(*ragged(rows), block_size)
    assert found.dtype == np.bool_
    wanted = oracle(rows, block_size, lambda _, position, __: position > 0)
    np.testing.assert_array_equal(found, wanted)


@given(batches())
def test_across_documents_only_a_rows_first_token_is_no_target(batch):
    block_size, rows = batch
    found = documents.loss_mask(*ragged(rows), block_size, cross_documents=True)
    wanted = oracle(rows, block_size, lambda _, __, is_first_of_row: not is_first_of_row)
    np.testing.assert_array_equal(found, wanted)


@given(batches())
def test_cumulative_lengths_cover_every_token_once_with_fill_as_documents(batch):
    block_size, rows = batch
    found, longest = documents.cu_seqlens(*ragged(rows), block_size)
    wanted = [0]
    for row in rows:
        for length in row or [block_size]:
            wanted.append(wanted[-1] + length)
    assert found.dtype == np.int32
    assert found.tolist() == wanted
    assert found[-1] == len(rows) * block_size
    assert longest == max(np.diff(wanted), default=0)
    assert type(longest) is int


@given(batches())
def test_padding_and_unpadding_gives_the_same_starts(batch):
    block_size, rows = batch
    flat, offsets = ragged(rows)
    padded = documents.pad_starts(flat, offsets, block_size)
    assert padded.dtype == np.int32
    lengths = np.diff(padded, axis=1, append=block_size)
    assert [[n for n in row if n] for row in lengths.tolist()] == rows
    again, bounds = documents.unpad_starts(padded, block_size)
    assert (again.dtype, bounds.dtype) == (np.int32, np.int64)
    np.testing.assert_array_equal(again, flat)
    np.testing.assert_array_equal(bounds, offsets)


@pytest.mark.parametrize("name", DERIVED)
@given(batches())
def test_padded_starts_give_what_ragged_ones_give(name, batch):
    block_size, rows = batch
    flat, offsets = ragged(rows)
    padded = documents.pad_starts(flat, offsets, block_size)
    derive = getattr(documents, name)
    np.testing.assert_equal(derive(padded, None, block_size), derive(flat, offsets, block_size))


def test_the_example_by_hand():
    assert documents.segment_ids(FLAT, OFFSETS, 6).tolist() == [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 2, 2, 2, 3],
        [0, 0, 0, 0, 0, 0],
        [1, 2, 2, 2, 2, 2],
    ]
    assert documents.positions(FLAT, OFFSETS, 6).tolist() == [
        [0, 1, 2, 3, 4, 5],
        [0, 1, 0, 1, 2, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 1, 2, 3, 4],
    ]
    assert documents.loss_mask(FLAT, OFFSETS, 6).astype(int).tolist() == [
        [0, 1, 1, 1, 1, 1],
        [0, 1, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1],
    ]
    cumulative, longest = documents.cu_seqlens(FLAT, OFFSETS, 6)
    assert (cumulative.tolist(), longest) == ([0, 6, 8, 11, 12, 18, 19, 24], 6)
    np.testing.assert_array_equal(documents.pad_starts(FLAT, OFFSETS, 6), PADDED)


def test_the_mask_is_cut_as_the_tokens_are():
    # Blocks of L + 1 tokens: a weight for each of L targets, none for documents' first tokens.
    tokens = np.array([[10, 11, 20, 21, 22, 30]])
    weights = documents.loss_mask(PADDED[1:2], None, 6)[:, 1:]
    assert tokens[:, 1:][weights].tolist() == [11, 21, 22]


def test_a_batch_without_rows_has_no_tokens():
    flat, offsets = np.zeros(0, np.int32), np.zeros(1, np.int64)
    for name in ("segment_ids", "positions", "loss_mask"):
        assert getattr(documents, name)(flat, offsets, 6).shape == (0, 6)
    cumulative, longest = documents.cu_seqlens(flat, offsets, 6)
    assert (cumulative.tolist(), longest) == ([0], 0)
    assert documents.pad_starts(flat, offsets, 6).shape == (0, 1)


def test_fill_may_be_the_longest_document():
    assert documents.cu_seqlens(np.array([[0, 2], [4, 4]]), None, 4)[1] == 4


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.int64, np.uint64])
def test_starts_of_any_integer_dtype_are_taken(dtype):
    wanted = documents.segment_ids(FLAT, OFFSETS, 6)
    found = documents.segment_ids(FLAT.astype(dtype), OFFSETS.astype(dtype), np.int32(6))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, wanted)


def test_starts_are_not_written_to():
    flat, offsets, padded = FLAT.copy(), OFFSETS.copy(), PADDED.copy()
    for array in (flat, offsets, padded):
        array.flags.writeable = False
    for name in DERIVED:
        getattr(documents, name)(flat, offsets, 6)
        getattr(documents, name)(padded, None, 6)


def test_two_results_share_no_memory():
    first, second = (documents.positions(FLAT, OFFSETS, 6) for _ in range(2))
    assert not np.shares_memory(first, second)


def test_a_fixed_width_is_kept():
    padded = documents.pad_starts(FLAT, OFFSETS, 6, max_documents=5)
    assert padded.shape == (4, 5)
    np.testing.assert_array_equal(padded[:, :3], PADDED)
    assert (padded[:, 3:] == 6).all()


def test_a_width_too_small_for_a_row_is_refused():
    with pytest.raises(
        ArgumentError, match=r"max_documents must be at least .* row, 3; got 2"
    ) as caught:
        documents.pad_starts(FLAT, OFFSETS, 6, max_documents=2)
    assert (caught.value.name, caught.value.value) == ("max_documents", 2)


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ([1, 3], r"\[1, 3\]"),
        ([0, 3, 3], r"\[0, 3, 3\]"),
        ([0, 4, 2], r"\[0, 4, 2\]"),
        ([0, -2, 3], r"\[0, -2, 3\]"),
        ([0, 6], r"\[0, 6\]"),
        ([0, 2**31 - 1], r"\[0, 2147483647\]"),
        (list(range(7)), r"\[0, 1, 2, 3, 4, 5, 6\]"),
        ([0] * 9, r"\[0, 0, 0, 0, 0, 0, 0, 0, \.\.\.\]"),
    ],
)
@pytest.mark.parametrize("name", [*DERIVED, "pad_starts"])
def test_starts_that_break_a_rule_are_refused_by_row(name, row, shown):
    starts = np.array([0, 3, *row, 0], np.int32)
    offsets = np.array([0, 2, 2, 2 + len(row), 3 + len(row)])
    message = f"row 2 has {shown} with block_size 6 .tokens.. Leave out empty documents"
    with pytest.raises(ArgumentError, match=message) as caught:
        getattr(documents, name)(starts, offsets, 6)
    assert (caught.value.name, caught.value.value) == ("starts", row)


@pytest.mark.parametrize(
    "offsets", [[], [1, 4], [0, 3], [0, 5], [0, 3, 2, 4], [0, 5, 4], [0, -1, 4]]
)
def test_offsets_that_do_not_divide_the_starts_are_refused(offsets):
    with pytest.raises(ArgumentError, match="go from 0 to the number of starts, 4; got") as caught:
        documents.positions(np.array([0, 1, 2, 3]), np.array(offsets, np.int64), 6)
    assert caught.value.name == "offsets"


@pytest.mark.parametrize("row", [[0, 7, 6], [0, 6, 3], [6, 0, 6], [0, 3, 8]])
def test_padding_that_is_no_padding_is_refused_by_row(row):
    with pytest.raises(ArgumentError, match=r"row 1 has .* with block_size 6") as caught:
        documents.positions(np.array([[0, 6, 6], row]), None, 6)
    assert caught.value.name == "document_starts"
    assert caught.value.value.tolist() == row


def test_padded_starts_keep_the_rules_of_ragged_ones():
    with pytest.raises(ArgumentError, match=r"row 1 has \[0, 4, 2\]"):
        documents.segment_ids(np.array([[0, 6, 6, 6], [0, 4, 2, 6]]), None, 6)
    with pytest.raises(ArgumentError, match=r"row 0 has \[-1, 2\]"):
        documents.unpad_starts(np.array([[-1, 2]]), 6)


@pytest.mark.parametrize(
    ("starts", "offsets", "name"),
    [
        (FLAT.astype(np.float32), OFFSETS, "starts"),
        (PADDED, OFFSETS, "starts"),
        (FLAT > 0, OFFSETS, "starts"),
        (FLAT, OFFSETS.astype(float), "offsets"),
        (FLAT, OFFSETS[:, None], "offsets"),
        (FLAT, None, "document_starts"),
        (PADDED.astype(float), None, "document_starts"),
    ],
)
def test_arrays_of_another_shape_or_dtype_are_refused_by_name(starts, offsets, name):
    with pytest.raises(ArgumentError, match=f"^{name} must be .-dimensional") as caught:
        documents.segment_ids(starts, offsets, 6)
    assert caught.value.name == name


def test_a_block_size_that_is_none_is_refused():
    with pytest.raises(ArgumentError, match="block_size must be in") as caught:
        documents.segment_ids(FLAT, OFFSETS, 0)
    assert caught.value.name == "block_size"
    with pytest.raises(ArgumentTypeError, match="block_size must be an integer"):
        documents.segment_ids(FLAT, OFFSETS, 6.0)


def test_more_tokens_than_int32_counts_are_refused():
    starts, offsets = np.zeros(2, np.int32), np.arange(3)
    assert documents.cu_seqlens(starts[:1], offsets[:2], 2**30)[0].tolist() == [0, 2**30]
    with pytest.raises(ArgumentError, match="at most 2147483647 tokens; got 2 rows") as caught:
        documents.cu_seqlens(starts, offsets, 2**30)
    assert caught.value.value == 2**31
