"""A bounded number of results made ahead, in order, by one thread.

What is made is for the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["made_ahead"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def made_ahead(
    make: Callable[[_Task, int], _Result], tasks: Iterator[_Task], depth: int
) -> Iterator[_Result]:
    """Yields `make(task, slot)` for each task, up to `depth` of them made ahead.

    At most depth + 1 results are in use at a time: those ahead, and the one last yielded. `slot`
    is a number in [0, depth] that no other result in use has, so that buffers can be reused.

    An exception in the thread is raised here, in its turn. Closing the generator (which `break`,
    an exception and Ctrl-C do too) waits for the result being made; no thread is left.

    Args:
        make: called in the thread, one task at a time.
        tasks: taken in this thread.
        depth: results made ahead; 0 makes each when it is asked for, without a thread.

    Examples:
        >>> list(made_ahead(lambda task, slot: (task * task, slot), iter(range(5)), 1))
        [(0, 0), (1, 1), (4, 0), (9, 1), (16, 0)]
    """
    if depth == 0:
        for task in tasks:
            yield make(task, 0)
        return
    pending: deque[Future[_Result]] = deque()
    thread = ThreadPoolExecutor(1, thread_name_prefix="packcore-prefetch")
    try:
        for number, task in enumerate(tasks):
            # The result before last is out of use once the caller comes back for one more.
            pending.append(thread.submit(make, task, number % (depth + 1)))
            if len(pending) > depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        thread.shutdown(wait=True, cancel_futures=True)
