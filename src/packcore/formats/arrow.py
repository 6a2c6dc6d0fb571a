"""Hugging Face datasets: folders of `save_to_disk`, Arrow files and Parquet files, with pyarrow.

The tokens are a column of lists of integers, `input_ids` or `tokens`; each row is a document. In
an Arrow file that is not compressed the lists of a record batch lie one behind the other, so that
after the first look, which needs pyarrow, they are mapped like any plain tokens. What is compressed
is decoded a record batch or a row group at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import FormatError
from packcore.extras import import_extra
from packcore.formats.footer import count_values
from packcore.formats.options import Options
from packcore.formats.pieces import DecodedTokens
from packcore.formats.reading import read_head, read_json
from packcore.formats.spans import PlainTokens
from packcore.protocols import TokenFile
from packcore.rawfiles import broken, file_bytes, list_folder, map_array

__all__ = ["Batch", "ListDocuments", "RowGroup", "find", "open_files"]

_STATE = "state.json"
_COLUMNS = ("input_ids", "tokens")
_ARROW_FILE = b"ARROW1"
_PARQUET = b"PAR1"
_STREAM = b"\xff\xff\xff\xff"
_LARGEST_SCHEMA = 2**24
_FARTHEST_ROOT = 64
_MOST_TOKENS_A_BYTE = 4096
"""In a compressed file; where its statistics say more, they are not believed."""


@dataclass(frozen=True, slots=True)
class ListDocuments:
    """Documents as lists, whose offsets in tokens lie in an Arrow file."""

    path: str
    """The file."""
    offset: int
    """The byte of the first list's offset."""
    dtype: np.dtype[Any]
    """Of the offsets."""
    num_documents: int
    """How many lists."""

    def starts(self, tokens: TokenFile) -> npt.NDArray[np.int64]:  # noqa: ARG002 - the protocol's
        """Returns where they begin, `(num_documents,)`, ascending."""
        if not self.num_documents:
            return np.empty(0, np.int64)
        starts = map_array(self.path, self.dtype, self.offset, self.num_documents)
        return starts.astype(np.int64) - int(starts[0])


@dataclass(frozen=True, slots=True)
class Batch:
    """A compressed record batch of an Arrow file."""

    column: str
    """The column of tokens."""
    offset: int
    """The byte where its message begins."""

    def tokens(self, path: str) -> npt.NDArray[Any]:
        """Returns all tokens, `(num_tokens,)`."""
        return _values(path, self._lists(path))

    def starts(self, path: str) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, ascending."""
        return _list_starts(path, self._lists(path))

    def _lists(self, path: str) -> Any:
        pyarrow = _import_pyarrow()
        with _reading(path), pyarrow.memory_map(path) as source:
            schema = _open_reader(pyarrow, source, path).schema
            source.seek(self.offset)
            message = pyarrow.ipc.read_message(source)
            batch = pyarrow.ipc.read_record_batch(message, schema)
            return batch.column(schema.names.index(self.column))


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a Parquet file."""

    column: str
    """The column of tokens."""
    index: int
    """Which row group."""

    def tokens(self, path: str) -> npt.NDArray[Any]:
        """Returns all tokens, `(num_tokens,)`."""
        lists = self._lists(path)
        parts = [_values(path, chunk) for chunk in lists.chunks]
        return np.concatenate(parts) if parts else np.empty(0, _value_dtype(path, lists.type))

    def starts(self, path: str) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, ascending."""
        at, found = 0, [np.empty(0, np.int64)]
        for chunk in self._lists(path).chunks:
            found.append(_list_starts(path, chunk) + at)
            at += len(_values(path, chunk))
        return np.concatenate(found)

    def _lists(self, path: str) -> Any:
        parquet = import_extra("pyarrow.parquet", extra="parquet", needed_for="A Parquet file")
        with _reading(path), parquet.ParquetFile(path) as file:
            return file.read_row_group(self.index, columns=[self.column]).column(0)


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns a folder of `save_to_disk`, or an Arrow or Parquet file."""
    if os.path.isdir(path):
        names = set(list_folder(path))
        return path if {_STATE, "dataset_info.json"} <= names else None
    head = read_head(path)
    if head.startswith((_ARROW_FILE, _PARQUET)):
        return path
    return path if _is_stream(head) else None


