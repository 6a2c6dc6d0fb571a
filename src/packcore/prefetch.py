"""A bounded number of results made ahead, in order, by one thread.

What is made is for the caller.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["made_ahead"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def made_ahead(
    make: Callable[[_Task], _Result], tasks: Iterator[_Task], depth: int
) -> Generator[_Result, None, None]:
    """Yields `make(task)` for each task, up to `depth` of them made ahead.

    An exception in the thread is raised here, in its turn. Closing the generator (which `break`,
    an exception and Ctrl-C do too) waits for the result being made; no thread is left.

    Args:
        make: called in the thread, one task at a time.
        tasks: taken in this thread.
        depth: results made ahead; 0 makes each when it is asked for, without a thread.

    Examples:
        >>> list(made_ahead(lambda task: task * task, iter(range(5)), 1))
        [0, 1, 4, 9, 16]
    """
    if depth == 0:
        yield from map(make, tasks)
        return
    pending: deque[Future[_Result]] = deque()
    is_finalizing = sys.is_finalizing  # at the interpreter's end modules lose their names
    started: list[threading.Thread] = []
    thread = ThreadPoolExecutor(
        1,
        thread_name_prefix="packcore-prefetch",
        initializer=lambda: started.append(threading.current_thread()),
    )
    try:
        for task in tasks:
            pending.append(thread.submit(make, task))
            if len(pending) > depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        if not is_finalizing():  # else it has been joined
            # The garbage collector may close this in the thread itself, which then just ends.
            inside = threading.current_thread() in started
            thread.shutdown(wait=not inside, cancel_futures=True)
