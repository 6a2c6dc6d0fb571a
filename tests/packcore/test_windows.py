import threading
import time

import numpy as np
import pytest

from packcore.order import Order
from packcore.windows import WindowWarmer


class Reader:
    block_size, dtype = 4, np.dtype("uint16")

    def __init__(self):
        self.warmed, self.go_on = [], threading.Event()
        self.go_on.set()

    def warm(self, chunks):
        self.go_on.wait(10)
        self.warmed += chunks


@pytest.fixture
def order():
    return Order("web", np.arange(0, 71, 10), seed=3, shuffle="window", window=2)


def first_block(order, epoch, window):
    return 10 * order.window_chunks(epoch, window)[0]


def threads():
    return [thread for thread in threading.enumerate() if "packcore-windows" in thread.name]


def test_each_window_is_warmed_once_before_it_is_entered(order):
    reader = Reader()
    warmer = WindowWarmer([reader], [order])
    expected = order.window_chunks(0, 0)
    for epoch in range(2):
        for window in range(4):
            for _ in range(3):
                warmer.enter(0, epoch, first_block(order, epoch, window))
            if (epoch, window) != (0, 0):
                assert reader.warmed[: len(expected)] == expected
            expected += order.window_chunks(*order.next_window(epoch, window))
    warmer.enter(0, 2, first_block(order, 2, 0))
    warmer.close()
    assert reader.warmed[: len(expected)] == expected
    assert threads() == []


def test_the_first_window_is_not_waited_for(order):
    reader = Reader()
    reader.go_on.clear()
    warmer = WindowWarmer([reader], [order])
    warmer.enter(0, 0, first_block(order, 0, 0))
    assert reader.warmed == []
    reader.go_on.set()
    warmer.enter(0, 0, first_block(order, 0, 1))
    assert set(order.window_chunks(0, 1)) <= set(reader.warmed)
    warmer.close()


def test_closing_leaves_out_what_was_not_begun(order):
    reader = Reader()
    reader.go_on.clear()
    warmer = WindowWarmer([reader], [order])
    warmer.enter(0, 0, first_block(order, 0, 0))
    time.sleep(0.05)
    threading.Timer(0.1, reader.go_on.set).start()
    warmer.close()
    assert len(reader.warmed) == 1
    assert threads() == []


def test_an_exception_while_warming_is_raised_where_the_window_is_entered(order):
    class Broken(Reader):
        def warm(self, _chunks):
            raise OSError("the disk is gone")

    warmer = WindowWarmer([Broken()], [order])
    warmer.enter(0, 0, first_block(order, 0, 0))
    with pytest.raises(OSError, match="the disk is gone"):
        warmer.enter(0, 0, first_block(order, 0, 1))
    warmer.close()


def test_a_reader_that_cannot_warm_is_left_alone(order):
    class Plain:
        block_size, dtype = 4, np.dtype("uint16")

    warmer = WindowWarmer([Plain()], [order])
    for window in range(4):
        warmer.enter(0, 0, first_block(order, 0, window))
    assert threads() == []
    warmer.close()


def test_a_window_that_would_not_stay_in_memory_is_left_alone(order):
    reader = Reader()
    reader.block_size = 2**30
    warmer = WindowWarmer([reader], [order])
    for window in range(4):
        warmer.enter(0, 0, first_block(order, 0, window))
    warmer.close()
    assert reader.warmed == []