def _is_stream(head: bytes) -> bool:
    """Says whether a stream begins here: a marker, the size of a message, its root's place."""
    size, root = (int.from_bytes(head[at : at + 4], "little") for at in (4, 8))
    is_size = 0 < size < _LARGEST_SCHEMA and size % 8 == 0
    return head.startswith(_STREAM) and is_size and 0 < root < _FARTHEST_ROOT and root % 4 == 0


def open_files(paths: Sequence[str], options: Options) -> Iterator[TokenFile]:  # noqa: ARG001
    """Yields the tokens of each record batch or row group."""
    for path in paths:
        for file in _list_files(path) if os.path.isdir(path) else [path]:
            is_parquet = read_head(file).startswith(_PARQUET)
            yield from _open_parquet(file) if is_parquet else _open_arrow(file)


def _list_files(folder: str) -> list[str]:
    """Returns the files of `save_to_disk`, in the order of its state."""
    state = os.path.join(folder, _STATE)
    record = read_json(state)
    entries = record.get("_data_files") if isinstance(record, dict) else None
    names = [
        entry.get("filename") if isinstance(entry, dict) else None
        for entry in (entries if isinstance(entries, list) else [None])
    ]
    for name in names:
        if not isinstance(name, str) or os.path.basename(name) != name or name in ("", ".", ".."):
            raise FormatError(
                f"{state} is damaged: expected _data_files with file names; got {name!r}.",
                path=state,
                got=name,
            )
    return [os.path.join(folder, str(name)) for name in names]


def _import_pyarrow() -> Any:
    return import_extra("pyarrow", extra="parquet", needed_for="An Arrow file")


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turns what pyarrow raises on a damaged file into a FormatError."""
    pyarrow = _import_pyarrow()
    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, IndexError, EOFError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is damaged: {error}", path=path) from error


def _open_reader(pyarrow: Any, source: Any, path: str) -> Any:
    is_file = read_head(path).startswith(_ARROW_FILE)
    return pyarrow.ipc.open_file(source) if is_file else pyarrow.ipc.open_stream(source)


def _open_arrow(path: str) -> list[TokenFile]:
    pyarrow = _import_pyarrow()
    size = file_bytes(path)
    with _reading(path), pyarrow.memory_map(path) as source:
        whole = source.read_buffer(size)
        reader = _open_reader(pyarrow, pyarrow.BufferReader(whole), path)
        column = _choose_column(path, reader.schema)
        return list(_batches(pyarrow, path, whole, reader.schema, column))


def _batches(pyarrow: Any, path: str, whole: Any, schema: Any, column: str) -> Iterator[TokenFile]:
    """Yields each record batch: mapped if its buffers lie in the file, else decoded."""
    place = schema.names.index(column)
    for offset, batch in _messages(pyarrow, path, whole, schema):
        lists = batch.column(place)
        if not len(lists):
            continue
        values, offsets = _values(path, lists), lists.offsets.to_numpy()
        at = _place(whole, values), _place(whole, offsets)
        if at[0] is None or at[1] is None:
            yield DecodedTokens(
                path=path,
                dtype=values.dtype,
                num_tokens=len(values),
                decoder=Batch(column, offset),
                count=len(lists),
            )
        else:
            yield PlainTokens(
                path=path,
                dtype=values.dtype,
                num_tokens=len(values),
                offset=at[0],
                documents=ListDocuments(path, at[1], offsets.dtype, len(lists)),
            )


def _place(whole: Any, array: npt.NDArray[Any]) -> int | None:
    """Returns the byte of the file that an array begins at; None if it lies elsewhere."""
    if not array.nbytes:
        return 0
    first = int(array.ctypes.data) - int(whole.address)
    return first if 0 <= first <= whole.size - array.nbytes else None


def _messages(pyarrow: Any, path: str, whole: Any, schema: Any) -> Iterator[tuple[int, Any]]:
    """Yields the byte where each record batch's message begins, and the batch."""
    source = pyarrow.BufferReader(whole)
    if read_head(path).startswith(_ARROW_FILE):
        source.seek(8)
    while source.tell() < whole.size:
        offset = source.tell()
        try:
            message = pyarrow.ipc.read_message(source)
        except EOFError:  # the end of the stream
            return
        if message.type == "record batch":
            yield offset, pyarrow.ipc.read_record_batch(message, schema)
        elif message.type != "schema":
            raise broken(
                path,
                f"holds a {message.type}; expected record batches of plain columns.",
                expected="record batch",
                got=message.type,
                offset=offset,
            )


