"""How the tests run Grain pipelines: states go through JSON, batches are compared exactly.

Whatever imports this is skipped where Grain is not installed.
"""

import json
from contextlib import closing

import numpy as np
import pytest

grain = pytest.importorskip("grain", reason="packcore_grain needs Grain")

READ_HERE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def sent(state):
    """What arrives when a checkpoint holds `state` as JSON."""
    return json.loads(json.dumps(state, allow_nan=False))


def assert_same(got, expected):
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_equal(one, other)


def states_of(dataset):
    """The states before each element and after the last one, and the elements."""
    with closing(iter(dataset)) as iterator:
        states, items = [sent(iterator.get_state())], []
        for item in iterator:
            items.append(item)
            states.append(sent(iterator.get_state()))
    return states, items


def check_every_state(dataset):
    """Takes the state at every step, and loads each into a fresh iterator and a used one."""
    states, items = states_of(dataset)
    for step, state in enumerate(states):
        with closing(iter(dataset)) as fresh:
            fresh.set_state(state)
            assert sent(fresh.get_state()) == state
            assert_same(list(fresh), items[step:])
    with closing(iter(dataset)) as used:
        for step in reversed(range(len(items))):
            used.set_state(states[step])
            np.testing.assert_equal(next(used), items[step])
    return items


def workers(num_workers):
    return grain.MultiprocessingOptions(num_workers=num_workers)
