"""Keyed bijections of [0, n): shuffles that need neither memory nor a pass over the data.

What the indices mean, and which key belongs to which epoch, is for `packcore.order`.

The bijection is a generalized Feistel network on the grid Z_rows x Z_columns with
rows * columns just above n; a result at or past n is sent through again (cycle walking). Of
the grids that are nearly square the one with the fewest cells past n is taken, so that a second
pass is rare. Source: J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.
The round function is a multiply-xorshift-multiply hash with the constants of SplitMix64.
Source: G. Steele, D. Lea and C. Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014.
"""

from __future__ import annotations

import functools
import hashlib
import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.checks import check_int

__all__ = ["MAX_SIZE", "NUM_KEYS", "NUM_ROUNDS", "SMALL_SIZE", "derive_key", "permute"]

MAX_SIZE = 2**62
"""The largest n: products of the round function then stay inside 64 bits."""

NUM_KEYS = 24
"""Round keys of a shuffle: all are used where n is at most SMALL_SIZE, else the first 8."""

NUM_ROUNDS = 8
"""Rounds, alternating between rows and columns, from which on no test tells n > SMALL_SIZE
from a random shuffle; six are enough for most n."""

SMALL_SIZE = 1024
"""Up to here a grid is so small that every permutation must be equally likely: more rounds."""

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


def derive_key(*parts: int | str) -> npt.NDArray[np.uint64]:
    """Returns the round keys that belong to `parts`.

    Parts are hashed (SHAKE128), never added: (seed 1, epoch 1) and (seed 2, epoch 0) share
    nothing.

    Args:
        *parts: what names the shuffle, such as a seed, a source's name and an epoch.

    Returns:
        `(NUM_KEYS,)`, uint64.

    Examples:
        >>> derive_key(1, "web", 0).shape, bool((derive_key(1, 1) == derive_key(11)).any())
        ((24,), False)
    """
    # Plain types and ASCII: what repr makes of others depends on the NumPy and Python version.
    text = ascii(("packcore", *map(_plain, parts)))
    digest = hashlib.shake_128(text.encode()).digest(8 * NUM_KEYS)
    return np.frombuffer(digest, "<u8").astype(np.uint64)


def _plain(part: int | str) -> int | str:
    return str.__str__(part) if isinstance(part, str) else int(operator.index(part))


def permute(
    indices: npt.NDArray[Any], size: int, key: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Sends each index of [0, size) to its place in the shuffle that belongs to `key`.

    Time and memory are those of `indices`; nothing depends on `size`.

    Args:
        indices: `(num_indices,)`, any integer dtype, each in [0, size).
        size: how many things are shuffled, in [1, MAX_SIZE].
        key: `(NUM_KEYS,)`, uint64, from `derive_key`.

    Returns:
        `(num_indices,)`, int64, each in [0, size); over all indices, each once.

    Raises:
        ArgumentError: `size` is outside [1, MAX_SIZE].

    Examples:
        >>> sorted(permute(np.arange(5), 5, derive_key("seed", 7)).tolist())
        [0, 1, 2, 3, 4]
    """
    size = check_int("size", size, low=1, high=MAX_SIZE)
    num_rows, num_columns = _grid(size)
    key = key if size <= SMALL_SIZE else key[:NUM_ROUNDS]
    shuffled = _pass(indices.astype(np.uint64), num_rows, num_columns, key)
    (outside,) = np.nonzero(shuffled >= np.uint64(size))
    while len(outside):
        shuffled[outside] = _pass(shuffled[outside], num_rows, num_columns, key)
        outside = outside[shuffled[outside] >= np.uint64(size)]
    return shuffled.view(np.int64)


@functools.lru_cache(maxsize=256)
def _grid(size: int) -> tuple[int, int]:
    """Returns the rows and columns of the nearly square grid with the fewest cells past `size`.

    Of a large size only some grids are tried: a few cells too many do not matter there.
    """
    side = math.isqrt(size - 1) + 1
    tried = range(side, min(side + 512, side * 4 // 3) + 1)
    columns = min(tried, key=lambda count: -size % count)
    return -(-size // columns), columns


def _pass(
    cells: npt.NDArray[np.uint64], num_rows: int, num_columns: int, key: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Sends cell numbers of the grid once through all rounds."""
    rows, columns = np.divmod(cells, np.uint64(num_columns))
    for row_key, column_key in zip(key[0::2], key[1::2], strict=True):
        rows = _shift(rows, np.uint64(num_rows), columns, row_key)
        columns = _shift(columns, np.uint64(num_columns), rows, column_key)
    rows *= np.uint64(num_columns)
    rows += columns
    return rows


def _shift(
    values: npt.NDArray[np.uint64],
    modulus: np.uint64,
    by: npt.NDArray[np.uint64],
    key: np.uint64,
) -> npt.NDArray[np.uint64]:
    """Adds a hash of `by`, scaled to [0, modulus), to `values`, modulo `modulus`."""
    mixed = by + key
    mixed *= _MIX_1
    mixed ^= mixed >> _HALF
    mixed *= _MIX_2
    mixed >>= _HALF  # the high half is the better mixed
    mixed *= modulus  # at most 2**32 * 2**31
    mixed >>= _HALF
    mixed += values
    # Below the modulus the subtraction wraps to a huge number, so the minimum is the remainder.
    np.minimum(mixed, mixed - modulus, out=mixed)
    return mixed
