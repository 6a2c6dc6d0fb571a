"""litdata's optimized datasets: a folder of chunks with an `index.json`.

A chunk is u32 N, u32 offsets[N + 1] from the start of the file, then N items, each a document. With
a TokensLoader they are bare tokens; without one each has a u32 size before it. Offsets wrap around
in files above 4 GiB: only their differences are believed, and the last one has to be the size of
the file (source: `streaming/writer.py` and `streaming/item_loader.py` of litdata).
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import FormatError, NoDataError
from packcore.formats.options import Options
from packcore.formats.pieces import PiecedTokens
from packcore.formats.reading import read_json
from packcore.formats.spans import PlainTokens
from packcore.protocols import TokenFile
from packcore.rawfiles import broken, file_bytes, map_array, stamp

__all__ = ["ItemTable", "find", "open_files"]

_INDEX = "index.json"
_TENSORS = {11: "u1", 12: "i1", 13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8"}
_TENSORS[20] = "<u2"
_ARRAYS = dict(enumerate(("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8")))
_KINDS = {"no_header_tensor": _TENSORS, "no_header_numpy": _ARRAYS}


@dataclass(frozen=True, slots=True)
class ItemTable:
    """The items of a chunk."""

    itemsize: int
    """Bytes of a token."""
    prefix: int
    """Bytes before the tokens of each item: 4 if their size stands there, else 0."""
    num_documents: int | None = None
    """The items, once they were counted."""

    def read(self, path: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns each item's first byte and how many tokens it has, both `(num_items,)`."""
        offsets, sizes = _read_offsets(path)
        sizes -= self.prefix
        bad = (sizes < 0) | (sizes % self.itemsize != 0)
        if self.prefix:
            bad |= _read_prefixes(path, offsets) != sizes
        if bad.any():
            index = int(np.argmax(bad))
            raise broken(
                path,
                f"is damaged: item {index} has {sizes[index]} bytes; expected a multiple of "
                f"{self.itemsize}, and the size that stands before it.",
                expected=self.itemsize,
                got=int(sizes[index]),
                offset=int(offsets[index]),
            )
        return offsets + self.prefix, sizes // self.itemsize

    def starts(self, tokens: TokenFile) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, ascending."""
        _, counts = self.read(tokens.path)
        return np.cumsum(counts) - counts


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns the folder of an index, or a chunk that stands beside one."""
    is_folder = os.path.isdir(path)
    folder = path if is_folder else os.path.dirname(path) or "."
    if not is_folder and not path.endswith((_INDEX, ".bin")):
        return None
    try:
        record = _read_index(os.path.join(folder, _INDEX))
    except (FormatError, NoDataError):
        return None
    if not isinstance(record, dict) or not {"chunks", "config"} <= set(record):
        return None
    return path if path.endswith(".bin") and os.path.isfile(path) else folder


def open_files(paths: Sequence[str], options: Options) -> Iterator[TokenFile]:  # noqa: ARG001
    """Yields the tokens of each chunk, a folder's in the order of its index."""
    for path in paths:
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        index = os.path.join(folder, _INDEX)
        record = _read_index(index)
        dtype, has_prefix = _read_config(index, record["config"])
        chunks = _read_chunks(index, record["chunks"])
        if path != folder:
            name = os.path.basename(path)
            chunks = [chunk for chunk in chunks if chunk["filename"] == name]
        for chunk in chunks:
            file = os.path.join(folder, chunk["filename"])
            yield _open(index, file, chunk, dtype, has_prefix=has_prefix)


def _read_index(path: str) -> Any:
    """Returns what the index holds; it is asked for once a chunk where chunks are listed."""
    return _cached_index(*stamp(path))


@functools.lru_cache(maxsize=4)
def _cached_index(path: str, _size: int, _time: int) -> Any:
    return read_json(path)


