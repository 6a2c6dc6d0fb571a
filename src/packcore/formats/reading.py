"""What several formats read alike: heads, JSON, pieces of a count, hashes.

Nothing here is larger than the file that it is read from, whatever the file says of itself. What
the bytes mean is for each format's own module.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

from packcore.errors import FormatError
from packcore.rawfiles import opened, read_at

__all__ = ["SLAB_TOKENS", "digest_span", "read_head", "read_json", "slabs"]

SLAB_TOKENS = 2**22
"""Tokens, or numbers of an index, that are looked at in one go."""
_HEAD_BYTES = 64
_SAMPLE_BYTES = 4096


def read_head(path: str, size: int = _HEAD_BYTES) -> bytes:
    """Returns the first `size` bytes of a file, fewer if it is shorter; none of what is no file.

    Raises:
        NoDataError: the file cannot be read.
    """
    if not os.path.isfile(path):
        return b""
    with opened(path) as file:
        return file.read(size)


def read_json(path: str) -> Any:
    """Returns what a JSON file holds.

    Raises:
        FormatError: it is not JSON.
        NoDataError: there is no such file, or it cannot be read.
    """
    with opened(path) as file:
        content = file.read()
    try:
        return json.loads(content)
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
