"""Arrays whose memory is used again once nobody holds them any more.

A fresh array of some hundred kilobytes is new memory of the operating system, taken page by page,
which takes longer than to fill it. Here it goes round, at the moment at which it would be freed.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Pool"]


class Pool:
    """Memory that is free to be used again. Threads may share it.

    Args:
        size: for how many arrays free memory is kept.

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
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=size)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Returns an array as `np.empty` does.

        Its memory comes back to the pool when the array, every view of it and everything that
        shares its memory is gone.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(num_bytes, np.uint8)
        if memory.nbytes < num_bytes:
            memory = np.empty(num_bytes, np.uint8)
        return np.asarray(_Lease(memory, self._free))[:num_bytes].view(dtype).reshape(shape)


class _Lease:
    """What an array has for its base: it goes when the last view goes."""

    __slots__ = ("__array_interface__", "_free", "_memory")

    def __init__(self, memory: npt.NDArray[np.uint8], free: deque[npt.NDArray[np.uint8]]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._memory)
