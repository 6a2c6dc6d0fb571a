"""Reads the windows of a shuffle into the system's cache, one ahead, in a thread of its own.

A disk is fastest from front to back, the blocks of a window are served in any order: so a window
is read before it is served. Which chunks it has is for `packcore.order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from packcore.order import Order
from packcore.protocols import BlockReader

__all__ = ["WindowWarmer"]

_MAX_BYTES = 2 * 2**30
"""A larger window is not read ahead: what is read first could be gone before it is served."""

_Window = tuple[int, int]
"""An epoch and a window, counted in it."""


class WindowWarmer:
    """Warms each window of each source once, while the one before is served.

    Windows above 2 GiB are left alone.

    Args:
        readers: the sources; one without `warm` is left alone.
        orders: their orders, by windows.
    """

    def __init__(self, readers: Sequence[BlockReader], orders: Sequence[Order]) -> None:
        self._warm = [getattr(reader, "warm", None) for reader in readers]
        self._block_bytes = [reader.block_size * reader.dtype.itemsize for reader in readers]
        self._orders = orders
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="packcore-windows")
        self._warmed: dict[int, dict[_Window, list[Future[None]]]] = {}

    def enter(self, source: int, epoch: int, block: int) -> None:
        """Says that a block is served next, and waits until its window has been read.

        Not for the first window: there, waiting would delay the first batch.
        """
        order = self._orders[source]
        here = (epoch, order.window_of(epoch, block))
        before = self._warmed.get(source)
        if before is None or next(iter(before)) != here:
            known = before or {}
            wanted = (here, order.next_window(*here))
            self._warmed[source] = {
                window: known.get(window) or self._submit(source, window) for window in wanted
            }
        if before is not None:
            for future in self._warmed[source][here]:
                future.result()

    def _submit(self, source: int, window: _Window) -> list[Future[None]]:
        """Has the chunks of a window read, each by a task of its own, so that closing is quick."""
        warm, order = self._warm[source], self._orders[source]
        if warm is None or order.window_size(*window) * self._block_bytes[source] > _MAX_BYTES:
            return []
        chunks = order.window_chunks(*window)
        return [self._thread.submit(warm, [chunk]) for chunk in chunks]

    def close(self) -> None:
        """Stops the thread, after the chunk that it reads."""
        self._thread.shutdown(wait=True, cancel_futures=True)
