import hashlib
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packcore.order import SHUFFLES, Order

CHUNK_SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)
"""Blocks that begin in each chunk; with a large block_size there are chunks without one."""


def make(sizes, *, name="web", seed=1, shuffle="global", window=3):
    bounds = np.concatenate(([0], np.cumsum(sizes)))
    return Order(name, bounds, seed=seed, shuffle=shuffle, window=window)


def epochs_of(order, first, count):
    """Returns `(count, num_blocks)`: the blocks of epochs first, first + 1, ..."""
    size = order.num_blocks
    epochs, ids = order.locate(np.arange(first * size, (first + count) * size))
    assert epochs.tolist() == np.repeat(np.arange(first, first + count), size).tolist()
    return ids.reshape(count, size)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@given(
    sizes=CHUNK_SIZES,
    seed=st.integers(0, 2**70),
    window=st.integers(1, 20),
    first=st.integers(0, 99),
)
def test_every_block_comes_exactly_once_an_epoch(shuffle, sizes, seed, window, first):
    order = make(sizes, seed=seed, shuffle=shuffle, window=window)
    epochs = epochs_of(order, first, 3)
    assert (np.sort(epochs, axis=1) == np.arange(sum(sizes))).all()


@settings(max_examples=25)
@pytest.mark.parametrize("shuffle", SHUFFLES)
@given(sizes=CHUNK_SIZES, window=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_position_means_the_same_in_any_company(shuffle, sizes, window, seed):
    order = make(sizes, shuffle=shuffle, window=window)
    rng = np.random.default_rng(seed)
    positions = rng.integers(0, 4 * order.num_blocks, 20)
    together = order.locate(positions)
    fresh = make(sizes, shuffle=shuffle, window=window)
    one_by_one = [fresh.locate(positions[at : at + 1]) for at in range(len(positions))]
    for number in (0, 1):
        assert together[number].tolist() == [int(found[number][0]) for found in one_by_one]


@given(sizes=CHUNK_SIZES, window=st.integers(1, 20), seed=st.integers(0, 2**64))
def test_a_windows_blocks_come_from_its_chunks_only(sizes, window, seed):
    order = make(sizes, seed=seed, shuffle="window", window=window)
    chunk_of = np.repeat(np.arange(len(sizes)), sizes)
    for epoch, blocks in enumerate(epochs_of(order, 0, 3)):
        at, seen = 0, []
        for number in range(-(-len(sizes) // window)):
            chunks = order.window_chunks(epoch, number)
            assert len(chunks) == min(window, len(sizes) - number * window)
            count = sum(sizes[chunk] for chunk in chunks)
            inside = blocks[at : at + count]
            assert sorted(inside) == sorted(np.flatnonzero(np.isin(chunk_of, chunks)))
            assert all(order.window_of(epoch, block) == number for block in inside.tolist())
            at += count
            seen += chunks
        assert sorted(seen) == list(range(len(sizes)))
        following = [order.next_window(epoch, number) for number in range(-(-len(sizes) // window))]
        assert following[:-1] == [(epoch, number + 1) for number in range(len(following) - 1)]
        assert following[-1] == (epoch + 1, 0)


def test_a_window_above_all_chunks_mixes_all_blocks():
    order = make([5, 5, 5], shuffle="window", window=10**6)
    assert sorted(order.window_chunks(0, 0)) == [0, 1, 2]
    assert sorted(epochs_of(order, 0, 1)[0].tolist()) == list(range(15))


def test_without_a_shuffle_blocks_come_in_their_own_order():
    assert epochs_of(make([3, 0, 2], shuffle=None), 7, 2).tolist() == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_single_block_comes_again_and_again(shuffle):
    assert epochs_of(make([0, 1, 0], shuffle=shuffle), 0, 50).tolist() == [[0]] * 50


@pytest.mark.parametrize(("shuffle", "sizes"), [("global", [40]), ("window", [4] * 10)])
def test_every_epoch_seed_and_name_is_another_order(shuffle, sizes):
    orders = [
        tuple(epoch.tolist())
        for seed in (0, 1, 2**64, 10**30)
        for name in ("web", "code", "")
        for epoch in epochs_of(make(sizes, seed=seed, name=name, shuffle=shuffle), 0, 10)
    ]
    assert len(set(orders)) == len(orders)


def test_windows_shuffle_chunks_and_the_blocks_in_them():
    order = make([50] * 8, shuffle="window", window=2)
    first, second = epochs_of(order, 0, 2)
    chunks = [order.window_chunks(epoch, number) for epoch in (0, 1) for number in range(4)]
    assert len({tuple(part) for part in chunks}) > 4
    for blocks in (first, second):
        changes = np.count_nonzero(np.diff(blocks[:100] // 50))
        assert 30 < changes < 70  # of 99: two chunks of a window take turns at random


@pytest.mark.parametrize("shuffle", ["global", None])
def test_positions_far_out_in_a_huge_source_are_found_at_once(shuffle):
    size = 10**10
    positions = np.array([10**9, 10**15, 2**62])
    seconds = []
    for _ in range(5):  # what else the machine does must not decide a test
        began = time.perf_counter()
        epochs, ids = make([size], shuffle=shuffle).locate(positions)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.05
    assert epochs.tolist() == [position // size for position in positions.tolist()]
    if shuffle is None:
        assert ids.tolist() == [position % size for position in positions.tolist()]
    assert len(set(ids.tolist())) == 3
    assert 0 <= ids.min() <= ids.max() < size


def test_no_positions_give_no_blocks():
    for shuffle in SHUFFLES:
        epochs, ids = make([3], shuffle=shuffle).locate(np.arange(0))
        assert (epochs.tolist(), ids.tolist()) == ([], [])


@pytest.mark.parametrize(
    ("shuffle", "expected"),
    [
        (
            "global",
            [
                [13, 5, 9, 3, 0, 10, 7, 4, 11, 6, 8, 12, 14, 2, 15, 1],
                [9, 0, 15, 7, 8, 6, 12, 5, 10, 11, 4, 13, 3, 14, 2, 1],
            ],
        ),
        (
            "window",
            [
                [1, 2, 0, 3, 14, 4, 11, 8, 5, 13, 15, 6, 10, 12, 9, 7],
                [5, 4, 10, 7, 8, 6, 9, 15, 13, 0, 2, 12, 14, 11, 3, 1],
            ],
        ),
        (
            None,
            [
                [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
                [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            ],
        ),
    ],
)
def test_orders_never_change(shuffle, expected):
    # A saved run goes on in a later release only if these stay.
    order = make([4, 0, 7, 5], name="data", seed=1, shuffle=shuffle, window=2)
    assert epochs_of(order, 0, 2).tolist() == expected


@pytest.mark.parametrize(
    ("shuffle", "digest"),
    [
        ("global", "073b45d977350dadbd3b5e21e8a56ae595a008e927eb17bef3978acaa74d96bd"),
        ("window", "fcf9caec3f02c1ed37732ad98b3bf7d62e3121faf327d367142f5d57a2b6a41b"),
    ],
)
def test_long_orders_never_change(shuffle, digest):
    order = make([1000] * 100, name="data", seed=2**64, shuffle=shuffle, window=8)
    _, ids = order.locate(5 * 10**9 + np.arange(150_000))
    assert hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest() == digest
