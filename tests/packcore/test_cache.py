import gc
import random
import subprocess
import sys
import textwrap
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packcore.cache import Cache, max_maps


class Loads:
    """Makes values, and keeps count of what was asked for."""

    def __init__(self):
        self.keys = []

    def __call__(self, key):
        self.keys.append(key)
        return [key]


@given(keys=st.lists(st.integers(0, 6)), size=st.integers(1, 5))
def test_the_last_values_that_were_asked_for_are_kept(keys, size):
    load = Loads()
    cache = Cache(load, size)
    kept, expected = [], []
    for key in keys:
        assert cache[key] == [key]
        if key in kept:
            kept.remove(key)
        else:
            expected.append(key)
        kept = [*kept, key][-size:]
        assert len(cache) == len(kept)
    assert load.keys == expected


def test_a_value_that_was_dropped_lives_on_in_its_holder():
    cache = Cache(Loads(), 1)
    held = cache[0]
    cache[1]
    assert held == [0]
    assert cache[0] is not held


def test_a_load_that_fails_leaves_the_cache_as_it_was():
    def load(key):
        if key < 0:
            raise OSError("gone")
        return [key]

    cache = Cache(load, 2)
    kept = cache[0]
    with pytest.raises(OSError, match="gone"):
        cache[-1]
    assert len(cache) == 1
    assert cache[0] is kept


def test_caches_that_share_their_values_share_their_limit():
    values = {}
    load = Loads()
    first, second = Cache(load, 3, shared=values), Cache(Loads(), 3, shared=values)
    assert [first[0], first[1], second[0], second[1]] == [[0], [1], [0], [1]]
    assert (len(first), len(second), len(values)) == (1, 2, 3)
    assert first[0] == [0]
    assert (len(first), len(second), len(values)) == (1, 2, 3)
    assert load.keys == [0, 1, 0]


def test_a_cache_that_goes_takes_its_values_out_of_the_shared_ones():
    values = {}
    first, second = (Cache(Loads(), 9, shared=values) for _ in range(2))
    first[0], second[0], second[1]
    del second
    gc.collect()
    assert len(values) == len(first) == 1


def test_threads_may_share_a_cache():
    # Small, so that they drop each other's values all the time.
    cache = Cache(Loads(), 2)
    wrong, interval = [], sys.getswitchinterval()

    def ask(seed):
        rng = random.Random(seed)
        try:
            for _ in range(3000):
                key = rng.randrange(5)
                if cache[key] != [key]:
                    wrong.append(key)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            wrong.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert len(cache) == 2


def test_a_quarter_of_the_open_files_goes_to_maps_where_maps_hold_files():
    resource = pytest.importorskip("resource")
    script = """
        import resource, sys
        from packcore.cache import max_maps
        for soft in (1024, 256, 20):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, 1024))
            print(max_maps())
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1024:
        pytest.skip("may not have 1024 files open")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    expected = [4096] * 3 if sys.version_info >= (3, 13) else [256, 64, 8]
    assert list(map(int, done.stdout.split())) == expected


def test_without_a_limit_that_is_known_a_few_maps_are_open(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 12))
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert max_maps() == 128
