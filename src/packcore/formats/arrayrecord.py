"""ArrayRecord files, as Grain and MaxText read them, with the package array_record.

A record is a document: a `tf.Example` with a list of int64 in a feature `inputs`, `input_ids`,
`tokens` or `text`, served as int32 as MaxText does; or bare tokens, of a dtype that only the user
knows. The files do not say how long their records are: all of them are read once when they are
opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import ArgumentError, FormatError, PackcoreError
from packcore.extras import import_extra
from packcore.formats.options import Options
from packcore.formats.pieces import DecodedTokens
from packcore.formats.reading import SLAB_TOKENS, read_head
from packcore.protocols import TokenFile
from packcore.rawfiles import broken, file_bytes

__all__ = ["Records", "find", "open_files", "read_feature"]

_MAGIC = bytes.fromhex("83af70d10d884a3f")
_FEATURES = (b"inputs", b"input_ids", b"tokens", b"text")
_RECORDS_A_READ = 256
_INT32 = np.dtype("<i4")


@dataclass(frozen=True, slots=True)
class Records:
    """Some records of a file, one behind the other."""

    first: int
    """The first record."""
    last: int
    """The one behind the last."""
    dtype: np.dtype[Any] | None
    """Of bare tokens; None for records that are a tf.Example."""

    def tokens(self, path: str) -> npt.NDArray[Any]:
        """Returns all tokens, `(num_tokens,)`."""
        parts = list(self._documents(path))
        return np.concatenate(parts) if parts else np.empty(0, self.dtype or _INT32)

    def starts(self, path: str) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, ascending."""
        sizes = np.array([len(document) for document in self._documents(path)], np.int64)
        return np.cumsum(sizes) - sizes

    def _documents(self, path: str) -> Iterator[npt.NDArray[Any]]:
        for index, record in _read_records(path, self.first, self.last):
            yield _decode(path, index, record, self.dtype)


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns `path` if it begins as an ArrayRecord file does."""
    return path if read_head(path).startswith(_MAGIC) else None


def open_files(paths: Sequence[str], options: Options) -> Iterator[TokenFile]:
    """Yields the tokens of each file, a few million at a time."""
    for path in paths:
        yield from _open(path, options)


def _open(path: str, options: Options) -> Iterator[TokenFile]:
    file_bytes(path)
    count = _count_records(path)
    if not count:
        return
    dtype = _choose_dtype(path, options)
    first = num_tokens = 0
    for index, record in _read_records(path, 0, count):
        num_tokens += len(_decode(path, index, record, dtype))
        if num_tokens >= SLAB_TOKENS or index == count - 1:
            yield DecodedTokens(
                path=path,
                dtype=dtype or _INT32,
                num_tokens=num_tokens,
                decoder=Records(first, index + 1, dtype),
                count=index + 1 - first,
            )
            first, num_tokens = index + 1, 0


def _choose_dtype(path: str, options: Options) -> np.dtype[Any] | None:
    """Returns the dtype of bare tokens, None if the first record is a tf.Example."""
    _, record = next(_read_records(path, 0, 1))
    if read_feature(record) is not None:
        return None
    if options.dtype is None:
        raise ArgumentError(
            f"dtype must be named for {path}: its records are not a tf.Example with a feature "
            f"{', '.join(name.decode() for name in _FEATURES)}. If they are bare tokens, use "
            "packcore.open(..., dtype=...).",
            name="dtype",
        )
    return options.dtype


def _decode(path: str, index: int, record: bytes, dtype: np.dtype[Any] | None) -> npt.NDArray[Any]:
    if dtype is None:
        found = read_feature(record)
        if found is None or (len(found) and not 0 <= found.min() <= found.max() < 2**31):
            raise broken(
                path,
                f"has a record {index} that is not a tf.Example with ids below 2**31, as record 0 "
                "is.",
                expected="a tf.Example",
                got=record[:32],
            )
        return found.astype(_INT32)
    if len(record) % dtype.itemsize:
        raise broken(
            path,
            f"has {len(record)} bytes in record {index}; expected a multiple of {dtype.itemsize}, "
            f"as dtype is {dtype}.",
            expected=dtype.itemsize,
            got=len(record),
        )
    return np.frombuffer(record, dtype)


def _reader(path: str) -> Any:
    module = import_extra(
        "array_record.python.array_record_module",
        extra="arrayrecord",
        needed_for="An ArrayRecord file",
    )
    return module.ArrayRecordReader(path)


def _count_records(path: str) -> int:
    try:
        return int(_reader(path).num_records())
    except PackcoreError:
        raise
    except Exception as error:  # whatever array_record raises on a damaged file
        raise FormatError(f"{path} is damaged: {error}.", path=path) from error


def _read_records(path: str, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Yields (number, record) for records [first, last)."""
    reader = _reader(path)
    for start in range(first, last, _RECORDS_A_READ):
        stop = min(last, start + _RECORDS_A_READ)
        try:
            records = reader.read(start, stop)
        except Exception as error:  # whatever array_record raises on a damaged file
            raise FormatError(f"{path} is damaged: {error}.", path=path) from error
        yield from enumerate(records, start)


