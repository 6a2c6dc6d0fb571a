"""Arrays whose memory is used again once nobody holds them any more.

A fresh array of some hundred kilobytes is new memory of the operating system, taken page by page,
which takes longer than to fill it. Here it goes round, at the moment at which it would be freed.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Pool"]

_MAX_TRIED = 8
"""Where a user keeps everything, looking through all of it would find nothing."""


class Pool:
    """Memory that is used again. Threads may share it.

    Args:
        size: how many arrays it knows; memory of more than these goes back to the system.

    Examples:
        >>> pool = Pool(8)
        >>> array = pool.empty((2, 3), np.dtype("int32"))
        >>> address, row = array.ctypes.data, array[1]
        >>> del array
        >>> pool.empty((2, 3), np.dtype("int32")).ctypes.data == address  # `row` is held
        False
        >>> del row
        >>> pool.empty((2, 3), np.dtype("int32")).ctypes.data == address
        True
    """

    def __init__(self, size: int) -> None:
        # Asked and not told: what ran at the end of an array would swallow a Ctrl-C.
        self._lent: deque[tuple[npt.NDArray[np.uint8], weakref.ref[_Lease]]] = deque(maxlen=size)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Returns an array as `np.empty` does.

        Its memory is used again when the array, every view of it and everything that shares its
        memory is gone.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        memory = self._find(num_bytes)
        lease = _Lease(memory)
        self._lent.append((memory, weakref.ref(lease)))
        return np.asarray(lease)[:num_bytes].view(dtype).reshape(shape)

    def _find(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        for _ in range(_MAX_TRIED):
            try:
                memory, lease = self._lent.popleft()  # the oldest
            except IndexError:
                break
            if lease() is not None:
                self._lent.append((memory, lease))
            elif memory.nbytes >= num_bytes:
                return memory
        return np.empty(num_bytes, np.uint8)


class _Lease:
    """What an array has for its base: it lives as long as the last view."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory  # the pool may forget it
