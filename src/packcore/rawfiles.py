"""Parts of files: mapped, read, or read into the operating system's cache ahead of time.

What the bytes mean is for `packcore.format` and `packcore.formats`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from packcore.errors import FormatError, NoDataError, PackcoreError

__all__ = [
    "broken",
    "file_bytes",
    "list_folder",
    "map_array",
    "num_maps",
    "opened",
    "read_at",
    "read_into",
    "stamp",
    "warm_file",
]

_PROBE_BYTES = 128 * 1024
_READ_BYTES = 1024 * 1024

_RIGHT = " Get the right to read it, and to enter the folders above it (chmod, chown)."
_WAY_OUT = {
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
    errno.ELOOP: " Its symbolic links lead in a circle: make them anew.",
    errno.ENAMETOOLONG: " Check the path; if an index names the file, the index is damaged.",
    errno.EMFILE: " Close some files, or raise the limit (ulimit -n).",
    errno.ENODEV: " Its file system has no maps: open it with mmap=False.",
    errno.ENOMEM: " Hold fewer maps, or open it with mmap=False.",
}

_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def broken(
    path: str, rule: str, *, expected: object, got: object, offset: int | None = None
) -> FormatError:
    """Returns the error for a file that breaks a rule of its format.

    Args:
        path: the file.
        rule: what is wrong and the way out, without the path, as the end of a sentence.
        expected: what should stand there.
        got: what does.
        offset: the byte where it goes wrong.
    """
    message = f"{path} {rule}"
    return FormatError(message, path=path, offset=offset, expected=expected, got=got)


@contextlib.contextmanager
def opened(path: str) -> Iterator[io.BufferedReader]:
    """Opens a file to read it; what is no regular file is refused.

    What the operating system refuses in the block is told as that of this file.

    Raises:
        NoDataError: there is no such file, it is a folder, a pipe or a device, or it cannot be
            read.
    """
    with _told(path), open(_open_regular(path), "rb") as file:
        yield file


def _open_regular(path: str) -> int:
    """Returns a file descriptor; does not wait for the other end of a pipe."""
    # The first flag is missing on Windows, the second everywhere else.
    flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, os.O_RDONLY | flags)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise NoDataError(f"{path} is a folder; expected a file.", path=path)
    raise NoDataError(
        f"{path} is a pipe or a device; expected a file. Write what comes out of it to a file.",
        path=path,
    )


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Turns what the operating system says of a path into an error that names it."""
    try:
        is_name = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise NoDataError(f"{path!r} cannot be the name of a file.", path=path)
    try:
        yield
    except PackcoreError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise NoDataError(f"There is no file {path}.", path=path) from None
    except OSError as error:
        way_out = _WAY_OUT.get(error.errno or 0, "")
        raise NoDataError(
            f"{path} cannot be read: {error.strerror or error}.{way_out}", path=path
        ) from error


def list_folder(path: str) -> list[str]:
    """Returns the names in a folder, in no order.

    Raises:
        NoDataError: there is no such folder, or it cannot be read.
    """
    with _told(path):
        return os.listdir(path)


def stamp(path: str) -> tuple[str, int, int]:
    """Returns what changes when a file is written anew: its path, size and time.

    Raises:
        NoDataError: there is no such file.
    """
    with _told(path):
        status = os.stat(path)
    return path, status.st_size, status.st_mtime_ns


def file_bytes(path: str) -> int:
    """Returns the size of a file in bytes.

    Raises:
        NoDataError: there is no such file, or it cannot be read; see `opened`.
    """
    with opened(path) as file:
        return os.fstat(file.fileno()).st_size


def map_array(path: str, dtype: np.dtype[Any], offset: int, count: int) -> npt.NDArray[Any]:
    """Maps part of a file, read-only.

    The map lives as long as the array or any view of it; there is nothing to close.

    Args:
        path: the file.
        dtype: of the numbers.
        offset: the byte of the first.
        count: how many.

    Returns:
        `(count,)`, `dtype`; not aligned if `offset` is not.

    Raises:
        FormatError: the file ends before the last of them.
        NoDataError: there is no such file.
    """
    size = count * dtype.itemsize
    base = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with opened(path) as file:
        _check_inside(path, offset, size, os.fstat(file.fileno()).st_size)
        if not count:  # nothing cannot be mapped
            return np.empty(0, dtype)
        # A map without its file descriptor is possible from Python 3.13 on: open files stay few.
        options: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        buffer = mmap.mmap(
            file.fileno(), offset - base + size, access=mmap.ACCESS_READ, offset=base, **options
        )
    _maps.add(buffer)
    return np.frombuffer(buffer, dtype, count, offset - base)


def num_maps() -> int:
    """Returns how many maps of `map_array` this process holds."""
    return len(_maps)


def read_at(path: str, offset: int, size: int) -> bytes:
    """Returns bytes [offset, offset + size) of a file.

    Raises:
        FormatError: the file ends before the last of them.
        NoDataError: there is no such file.
    """
    return np.array(map_array(path, np.dtype(np.uint8), offset, size)).tobytes()


def read_into(path: str, offset: int, out: npt.NDArray[Any]) -> None:
    """Fills `out`, contiguous, with the bytes of a file from `offset` on, without a map.

    Raises:
        FormatError: the file ends before the last of them.
    """
    with opened(path) as buffered:
        file = cast("io.FileIO", buffered.raw)
        file.seek(offset)
        view = memoryview(out.data).cast("B") if out.size else memoryview(b"")
        while view.nbytes:
            count = file.readinto(view)
            if not count:
                _check_inside(path, offset, out.nbytes, os.fstat(file.fileno()).st_size)
            view = view[count:]


def _check_inside(path: str, offset: int, size: int, total: int) -> None:
    if offset + size > total:
        raise broken(
            path,
            f"is truncated: expected at least {offset + size} bytes, got {total}. Copy or make it "
            "again.",
            expected=offset + size,
            got=total,
            offset=total,
        )


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