def _choose_column(path: str, schema: Any) -> str:
    """Returns the column of tokens."""
    for name in _COLUMNS:
        if name in schema.names:
            _value_dtype(path, schema.field(name).type)
            return name
    raise FormatError(
        f"{path} has the columns {schema.names}; expected a column {' or '.join(_COLUMNS)} of "
        "lists of integers. Rename the column, or tokenize first.",
        path=path,
        expected=_COLUMNS,
        got=schema.names,
    )


def _value_dtype(path: str, kind: Any) -> np.dtype[Any]:
    types = import_extra("pyarrow.types", extra="parquet", needed_for="An Arrow file")
    is_list = types.is_list(kind) or types.is_large_list(kind)
    if not is_list or not types.is_integer(kind.value_type):
        raise FormatError(
            f"{path} has a column of {kind}; expected lists of integers.",
            path=path,
            expected="list<int32>",
            got=str(kind),
        )
    dtype: np.dtype[Any] = np.dtype(kind.value_type.to_pandas_dtype()).newbyteorder("<")
    return dtype


def _values(path: str, lists: Any) -> npt.NDArray[Any]:
    """Returns the tokens of an array of lists, without a copy."""
    dtype = _value_dtype(path, lists.type)
    values = lists.values
    if lists.null_count or values.null_count:
        raise broken(
            path,
            f"has {lists.null_count} rows and {values.null_count} tokens that are null; expected "
            "none. Fill or drop them.",
            expected=0,
            got=lists.null_count + values.null_count,
        )
    with _reading(path):
        lists.validate(full=True)
        if not len(lists):
            return np.empty(0, dtype)
        first, last = lists.offsets[0].as_py(), lists.offsets[len(lists)].as_py()
        found: npt.NDArray[Any] = values[first:last].to_numpy()
        return found


def _list_starts(path: str, lists: Any) -> npt.NDArray[np.int64]:
    _values(path, lists)
    if not len(lists):
        return np.empty(0, np.int64)
    offsets = np.array(lists.offsets.to_numpy(), np.int64)
    return offsets[:-1] - int(offsets[0])


def _open_parquet(path: str) -> Iterator[TokenFile]:
    parquet = import_extra("pyarrow.parquet", extra="parquet", needed_for="A Parquet file")
    size = file_bytes(path)
    with _reading(path), parquet.ParquetFile(path) as file:
        column = _choose_column(path, file.schema_arrow)
        count = file.metadata.num_row_groups
        dtype = _value_dtype(path, file.schema_arrow.field(column).type)
        num_rows = [file.metadata.row_group(index).num_rows for index in range(count)]
    hints = count_values(path, column)
    known = hints if len(hints) == count else [None] * count
    most = size * _MOST_TOKENS_A_BYTE
    for index in range(count):
        rows, num_tokens = num_rows[index], known[index]
        decoder = RowGroup(column, index)
        if num_tokens is None or not (0 <= num_tokens <= most and 0 <= rows <= most):
            num_tokens, rows = len(decoder.tokens(path)), len(decoder.starts(path))
        yield DecodedTokens(
            path=path, dtype=dtype, num_tokens=num_tokens, decoder=decoder, count=rows
        )
