"""Shares of a whole for Grain's workers, one stretch each, as `sequential_slice` asks for."""

from __future__ import annotations

from packcore.errors import ArgumentError

__all__ = ["stretch"]


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

    Examples:
        >>> [stretch(5, slice(worker, None, 3), sequential_slice=True) for worker in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    if not sequential_slice or sl.stop is not None or not 0 <= sl.start < sl.step:
        raise ArgumentError(
            "A source is sliced for workers only: slice(worker, None, num_workers) with "
            f"sequential_slice=True; got {sl} and {sequential_slice}. Use source[{sl.start}:].",
            name="sl",
            value=sl,
        )
    size, rest = divmod(count, sl.step)
    start = sl.start * size + min(sl.start, rest)
    return slice(start, start + size + (sl.start < rest))
