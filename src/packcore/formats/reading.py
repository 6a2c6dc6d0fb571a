"""Bytes, arrays and JSON out of files that may be damaged, and packages that may be missing.

Nothing here is larger than the file that it is read from, whatever the file says of itself. What
the bytes mean is for each format's own module.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import mmap
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import FormatError, MissingExtraError, NoDataError

__all__ = [
    "SLAB_TOKENS",
    "broken",
    "digest_span",
    "file_bytes",
    "import_extra",
    "map_array",
    "read_at",
    "read_head",
    "read_into",
    "read_json",
    "slabs",
    "warm_span",
]

SLAB_TOKENS = 2**22
"""Tokens, or numbers of an index, that are looked at in one go."""
_HEAD_BYTES = 64
_SAMPLE_BYTES = 4096


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


def file_bytes(path: str) -> int:
    """Returns the size of a file in bytes.

    Raises:
        NoDataError: there is no such file, or it is a folder.
    """
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        raise NoDataError(f"There is no file {path}.", path=path) from None
    except IsADirectoryError:
        raise NoDataError(f"{path} is a folder; expected a file.", path=path) from None


def read_head(path: str, size: int = _HEAD_BYTES) -> bytes:
    """Returns the first `size` bytes of a file, fewer if it is shorter; none of a folder."""
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return b""


def read_at(path: str, offset: int, size: int) -> bytes:
    """Returns bytes [offset, offset + size) of a file.

    Raises:
        FormatError: the file ends before the last of them.
        NoDataError: there is no such file.
    """
    return np.array(map_array(path, np.dtype(np.uint8), offset, size)).tobytes()


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
    _check_inside(path, offset, size, file_bytes(path))
    if not count:  # nothing cannot be mapped
        return np.empty(0, dtype)
    base = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with open(path, "rb") as file:
        # A map without its file descriptor is possible from Python 3.13 on: open files stay few.
        options: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        buffer = mmap.mmap(
            file.fileno(), offset - base + size, access=mmap.ACCESS_READ, offset=base, **options
        )
    return np.frombuffer(buffer, dtype, count, offset - base)


def read_into(path: str, offset: int, out: npt.NDArray[Any]) -> None:
    """Fills `out`, contiguous, with the bytes of a file from `offset` on, without a map.

    Raises:
        FormatError: the file ends before the last of them.
    """
    with open(path, "rb", buffering=0) as file:
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


def read_json(path: str) -> Any:
    """Returns what a JSON file holds.

    Raises:
        FormatError: it is not JSON.
        NoDataError: there is no such file.
    """
    file_bytes(path)
    try:
        with open(path, "rb") as file:
            return json.loads(file.read())
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number too long
        raise FormatError(f"{path} is not JSON: {error}.", path=path) from error


def slabs(count: int) -> Iterator[tuple[int, int]]:
    """Yields (start, stop) of pieces of at most `SLAB_TOKENS`, over [0, count)."""
    for start in range(0, count, SLAB_TOKENS):
        yield start, min(count, start + SLAB_TOKENS)


def digest_span(path: str, offset: int, size: int, *facts: object) -> str:
    """Returns a hash of facts and of both ends of bytes [offset, offset + size) of a file.

    Enough to tell data sets apart, not to find a flipped bit.
    """
    digest = hashlib.sha256(repr(facts).encode())
    count = min(size, _SAMPLE_BYTES)
    for start in (offset, offset + size - count):
        digest.update(read_at(path, start, count))
    return digest.hexdigest()


def warm_span(path: str, offset: int, size: int) -> None:
    """Asks the operating system to read bytes [offset, offset + size) of a file into its cache."""
    if hasattr(os, "posix_fadvise"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def import_extra(module: str, *, extra: str, needed_for: str) -> ModuleType:
    """Imports an optional package.

    Args:
        module: what is imported.
        extra: the extra of packcore that brings it.
        needed_for: what it is needed for, as the start of a sentence.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module if module.startswith("backports.") else module.partition(".")[0]
        raise MissingExtraError(
            f"{needed_for} needs the package {package}. Install it with: pip install "
            f'"packcore[{extra}]"',
            name=package,
        ) from error