def _read_config(index: str, config: Any) -> tuple[np.dtype[Any], bool]:
    """Returns the dtype, and whether a size stands before each item."""
    if not isinstance(config, dict):
        raise FormatError(f"{index} is damaged: its config is {config!r}.", path=index)
    for name in ("compression", "encryption"):
        if config.get(name):
            raise FormatError(
                f"{index} says {name} {config[name]!r}, which packcore does not read. Write the "
                "chunks without it.",
                path=index,
                expected=None,
                got=config[name],
            )
    layout = config.get("data_format")
    kind, _, number = str(layout[0] if isinstance(layout, list) and layout else "").partition(":")
    known = _KINDS.get(kind, {}).get(int(number) if number.isdecimal() and len(number) < 4 else -1)  # noqa: PLR2004
    if known is None or not isinstance(layout, list) or len(layout) != 1:
        raise FormatError(
            f"{index} has the data_format {layout!r}; expected one row of integers an item, such "
            "as ['no_header_tensor:16'].",
            path=index,
            expected=["no_header_tensor:16"],
            got=layout,
        )
    loader = config.get("item_loader")
    return np.dtype(known), loader is not None and loader != "TokensLoader"


def _read_chunks(index: str, chunks: Any) -> list[dict[str, Any]]:
    is_list = isinstance(chunks, list) and all(isinstance(chunk, dict) for chunk in chunks)
    for chunk in chunks if is_list else [{}]:
        name = chunk.get("filename")
        if not isinstance(name, str) or os.path.basename(name) != name or name in ("", ".", ".."):
            raise FormatError(
                f"{index} is damaged: expected a list of chunks, each with a filename in its "
                f"folder; got {name!r}.",
                path=index,
                got=name,
            )
    found: list[dict[str, Any]] = chunks
    return found


def _open(
    index: str, path: str, chunk: dict[str, Any], dtype: np.dtype[Any], *, has_prefix: bool
) -> TokenFile:
    table = ItemTable(dtype.itemsize, 4 * has_prefix)
    offsets, counts = table.read(path)
    table = dataclasses.replace(table, num_documents=len(counts))
    num_tokens = int(counts.sum())
    said = {"chunk_bytes": file_bytes(path), "chunk_size": len(counts), "dim": num_tokens}
    for name, got in said.items():
        # A dim is null without a TokensLoader, and also where the first document is empty.
        if chunk.get(name) not in (None, got):
            raise broken(
                path,
                f"disagrees with {index}: {name} is {chunk[name]} there, {got} in the chunk. Copy "
                "both again.",
                expected=chunk[name],
                got=got,
            )
    if has_prefix:
        return PiecedTokens(
            path=path, dtype=dtype, num_tokens=num_tokens, table=table, num_pieces=len(counts)
        )
    first = int(offsets[0]) if len(offsets) else file_bytes(path)
    return PlainTokens(path=path, dtype=dtype, num_tokens=num_tokens, offset=first, documents=table)


def _read_offsets(path: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns each item's first byte and its size in bytes, unwrapped."""
    size = file_bytes(path)
    count = int(map_array(path, np.dtype("<u4"), 0, 1)[0])
    stored = map_array(path, np.dtype("<u4"), 4, count + 1)
    # Differences modulo 2**32: an item is smaller than that, a chunk may be larger.
    sizes = (stored[1:] - stored[:-1]).astype(np.int64)
    offsets = np.cumsum(sizes) - sizes + int(stored[0])
    last = int(stored[0]) + int(sizes.sum())
    if stored[0] != 4 * (count + 2) or last != size:
        raise broken(
            path,
            f"does not add up: its {count} items begin at byte {stored[0]} and end at {last}; "
            f"expected {4 * (count + 2)} and {size}, the size of the file. Copy it again.",
            expected=size,
            got=last,
            offset=4,
        )
    return offsets, sizes


def _read_prefixes(path: str, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the u32 that stands at each offset."""
    content = map_array(path, np.dtype(np.uint8), 0, file_bytes(path))
    inside = np.minimum(offsets, max(0, len(content) - 4))
    places = inside[:, None] + np.arange(4)
    return content[places].copy().view("<u4").ravel().astype(np.int64)
