"""How many tokens the row groups of a Parquet file have, by its footer.

pyarrow reads the footer as well, but ends the process on some damaged ones when it is asked for
statistics. What is here reads Thrift's compact protocol, which the footer is written in, and
nothing of the file but its end (source: `parquet.thrift` of apache/parquet-format).
"""

from __future__ import annotations

from typing import Any

from packcore.rawfiles import file_bytes, read_at

__all__ = ["count_values"]

_MAGIC = b"PAR1"
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)
_DEEPEST = 16
# Field numbers in parquet.thrift.
_ROW_GROUPS, _CREATED_BY = 4, 6
_COLUMNS = 1
_META_DATA = 3
_PATH, _NUM_VALUES, _STATISTICS = 3, 5, 12
_NULL_COUNT = 3
_WRITER = b"parquet-cpp"
"""Others may count empty lists otherwise, or not at all."""


def count_values(path: str, column: str) -> list[int | None]:
    """Returns the values of a column of lists in each row group, as its statistics have them.

    None where they say nothing, where another program than Arrow wrote them, or where they make
    no sense; empty if there is no footer. They are no more than a hint: the file may be damaged.
    """
    size = file_bytes(path)
    tail = read_at(path, max(0, size - 8), min(8, size))
    length = int.from_bytes(tail[:4], "little")
    if not tail.endswith(_MAGIC) or length + 8 > size:
        return []
    try:
        footer = _Reader(read_at(path, size - 8 - length, length)).struct(0)
        trusted = footer.get(_CREATED_BY, b"").startswith(_WRITER)
        groups = footer[_ROW_GROUPS]
        return [_count(group, column.encode()) if trusted else None for group in groups]
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        return []


def _count(group: dict[int, Any], column: bytes) -> int | None:
    for chunk in group[_COLUMNS]:
        meta = chunk[_META_DATA]
        if meta[_PATH][0] == column:
            nulls = meta.get(_STATISTICS, {}).get(_NULL_COUNT)
            return None if nulls is None else int(meta[_NUM_VALUES]) - int(nulls)
    return None


class _Reader:
    """Reads one message of the compact protocol into dicts by field number, and lists."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def struct(self, depth: int) -> dict[int, Any]:
        if depth > _DEEPEST:
            raise ValueError(depth)
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET, _MAP):
            return self._map(depth) if kind == _MAP else self._list(depth)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind not in (_TRUE, _FALSE, _BYTE, *_INTEGERS):
            raise ValueError(kind)
        return self._integer() if kind in _INTEGERS else self._byte()  # in a list, a bool is a byte

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count = self._varint() if head >> 4 == 15 else head >> 4  # noqa: PLR2004 - of a long list
        self._check(count)
        return [self._value(head & 15, depth + 1) for _ in range(count)]

    def _map(self, depth: int) -> list[Any]:
        count = self._varint()
        kinds = self._byte() if count else 0
        self._check(count)
        both = (kinds >> 4, kinds & 15)
        return [[self._value(kind, depth + 1) for kind in both] for _ in range(count)]

    def _check(self, count: int) -> None:
        if count > len(self._content) - self._at:  # each takes a byte at least
            raise ValueError(count)

    def _bytes(self, size: int) -> bytes:
        self._check(size)
        self._at += size
        return self._content[self._at - size : self._at]

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _integer(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:  # noqa: PLR2004 - the highest bit says that more follows
                return number
            if shift > 63:  # noqa: PLR2004 - no number is longer than 64 bits
                raise ValueError(shift)
