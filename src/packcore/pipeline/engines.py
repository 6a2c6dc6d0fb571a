"""Runs the encoding of work: in this process, or in several.

An engine takes a recipe and the work, and yields each piece of work with its ids, in the order
that the work came in. It holds a bounded number of them. `packcore_ray` has another one.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from packcore.checks import check_int
from packcore.errors import WorkerError
from packcore.pipeline.encoding import Encoder, Recipe
from packcore.pipeline.work import Encoded, Work

__all__ = ["Engine", "choose_engine", "in_order"]

_Results = Generator[tuple[Work, Encoded], None, None]

Engine = Callable[[Recipe, Iterator[Work]], _Results]
"""Encodes work in order; closed when it is not needed any more."""

_recipe: Recipe | None = None
"""In a worker process: of the build that it works for."""


def choose_engine(workers: int | None) -> Engine:
    """Returns the engine for a number of processes.

    Args:
        workers: processes that tokenize; 0 for this one; None for one a usable core.

    Raises:
        ArgumentError: the number is negative.
        ArgumentTypeError: it is not an integer.
    """
    number = _num_cores() if workers is None else check_int("workers", workers, low=0)
    if number == 0:
        return _here
    return lambda recipe, work: _in_processes(recipe, work, number)


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _here(recipe: Recipe, work: Iterator[Work]) -> _Results:
    encoder = Encoder(recipe)
    return ((one, encoder(one)) for one in work)


def _in_processes(recipe: Recipe, work: Iterator[Work], workers: int) -> _Results:
    # Late, so that `import packcore` stays light.
    from concurrent.futures import Future, process  # noqa: PLC0415
    from multiprocessing import get_context  # noqa: PLC0415

    # Spawned and not forked: a tokenizer's threads and locks do not survive a fork.
    context = get_context("spawn")
    pool = process.ProcessPoolExecutor(workers, context, _start_worker, (recipe,))

    def submit(one: Work) -> Future[Encoded]:
        with _without_ctrl_c():  # it may start a process
            return pool.submit(_encode, one)

    try:
        # One is worked on and one waits, for each process.
        yield from in_order(work, submit, Future.result, 2 * workers)
    except process.BrokenProcessPool:
        raise WorkerError(
            "A worker process died, killed by the operating system or for want of memory. What is "
            "finished is kept: the same build goes on from there. Use fewer workers, or more "
            'memory; and let a script build under `if __name__ == "__main__":`.'
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def in_order(
    work: Iterator[Work],
    submit: Callable[[Work], Any],
    result: Callable[[Any], Encoded],
    num_ahead: int,
) -> _Results:
    """Yields work with its ids, in order, with at most `num_ahead` pieces begun ahead.

    Args:
        work: what to do.
        submit: begins a piece, and returns what stands for its ids.
        result: waits for the ids.
        num_ahead: pieces that are begun and not yet asked for.
    """
    waiting: deque[tuple[Work, Any]] = deque()
    for one in work:
        if len(waiting) >= num_ahead:
            first, future = waiting.popleft()
            yield first, result(future)
        waiting.append((one, submit(one)))
    while waiting:
        first, future = waiting.popleft()
        yield first, result(future)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Holds Ctrl-C back; processes that are started meanwhile never get it.

    Ctrl-C is for the process that writes; it ends the others.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(recipe: Recipe) -> None:
    global _recipe  # noqa: PLW0603 - a pool gives its processes no other place
    threading.Thread(target=_die_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process a core is enough
    _recipe = recipe


def _die_with_parent() -> None:
    """Ends this process when its parent was killed: the pool would wait for ever."""
    from multiprocessing import parent_process  # noqa: PLC0415

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@functools.cache
def _own_encoder() -> Encoder:
    """Returns this process's encoder; made here and not at the start, where errors are lost."""
    if _recipe is None:
        raise RuntimeError("Only the processes of a build encode for it.")
    return Encoder(_recipe)


def _encode(work: Work) -> Encoded:
    return _own_encoder()(work)
