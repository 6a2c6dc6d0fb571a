"""Rows of tokens that lie anywhere in memory, copied together by one NumPy call.

The rows of a batch lie in many arrays: the maps of chunks. NumPy copies rows by number out of one
array only, and a call for each array, with the rows put in order after that, takes longer than
the copying. So all of memory from the first row to the last is taken for one table of bytes,
whose row i begins at byte i; the rows of a batch are some of its rows. Nothing else of it is ever
touched, and the arrays that the rows are parts of live as long as the table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["RowTable", "Rows", "Span", "address_of", "rows_of"]

_MAX_TABLE_BYTES = 2**63 - 1
"""NumPy counts every row of a table in full, though they overlap."""


class Span(NamedTuple):
    """Tokens in memory, one behind the other."""

    tokens: npt.NDArray[Any]
    """`(num_tokens,)`, contiguous."""
    address: int
    """Their first byte; NumPy takes a while to say it."""

    @classmethod
    def of(cls, tokens: npt.NDArray[Any]) -> Span:
        """Returns an array as a span; one that is not contiguous is copied."""
        tokens = np.ascontiguousarray(tokens)
        return cls(tokens, address_of(tokens))


class Rows(NamedTuple):
    """Where rows are in memory."""

    addresses: npt.NDArray[np.int64]
    """`(num_rows,)`, int64: each row's first byte."""
    owners: list[npt.NDArray[Any]]
    """The arrays that they are parts of: while these live, the addresses are good."""


class RowTable:
    """Copies any of some rows in one call.

    Args:
        rows: where they are.
        row_size: tokens in each.
        dtype: of the tokens.

    Examples:
        >>> one, two = np.arange(4), np.arange(10, 14)
        >>> rows = Rows(np.array([address_of(two), address_of(one) + 8]), [one, two])
        >>> RowTable(rows, 3, one.dtype).copy(0, 2)
        array([[10, 11, 12],
               [ 1,  2,  3]])
    """

    def __init__(self, rows: Rows, row_size: int, dtype: np.dtype[Any]) -> None:
        self._owners = rows.owners
        self._dtype = dtype
        self._row_bytes = row_size * dtype.itemsize
        self._first = int(rows.addresses.min(initial=2**63 - 1))
        self._numbers = rows.addresses - self._first
        num_rows = int(self._numbers.max(initial=-1)) + 1
        self._table: npt.NDArray[np.uint8] | None = None
        if num_rows * self._row_bytes <= _MAX_TABLE_BYTES:
            self._table = _memory(self._first, num_rows, self._row_bytes)

    def __len__(self) -> int:
        return len(self._numbers)

    def copy(self, low: int, high: int) -> npt.NDArray[Any]:
        """Returns a copy of rows [low, high), `(high - low, row_size)`."""
        numbers = self._numbers[low:high]
        if self._table is not None:
            return self._table[numbers].view(self._dtype)
        # Rows so long, or so far apart, that a call for each costs next to nothing.
        out = np.empty((len(numbers), self._row_bytes), np.uint8)
        for row, number in enumerate(numbers.tolist()):
            out[row] = _memory(self._first + number, 1, self._row_bytes)[0]
        return out.view(self._dtype)


def rows_of(array: npt.NDArray[Any]) -> Rows:
    """Returns the rows of an array, `(num_rows, row_size)`, contiguous."""
    return Rows(address_of(array) + np.arange(len(array)) * array.strides[0], [array])


def address_of(array: npt.NDArray[Any]) -> int:
    """Returns where an array begins in memory."""
    address: int = array.__array_interface__["data"][0]
    return address


class _Memory:
    """Memory as NumPy takes it: numpy.org/doc/stable/reference/arrays.interface.html."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _memory(address: int, num_rows: int, row_bytes: int) -> npt.NDArray[np.uint8]:
    """Returns memory from `address` on as `(num_rows, row_bytes)`, row i beginning at byte i."""
    if not num_rows:
        return np.empty((0, row_bytes), np.uint8)
    return np.asarray(
        _Memory(
            {
                "version": 3,
                "typestr": "|u1",
                "data": (address, True),
                "shape": (num_rows, row_bytes),
                "strides": (1, 1),
            }
        )
    )
