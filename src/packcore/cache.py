"""A bounded cache of what is cheap to load again: maps of chunks, document starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Cache", "max_maps"]

_Value = TypeVar("_Value")


class Cache(Generic[_Value]):
    """Keeps the last `size` values that were asked for. Threads may share it; it has no lock.

    Two threads that miss the same key load it twice; each operation on the dict is atomic. A
    value that is dropped lives on in whoever holds it.
    """

    def __init__(self, load: Callable[[int], _Value], size: int) -> None:
        self._load = load
        self._size = size
        self._values: dict[int, _Value] = {}

    def __getitem__(self, key: int) -> _Value:
        value = self._values.pop(key, None)
        if value is None:
            value = self._load(key)
        self._values[key] = value  # a dict keeps insertion order: the oldest is first
        while len(self._values) > self._size:
            self._values.pop(self._oldest(), None)
        return value

    def _oldest(self) -> int:
        try:
            return next(iter(self._values))
        except (RuntimeError, StopIteration):  # another thread was at it
            return -1


def max_maps() -> int:
    """Returns how many chunks may be mapped at once.

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
