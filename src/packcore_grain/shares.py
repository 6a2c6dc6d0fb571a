"""Shares of a whole for Grain's workers: which one, and its stretch under `sequential_slice`."""

from __future__ import annotations

from packcore.checks import check_int
from packcore.errors import ArgumentError, ArgumentTypeError

__all__ = ["check_slice", "stretch"]


def check_slice(sl: slice) -> tuple[int, int]:
    """Returns the start and the step of a slice; its end is for the caller.

    Raises:
        ArgumentTypeError: it is no slice, or not one of integers.
        ArgumentError: it goes backwards or nowhere.

    Examples:
        >>> check_slice(slice(1, None, 2)), check_slice(slice(None))
        ((1, 2), (0, 1))
    """
    if not isinstance(sl, slice):
        raise ArgumentTypeError(
            f"sl must be slice(worker, None, num_workers); got {sl!r} ({type(sl).__name__}).",
            name="sl",
            value=sl,
        )
    start = check_int("sl.start", 0 if sl.start is None else sl.start, low=0)
    return start, check_int("sl.step", 1 if sl.step is None else sl.step, low=1)


def stretch(count: int, sl: slice, *, sequential_slice: bool) -> slice:
    """Returns the stretch of `count` elements that a worker takes.

    The first workers take one more where they do not come out even, as with Grain's own sources.
    Source: google/grain, `grain/_src/core/sharding.py`, `even_split`.

    Args:
        count: of the whole.
        sl: `slice(worker, None, num_workers)`.
        sequential_slice: must be True; Grain deals out in turn by itself.

    Raises:
        ArgumentError: the slice is another one.
        ArgumentTypeError: it is no slice of integers.

    Examples:
        >>> [stretch(5, slice(worker, None, 3), sequential_slice=True) for worker in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    worker, num_workers = check_slice(sl)
    if not sequential_slice or sl.stop is not None or worker >= num_workers:
        raise ArgumentError(
            "A source is sliced for workers only: slice(worker, None, num_workers) with "
            f"sequential_slice=True; got {sl} and {sequential_slice}. Use source[{worker}:].",
            name="sl",
            value=sl,
        )
    size, rest = divmod(count, num_workers)
    start = worker * size + min(worker, rest)
    return slice(start, start + size + (worker < rest))
