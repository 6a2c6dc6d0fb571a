"""Reads what is not in the operating system's cache yet, so that later reads find it there."""

from __future__ import annotations

import os

__all__ = ["warm_file"]

_PROBE_BYTES = 128 * 1024
_READ_BYTES = 1024 * 1024


def warm_file(path: str, start: int, stop: int) -> None:
    """Reads bytes [start, stop) of a file, front to back, unless they are in the page cache.

    Does nothing where the system cannot tell what is there (other than Linux).

    Args:
        path: the file.
        start: the first byte.
        stop: the byte after the last.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return
    first = _first_missing(path, start, stop)
    if first == stop:
        return
    buffer = bytearray(_READ_BYTES)
    with open(path, "rb", buffering=0) as file:
        file.seek(first)
        while file.tell() < stop and file.readinto(buffer):
            pass


def _first_missing(path: str, start: int, stop: int) -> int:
    """Returns a byte from which on the file may not be in the page cache, `stop` if it all is.

    The descriptor is its own: to read here and there tells the system not to read ahead.
    """
    probe = bytearray(1)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for offset in range(start, stop, _PROBE_BYTES):
            os.preadv(descriptor, [probe], min(offset + _PROBE_BYTES, stop) - 1, os.RWF_NOWAIT)
    except OSError:  # EAGAIN: it would have to be read; EOPNOTSUPP: nobody knows
        return offset
    finally:
        os.close(descriptor)
    return stop