def read_feature(record: bytes) -> npt.NDArray[np.int64] | None:
    """Returns the int64 list of tokens of a tf.Example; None if it is something else.

    Of the protocol buffer only what is needed is read: Example.features (field 1), its map
    entries (1) of a name (1) and a feature (2), whose int64_list (3) has packed values (1).

    Examples:
        >>> read_feature(bytes.fromhex("0a130a110a06696e7075747312071a050a03010203"))
        array([1, 2, 3])
    """
    lists = {}
    try:
        for features in _fields(record, 1):
            for entry in _fields(features, 1):
                (name,), (feature,) = _fields(entry, 1), _fields(entry, 2)
                values = [part for numbers in _fields(feature, 3) for part in _fields(numbers, 1)]
                if _fields(feature, 3):
                    lists[name] = _varints(b"".join(values))
    except (ValueError, IndexError):
        return None
    return next((lists[name] for name in _FEATURES if name in lists), None)


def _fields(message: bytes, wanted: int) -> list[bytes]:
    """Returns the values of one field; a number that is not packed comes as its own bytes."""
    found, at = [], 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 2:  # noqa: PLR2004 - wire type 2: a length, then so many bytes
            size, at = _varint(message, at)
            stop = at + size
        elif key & 7 == 0:
            _, stop = _varint(message, at)
        else:
            stop = at + {1: 8, 5: 4}.get(key & 7, len(message))
        if stop > len(message):
            raise ValueError(stop)
        if key >> 3 == wanted:
            found.append(message[at:stop])
        at = stop
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns the number at `at` and where it ends."""
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:  # noqa: PLR2004 - the highest bit says that more follows
            return number, at
        if shift > 63:  # noqa: PLR2004 - no number is longer than 64 bits
            raise ValueError(shift)


def _varints(packed: bytes) -> npt.NDArray[np.int64]:
    """Returns the packed numbers, all at once: `(num_numbers,)`."""
    data = np.frombuffer(packed, np.uint8)
    is_last = data < 128  # noqa: PLR2004 - the highest bit says that more follows
    if len(data) and not is_last[-1]:
        raise ValueError(len(data))
    ends = np.flatnonzero(is_last)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))[: len(ends)]
    nth = np.arange(len(data)) - np.repeat(starts, np.diff(ends, prepend=-1))
    if len(nth) and nth.max() > 9:  # noqa: PLR2004 - no number is longer than 10 bytes
        raise ValueError(int(nth.max()))
    parts = (data & 127).astype(np.uint64) << (7 * nth).astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64) if len(ends) else np.empty(0, np.int64)
