"""levanter's and marin's caches: a folder with a `shard_ledger.json`, tokens in zarr v3 arrays.

`<field>/offsets` has the number of rows first, then each row's end in tokens; `<field>/data` has
the tokens. Both arrays are far longer than what is in them. A chunk that is missing reads as zeros
in zarr, so that each one that is needed is looked for when the cache is opened (source:
`store/jagged_array.py` and `store/cache.py` of levanter).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import FormatError
from packcore.extras import import_extra
from packcore.formats.options import Options
from packcore.formats.pieces import DecodedTokens
from packcore.formats.reading import SLAB_TOKENS, read_json
from packcore.protocols import TokenFile
from packcore.rawfiles import broken, file_bytes, map_array

__all__ = ["Grid", "ZarrSpan", "find", "open_files"]

_LEDGER = "shard_ledger.json"
_FIELDS = ("input_ids", "tokens")
_CHUNKS_A_SPAN = 16
_MISSING = np.uint64(2**64 - 1)


@dataclass(frozen=True, slots=True)
class Grid:
    """How a zarr array of one dimension lies in files."""

    folder: str
    """The array."""
    length: int
    """Its numbers, written or not."""
    shard_size: int
    """Numbers a file."""
    chunk_size: int
    """Numbers a chunk; as many as a file's, unless chunks are packed into shards."""

    def file(self, number: int) -> str:
        """Returns the file that holds a number of the array."""
        return os.path.join(self.folder, "c", str(number // self.shard_size))

    def check(self, count: int) -> None:
        """Refuses the array if a chunk of its first `count` numbers is missing.

        Raises:
            FormatError: one is.
        """
        for first in range(0, min(count, self.length), self.shard_size):
            path = self.file(first)
            if not os.path.isfile(path):
                raise self._missing(first)
            if self.chunk_size < self.shard_size:
                num_chunks = self.shard_size // self.chunk_size
                needed = -(-min(self.shard_size, count - first) // self.chunk_size)
                at = file_bytes(path) - 16 * num_chunks - 4  # a checksum of 4 bytes behind it
                index = map_array(path, np.dtype("<u8"), max(0, at), 2 * num_chunks)
                bad = index[: 2 * needed : 2] == _MISSING
                if bad.any():
                    raise self._missing(first + int(np.argmax(bad)) * self.chunk_size)

    def _missing(self, number: int) -> FormatError:
        return broken(
            self.file(number),
            f"misses the chunk from number {number} on, which zarr would read as zeros. Copy the "
            "cache again, or make it again.",
            expected="a chunk",
            got=None,
        )


@dataclass(frozen=True, slots=True)
class ZarrSpan:
    """Some chunks of the tokens, and the documents that begin in them."""

    data: str
    """The array of tokens."""
    start: int
    """The first token."""
    stop: int
    """The one behind the last."""
    offsets: str
    """The array of offsets."""
    first_row: int
    """The first document that begins here."""
    last_row: int
    """The one behind the last."""

    def tokens(self, path: str) -> npt.NDArray[Any]:
        """Returns all tokens, `(num_tokens,)`."""
        return _read(self.data, self.start, self.stop, path)

    def starts(self, path: str) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, ascending."""
        return _row_starts(self.offsets, self.first_row, self.last_row, path) - self.start


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns the folder of a ledger."""
    folder = os.path.dirname(path) if os.path.basename(path) == _LEDGER else path
    return folder if os.path.isfile(os.path.join(folder, _LEDGER)) else None


def open_files(paths: Sequence[str], options: Options) -> Iterator[TokenFile]:  # noqa: ARG001
    """Yields the tokens of each cache, some chunks at a time."""
    for folder in paths:
        yield from _open(folder)


def _open(folder: str) -> Iterator[TokenFile]:
    num_rows, num_tokens, field = _read_ledger(folder)
    data = _read_grid(os.path.join(folder, field, "data"))
    offsets = _read_grid(os.path.join(folder, field, "offsets"))
    offsets.check(num_rows + 1)
    data.check(num_tokens)
    ledger = os.path.join(folder, _LEDGER)
    stored = int(_read(offsets.folder, 0, 1, offsets.file(0))[0])
    if stored != num_rows:
        raise _disagree(ledger, "rows", num_rows, stored)
    step = data.chunk_size * math.gcd(_CHUNKS_A_SPAN, data.shard_size // data.chunk_size)
    edges = np.arange(0, num_tokens + step, step, dtype=np.int64)
    rows = _count_rows(offsets, num_rows, num_tokens, edges, ledger)
    dtype = _read(data.folder, 0, 0, data.file(0)).dtype
    for index, start in enumerate(edges[:-1].tolist()):
        is_last = index == len(edges) - 2
        stop = num_tokens if is_last else start + step
        first, last = int(rows[index]), num_rows if is_last else int(rows[index + 1])
        yield DecodedTokens(
            path=data.file(start),
            dtype=dtype,
            num_tokens=stop - start,
            decoder=ZarrSpan(data.folder, start, stop, offsets.folder, first, last),
            count=last - first,
        )


def _read_ledger(folder: str) -> tuple[int, int, str]:
    """Returns the rows, the tokens and the field of tokens."""
    path = os.path.join(folder, _LEDGER)
    record = read_json(path)
    counts = record.get("field_counts") if isinstance(record, dict) else None
    field = next((name for name in _FIELDS if isinstance(counts, dict) and name in counts), None)
    if not isinstance(counts, dict) or field is None:
        raise FormatError(
            f"{path} has the fields {counts!r}; expected one of {', '.join(_FIELDS)}.",
            path=path,
            expected=_FIELDS,
            got=counts,
        )
    if record.get("is_finished") is not True:
        raise FormatError(
            f"{path} says that the cache was never finished. Let levanter finish it first.",
            path=path,
            expected=True,
            got=record.get("is_finished"),
        )
    num_rows, num_tokens = record.get("total_num_rows"), counts[field]
    if not all(type(number) is int and 0 <= number < 2**62 for number in (num_rows, num_tokens)):
        raise FormatError(
            f"{path} is damaged: {num_rows!r} rows and {num_tokens!r} tokens.", path=path
        )
    return num_rows, num_tokens, field


def _read_grid(folder: str) -> Grid:
    """Reads how an array lies in files."""
    path = os.path.join(folder, "zarr.json")
    record = read_json(path)
    try:
        (length,) = record["shape"]
        (shard_size,) = record["chunk_grid"]["configuration"]["chunk_shape"]
        codec = record["codecs"][0]
        chunk_size = shard_size
        if codec["name"] == "sharding_indexed":
            (chunk_size,) = codec["configuration"]["chunk_shape"]
            if codec["configuration"].get("index_location", "end") != "end":
                chunk_size = 0
        sizes = (length, shard_size, chunk_size)
        if not all(type(size) is int and 0 < size < 2**62 for size in sizes):
            raise ValueError(sizes)  # noqa: TRY301 - refused as anything else that is wrong
        if shard_size % chunk_size:
            raise ValueError(sizes)  # noqa: TRY301 - as above
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FormatError(
            f"{path} is not that of a zarr v3 array of one dimension in a regular grid: {error!r}.",
            path=path,
        ) from error
    return Grid(folder, length, shard_size, chunk_size)


def _read(folder: str, start: int, stop: int, path: str) -> npt.NDArray[Any]:
    """Returns numbers [start, stop) of a zarr array."""
    zarr = import_extra("zarr", extra="zarr", needed_for="A cache of levanter")
    try:
        found = np.asarray(zarr.open_array(folder, mode="r")[start:stop])
    except Exception as error:  # whatever zarr and its codecs raise on damaged chunks
        raise FormatError(f"{path} is damaged: {error}.", path=path) from error
    if found.ndim != 1 or found.dtype.kind not in "iu" or len(found) != stop - start:
        raise broken(
            path,
            f"holds {found.shape} numbers of {found.dtype}; expected {stop - start} integers.",
            expected=stop - start,
            got=found.shape,
        )
    return found.astype(found.dtype.newbyteorder("<"), copy=False)


def _row_starts(folder: str, first: int, last: int, path: str) -> npt.NDArray[np.int64]:
    """Returns where rows [first, last) begin: where the rows before them end."""
    # The row before row 0 ends at 0; in its place stands the number of rows.
    starts = _read(folder, first, last, path).astype(np.int64)
    if first == 0 and last:
        starts[0] = 0
    return starts


def _count_rows(
    offsets: Grid, num_rows: int, num_tokens: int, edges: npt.NDArray[np.int64], ledger: str
) -> npt.NDArray[np.int64]:
    """Returns how many rows begin before each edge; checks that they ascend and end rightly."""
    counts, before = np.zeros(len(edges), np.int64), 0
    for first in range(0, num_rows, SLAB_TOKENS):
        last = min(num_rows, first + SLAB_TOKENS)
        starts = _row_starts(offsets.folder, first, last, offsets.file(first))
        if starts[0] < before or (starts[1:] < starts[:-1]).any():
            raise broken(
                offsets.file(first),
                f"is damaged: the ends of rows {first} to {last} do not ascend.",
                expected="ascending ends",
                got=int(starts[0]),
            )
        counts += np.searchsorted(starts, edges)
        before = int(starts[-1])
    end = _read(offsets.folder, num_rows, num_rows + 1, offsets.file(num_rows))
    if num_rows and (int(end[0]) != num_tokens or before > num_tokens):
        raise _disagree(ledger, "tokens", num_tokens, int(end[0]))
    return counts


def _disagree(ledger: str, what: str, said: int, stored: int) -> FormatError:
    return broken(
        ledger,
        f"says {said} {what}, but the offsets beside it say {stored}. Copy the cache again.",
        expected=said,
        got=stored,
    )
