"""A bounded cache of what is cheap to load again: maps of chunks, document starts."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Cache", "max_maps"]

_Value = TypeVar("_Value")
_numbers = itertools.count()


class Cache(Generic[_Value]):
    """Keeps the last `size` values that were asked for. Threads may share it; it has no lock.

    Two threads that miss the same key load it twice; each operation on the dict is atomic. A
    value that is dropped lives on in whoever holds it.

    Args:
        load: makes the value of a key.
        size: how many values are kept.
        shared: where the values are kept, if `size` is for several caches together. A cache that
            goes takes its own values along.
    """

    def __init__(
        self,
        load: Callable[[int], _Value],
        size: int,
        *,
        shared: dict[tuple[int, int], _Value] | None = None,
    ) -> None:
        self._load = load
        self.size = size
        self._values = {} if shared is None else shared
        self._number = next(_numbers)
        if shared is not None:
            weakref.finalize(self, _forget, shared, self._number).atexit = False

    def __getitem__(self, key: int) -> _Value:
        name = self._number, key
        value = self._values.pop(name, None)
        if value is None:
            value = self._load(key)
        self._values[name] = value  # a dict keeps insertion order: the oldest is first
        while len(self._values) > self.size:
            self._values.pop(self._oldest(), None)
        return value

    def __len__(self) -> int:
        return sum(number == self._number for number, _ in list(self._values))

    def _oldest(self) -> tuple[int, int]:
        try:
            return next(iter(self._values))
        except (RuntimeError, StopIteration):  # another thread was at it
            return -1, -1


def _forget(values: dict[tuple[int, int], _Value], owner: int) -> None:
    for name in list(values):
        if name[0] == owner:
            values.pop(name, None)


def max_maps() -> int:
    """Returns how many chunks a process may map at once.

    Before Python 3.13 a map holds its file descriptor, so a quarter of those allowed is taken.
    """
    if sys.version_info >= (3, 13):
        return 4096
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return 128
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 256 if soft == resource.RLIM_INFINITY else max(8, min(256, soft // 4))
