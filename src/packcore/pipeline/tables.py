"""Reads a column of Parquet and Arrow files in slices, and turns a slice into documents.

The only module that knows pyarrow. A slice crosses between processes as an Arrow stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.extras import import_extra
from packcore.pipeline.inputs import InputFile

__all__ = ["Rows", "parse_ids", "parse_texts", "read_rows"]

_FILE_MAGIC = b"ARROW1"
"""What an Arrow IPC file begins with; the stream format, which save_to_disk writes, has none."""


_MAX_ROWS = 2**16
"""Rows of a slice, where they are tiny."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A slice of one column."""

    num_rows: int
    payload: bytes
    """An Arrow stream of it."""
    done: float
    """How much of the file is read with it, in [0, 1]."""


def read_rows(file: InputFile, start: int, column: str, num_bytes: int) -> Iterator[Rows]:
    """Yields the rows of a file from row `start` on, in slices of about `num_bytes` bytes.

    Raises:
        MissingExtraError: pyarrow is not installed.
        ValueError: the file has no such column.
    """
    pyarrow = import_extra("pyarrow", extra="parquet", needed_for=f"Reading {file.path}")
    read = _read_parquet if file.kind == "parquet" else _read_arrow
    for batch, done in read(file.path, start, column, num_bytes):
        step = max(1, batch.num_rows * num_bytes // max(1, batch.nbytes))
        for low in range(0, batch.num_rows, step):
            part = batch.slice(low, step)
            sink = pyarrow.BufferOutputStream()
            with pyarrow.ipc.new_stream(sink, part.schema) as writer:
                writer.write_batch(part)
            yield Rows(part.num_rows, sink.getvalue().to_pybytes(), done)


def _read_parquet(
    path: str, start: int, column: str, num_bytes: int
) -> Iterator[tuple[Any, float]]:
    parquet = import_extra("pyarrow.parquet", extra="parquet", needed_for=f"Reading {path}")
    # Buffered: otherwise the whole column of a row group is read at once.
    with parquet.ParquetFile(path, buffer_size=num_bytes, pre_buffer=False) as table:
        _check_column(path, column, table.schema_arrow.names)
        counts = [table.metadata.row_group(i).num_rows for i in range(table.num_row_groups)]
        stops = np.cumsum([0, *counts])
        first = int(np.searchsorted(stops, start, side="right")) - 1
        at = int(stops[first])
        groups = list(range(first, len(counts)))
        size = _rows_of(table.metadata, num_bytes)
        batches = table.iter_batches(size, groups, columns=[column], use_threads=False)
        for batch in batches if groups else ():
            stop = at + batch.num_rows
            if stop > start:
                yield batch.slice(max(0, start - at)), stop / int(stops[-1])
            at = stop


def _rows_of(metadata: Any, num_bytes: int) -> int:
    """Returns how many rows have about `num_bytes` bytes in all columns together."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    total: int = sum(group.total_byte_size for group in groups)
    num_rows: int = metadata.num_rows
    return max(1, min(_MAX_ROWS, num_bytes * num_rows // max(1, total)))


def _read_arrow(path: str, start: int, column: str, num_bytes: int) -> Iterator[tuple[Any, float]]:
    pyarrow = import_extra("pyarrow", extra="parquet", needed_for=f"Reading {path}")
    del num_bytes  # a batch is read as it was written
    with pyarrow.OSFile(path) as file:
        size = max(1, file.size())
        is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        file.seek(0)
        reader = pyarrow.ipc.open_file(file) if is_file else pyarrow.ipc.open_stream(file)
        _check_column(path, column, reader.schema.names)
        at = 0
        for batch in _batches(reader, is_file):
            stop = at + batch.num_rows
            if stop > start:
                yield batch.select([column]).slice(max(0, start - at)), min(1.0, file.tell() / size)
            at = stop


def _batches(reader: Any, is_file: bool) -> Iterator[Any]:
    if is_file:
        return (reader.get_batch(index) for index in range(reader.num_record_batches))
    return iter(reader)


def _check_column(path: str, column: str, names: list[str]) -> None:
    if column not in names:
        raise ValueError(f"there is no column {column!r}; {path} has {', '.join(names)}")


def _column(payload: bytes) -> Any:
    pyarrow = import_extra("pyarrow", extra="parquet", needed_for="Reading a table")
    with pyarrow.ipc.open_stream(payload) as reader:
        return reader.read_all().column(0).combine_chunks()


def parse_texts(payload: bytes) -> list[Any]:
    """Returns what each row of a slice holds: a string, if the column has text."""
    values: list[Any] = _column(payload).to_pylist()
    return values


def parse_ids(payload: bytes) -> list[npt.NDArray[Any] | ValueError | None]:
    """Returns each row's list of numbers as an array, None for a row without one.

    A row with a null among its numbers is a ValueError that says so.

    Raises:
        ValueError: the column is not one of lists of numbers.
    """
    pyarrow = import_extra("pyarrow", extra="parquet", needed_for="Reading a table")
    column = _column(payload)
    if isinstance(column, pyarrow.ChunkedArray):  # what an empty slice comes as
        column = pyarrow.concat_arrays(column.chunks or [pyarrow.array([], column.type)])
    kinds = pyarrow.types
    if kinds.is_fixed_size_list(column.type):
        column = column.cast(pyarrow.large_list(column.type.value_type))
    if not (kinds.is_list(column.type) or kinds.is_large_list(column.type)):
        raise ValueError(f"the column holds {column.type}, not lists of numbers")
    if not kinds.is_integer(column.type.value_type):
        raise ValueError(f"the column holds {column.type}, not lists of integers")
    nulls = np.flatnonzero(column.values.is_null().to_numpy(zero_copy_only=False))
    flat = column.values.fill_null(0) if len(nulls) else column.values
    values = flat.to_numpy(zero_copy_only=False)
    offsets = column.offsets.to_numpy()
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    rows: list[npt.NDArray[Any] | ValueError | None] = [
        values[low:high] if there else None
        for low, high, there in zip(offsets[:-1], offsets[1:], valid, strict=True)
    ]
    for row, index in _first_nulls(nulls, offsets):
        if valid[row]:
            what = f"got null at index {index}"
            rows[row] = ValueError(f"the ids must be a flat list of integers; {what}")
    return rows


def _first_nulls(
    nulls: npt.NDArray[np.int64], offsets: npt.NDArray[Any]
) -> Iterator[tuple[int, int]]:
    """Yields the rows with a null between their offsets, and where in the row the first one is."""
    inside = nulls[(nulls >= offsets[0]) & (nulls < offsets[-1])]
    rows = np.searchsorted(offsets, inside, side="right") - 1
    for row, first in zip(*np.unique(rows, return_index=True), strict=True):
        yield int(row), int(inside[first] - offsets[row])
