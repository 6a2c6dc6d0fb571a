import gc
import itertools
import threading
import time

import pytest

from packcore.prefetch import made_ahead


def threads():
    return [thread for thread in threading.enumerate() if "packcore" in thread.name]


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
@pytest.mark.parametrize("num_tasks", [0, 1, 2, 7])
def test_results_come_in_order(depth, num_tasks):
    made = made_ahead(lambda task: task * 10, iter(range(num_tasks)), depth)
    assert list(made) == [10 * task for task in range(num_tasks)]
    assert threads() == []


def test_no_more_than_depth_results_are_ahead():
    started = []

    def make(task):
        started.append(task)
        return task

    made = made_ahead(make, itertools.count(), 3)
    for task in range(10):
        assert next(made) == task
        time.sleep(0.01)
        assert max(started) <= task + 3
    made.close()


def test_an_exception_comes_in_its_turn():
    def make(task):
        if task == 2:
            raise OSError("gone")
        return task

    made = made_ahead(make, iter(range(9)), 4)
    assert [next(made), next(made)] == [0, 1]
    with pytest.raises(OSError, match="gone"):
        next(made)
    assert threads() == []


def test_closing_waits_for_the_thread_and_leaves_none():
    made = made_ahead(lambda task: time.sleep(0.02) or task, itertools.count(), 2)
    next(made)
    assert len(threads()) == 1
    made.close()
    assert threads() == []


def test_the_garbage_collector_may_close_it_in_its_own_thread():
    dropped = threading.Event()

    def make(task):
        if task:
            dropped.wait()
            gc.collect()
        return task

    made = made_ahead(make, itertools.count(), 1)
    cycle = [made]
    cycle.append(cycle)
    next(made)
    (thread,) = threads()
    del made, cycle
    dropped.set()
    thread.join(10)
    assert threads() == []
