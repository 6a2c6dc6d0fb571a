"""MosaicML's MDS shards: a folder with an `index.json`, samples with columns.

A shard is u32 N, u32 offsets[N + 1] from the start of the file, a JSON text, then the samples. A
sample is a u32 size for each column of variable size, columns sorted by name, then their bytes.
The tokens are a column `tokens` or `input_ids`, as an `ndarray` of one dimension or as bare `bytes`
(of int64, as llm-foundry wrote them until June 2024). An ndarray that is not of a fixed shape is
`[u8 dtype, if the column does not say it] [u8: ndim << 2 | log2 of the shape's width] [shape]` and
the values (source: `base/format/mds/` of mosaicml-streaming).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import ArgumentError, FormatError
from packcore.extras import import_extra
from packcore.formats.options import Options
from packcore.formats.pieces import DecodedTokens, PiecedTokens, copy_pieces
from packcore.formats.reading import read_json
from packcore.protocols import TokenFile
from packcore.rawfiles import broken, file_bytes, map_array

__all__ = ["Column", "ZstdShard", "find", "open_files"]

_INDEX = "index.json"
_COLUMNS = ("tokens", "input_ids")
_CODES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4", 64: "<u8", 65: "<i8"}
_NAMES = {np.dtype(name).name: name for name in _CODES.values()}
_LARGEST_ID = 2**31 - 1
_PART_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Column:
    """Where the tokens are in each sample of a shard."""

    name: str
    """The column's name."""
    sizes: tuple[int | None, ...]
    """Each column's size in bytes in the order of a sample; None if it stands in the sample."""
    place: int
    """Which of them has the tokens."""
    dtype: str
    """The tokens' dtype; "" if each sample says it."""
    kind: str
    """"bytes", "fixed" (an ndarray of a fixed shape) or "ndarray"."""

    def read(self, path: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns each sample's first byte of tokens and how many there are."""
        content = map_array(path, np.dtype(np.uint8), 0, file_bytes(path))
        first, counts, _ = self.find(path, content)
        return first, counts

    def find(
        self, path: str, content: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], np.dtype[Any]]:
        """Returns each sample's first byte of tokens, how many there are, and their dtype.

        Raises:
            FormatError: the sizes in the shard do not add up.
        """
        begins, ends = _read_offsets(path, content)
        starts, sizes = self._locate(path, content, begins, ends)
        name = self.dtype
        if self.kind == "ndarray":
            name, skipped, counts = self._read_arrays(path, content, starts, sizes)
            starts, sizes = starts + skipped, sizes - skipped
        dtype = np.dtype(name or "<i4")
        bad = (sizes < 0) | (sizes % dtype.itemsize != 0)
        if self.kind == "ndarray":
            bad |= counts * dtype.itemsize != sizes
        _check(path, bad, f"has a column {self.name} that is not a row of {dtype}")
        return starts, sizes // dtype.itemsize, dtype

    def _locate(
        self,
        path: str,
        content: npt.NDArray[np.uint8],
        begins: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the first byte of the column and its size, in each sample."""
        head = 4 * self.sizes.count(None)
        _check(path, ends - begins < head, "is too short for the sizes of its columns")
        at, variable = begins + head, 0
        found = at, np.zeros_like(at)
        for place, fixed in enumerate(self.sizes):
            if fixed is None:
                size = _numbers(content, begins + 4 * variable, 4)
                variable += 1
            else:
                size = np.full_like(at, fixed)
            if place == self.place:
                found = at, size
            at = at + size
        _check(path, at != ends, "has columns that do not add up to its size")
        return found

    def _read_arrays(
        self,
        path: str,
        content: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
    ) -> tuple[str, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the dtype, the bytes before the values and the shape of each ndarray."""
        name = self.dtype
        begin = 0 if name else 1
        _check(path, sizes < begin + 2, f"has a column {self.name} that is too short")
        if not name:
            codes = content[starts]
            code = int(codes[0]) if len(codes) else 33
            _check(path, codes != code, f"has a column {self.name} of another dtype")
            name = _CODES.get(code, "")
            _check(path, codes == (code if not name else -1), f"has the ndarray dtype code {code}")
        form = content[starts + begin]
        widths = (1 << (form & 3)).astype(np.int64)
        wrong = (form >> 2 != 1) | (sizes < begin + 1 + widths)
        _check(path, wrong, f"has a column {self.name} that is not of one dimension")
        counts = np.zeros_like(starts)
        for width in (1, 2, 4, 8):
            chosen = widths == width
            counts[chosen] = _numbers(content, starts[chosen] + begin + 1, width)
        return name, begin + 1 + widths, counts


@dataclass(frozen=True, slots=True)
class ZstdShard:
    """A shard that is compressed as a whole."""

    column: Column
    """Where the tokens are in each sample."""
    num_bytes: int
    """Its size when it is not."""

    def tokens(self, path: str) -> npt.NDArray[Any]:
        """Returns all tokens, `(num_tokens,)`."""
        content = self.decompress(path)
        first, counts, dtype = self.column.find(path, content)
        out = np.empty(int(counts.sum()), dtype)
        copy_pieces(path, content, first, counts, 0, out)
        return out

    def starts(self, path: str) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, ascending."""
        _, counts, _ = self.column.find(path, self.decompress(path))
        return np.cumsum(counts) - counts

    def decompress(self, path: str) -> npt.NDArray[np.uint8]:
        """Returns the bytes of the shard.

        Raises:
            FormatError: it is not zstandard, or of another size than the index says.
            MissingExtraError: zstandard is not installed.
        """
        name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        zstd = import_extra(name, extra="zstd", needed_for="A zstd shard of MDS")
        file_bytes(path)
        try:
            with zstd.ZstdFile(path) as file:
                content = _read_most(file, self.num_bytes + 1)
        except (zstd.ZstdError, EOFError) as error:
            raise FormatError(f"{path} is not whole zstandard: {error}.", path=path) from error
        if len(content) != self.num_bytes:
            raise broken(
                path,
                f"decompresses to {len(content)} bytes or more; its index says {self.num_bytes}.",
                expected=self.num_bytes,
                got=len(content),
            )
        return np.frombuffer(content, np.uint8)


def _read_most(stream: Any, size: int) -> bytes:
    """Returns up to `size` bytes; no more memory is taken than there are."""
    parts, left = [], size
    while left and (part := stream.read(min(left, _PART_BYTES))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns the folder of an index of shards."""
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    index = os.path.join(folder, _INDEX)
    is_ours = os.path.isdir(path) or path.endswith((_INDEX, ".mds", ".mds.zstd"))
    if not is_ours or not os.path.isfile(index):
        return None
    try:
        record = read_json(index)
    except FormatError:
        return None
    return folder if isinstance(record, dict) and "shards" in record else None


def open_files(paths: Sequence[str], options: Options) -> Iterator[TokenFile]:
    """Yields the tokens of each shard, in the order of its index."""
    for folder in paths:
        index = os.path.join(folder, _INDEX)
        shards = read_json(index)["shards"]
        for shard in shards if isinstance(shards, list) else [shards]:
            if not isinstance(shard, dict) or shard.get("format") != "mds":
                raise FormatError(
                    f"{index} is not an index of MDS shards: expected objects with the format "
                    f"'mds'; got {shard!r:.200}.",
                    path=index,
                    expected="mds",
                )
            yield _open(index, shard, options)


def _open(index: str, shard: dict[str, Any], options: Options) -> TokenFile:
    column = _read_column(index, shard, options)
    raw, _ = _read_file(index, shard, "raw_data")
    if shard.get("compression") and not os.path.isfile(raw):
        return _open_zstd(index, shard, column)
    content = map_array(raw, np.dtype(np.uint8), 0, file_bytes(raw))
    first, counts, dtype = column.find(raw, content)
    _check_count(index, shard, raw, len(counts))
    if column.kind == "bytes":
        _check_bytes(raw, content, first, counts, options)
    return PiecedTokens(
        path=raw,
        dtype=dtype,
        num_tokens=int(counts.sum()),
        table=column,
        num_pieces=len(counts),
    )


def _open_zstd(index: str, shard: dict[str, Any], column: Column) -> TokenFile:
    if str(shard["compression"]).partition(":")[0] != "zstd":
        raise FormatError(
            f"{index} says compression {shard['compression']!r}; packcore reads zstd. Decompress "
            "the shards first.",
            path=index,
            expected="zstd",
            got=shard["compression"],
        )
    _, num_bytes = _read_file(index, shard, "raw_data")
    path, _ = _read_file(index, shard, "zip_data")
    decoder = ZstdShard(column, num_bytes)
    first, counts, dtype = column.find(path, decoder.decompress(path))
    _check_count(index, shard, path, len(first))
    return DecodedTokens(
        path=path,
        dtype=dtype,
        num_tokens=int(counts.sum()),
        decoder=decoder,
        count=len(counts),
    )


def _check_count(index: str, shard: dict[str, Any], path: str, count: int) -> None:
    if shard.get("samples") != count:
        raise broken(
            path,
            f"has {count} samples, but {index} says {shard.get('samples')!r}. Copy both again.",
            expected=shard.get("samples"),
            got=count,
        )


def _check_bytes(
    path: str,
    content: npt.NDArray[np.uint8],
    first: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    options: Options,
) -> None:
    """Asks for the dtype of bare bytes, unless they look like what llm-foundry wrote."""
    if options.dtype is not None:
        return
    sample = np.empty(min(512, int(counts.sum())), "<i8")
    copy_pieces(path, content, first, counts, 0, sample)
    if ((sample < 0) | (sample > _LARGEST_ID)).any():
        raise ArgumentError(
            f"dtype must be named for {path}: its tokens are bare bytes, and not int64 as "
            "llm-foundry wrote them. Use packcore.open(..., dtype=...).",
            name="dtype",
        )


def _read_file(index: str, shard: dict[str, Any], name: str) -> tuple[str, int]:
    """Returns the path and size of one of a shard's files."""
    info = shard.get(name)
    base, size = (info.get("basename"), info.get("bytes")) if isinstance(info, dict) else (None, 0)
    if not isinstance(base, str) or not isinstance(size, int) or size < 0 or base.startswith("/"):
        raise FormatError(f"{index} is damaged: {name} is {info!r}.", path=index, got=info)
    parts = base.split("/")
    if ".." in parts or not base:
        raise FormatError(f"{index} names a file outside of its folder: {base}.", path=index)
    return os.path.join(os.path.dirname(index), base), size


def _read_column(index: str, shard: dict[str, Any], options: Options) -> Column:
    """Returns where the tokens are, by the names, encodings and sizes of the columns."""
    fields = [shard.get(f"column_{what}") for what in ("names", "encodings", "sizes")]
    rows = [field for field in fields if isinstance(field, list)]
    if len(rows) < len(fields) or len({len(row) for row in rows}) > 1:
        raise FormatError(f"{index} is damaged: its columns are {fields!r:.300}.", path=index)
    columns = sorted(zip(*rows, strict=True), key=lambda column: str(column[0]))
    names = [column[0] for column in columns]
    sizes = tuple(column[2] for column in columns)
    name = next((name for name in _COLUMNS if name in names), None)
    if name is None or not all(size is None or _is_size(size) for size in sizes):
        raise FormatError(
            f"{index} has the columns {names}; expected one of {', '.join(_COLUMNS)}, and sizes of "
            "at least 0.",
            path=index,
            expected=_COLUMNS,
            got=names,
        )
    place = names.index(name)
    encoding, _, rest = str(columns[place][1]).partition(":")
    dtype, _, shape = rest.partition(":")
    if encoding == "bytes" and not rest:
        return Column(name, sizes, place, (options.dtype or np.dtype("<i8")).str, "bytes")
    if encoding == "ndarray" and (not dtype or dtype in _NAMES) and "," not in shape:
        return Column(name, sizes, place, _NAMES.get(dtype, ""), "fixed" if shape else "ndarray")
    raise FormatError(
        f"{index} has {name} as {columns[place][1]!r}; expected an ndarray of one dimension and an "
        "integer dtype, or bytes. Pickled columns are never read.",
        path=index,
        expected="ndarray:int32",
        got=columns[place][1],
    )


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**40


def _read_offsets(
    path: str, content: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns each sample's first byte and its end."""
    size = len(content)
    count = int.from_bytes(content[:4].tobytes(), "little") if size >= 4 else size  # noqa: PLR2004
    head = 4 * (count + 2)
    if head > size:
        raise broken(
            path,
            f"is cut off: the offsets of {count} samples need {head} bytes; got {size}.",
            expected=head,
            got=size,
            offset=size,
        )
    offsets = np.frombuffer(content[4:head].tobytes(), "<u4").astype(np.int64)
    if offsets[0] < head or offsets[-1] != size or (offsets[1:] < offsets[:-1]).any():
        raise broken(
            path,
            f"does not add up: its samples begin at byte {offsets[0]} and end at {offsets[-1]}; "
            f"expected ascending offsets up to {size}, the size of the file. Copy it again.",
            expected=size,
            got=int(offsets[-1]),
            offset=4,
        )
    return offsets[:-1], offsets[1:]


def _numbers(
    content: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], width: int
) -> npt.NDArray[np.int64]:
    """Returns the unsigned numbers of `width` bytes that stand at `places`."""
    found = content[places[:, None] + np.arange(width)]
    numbers: npt.NDArray[Any] = found.copy().view(f"<u{width}").ravel()
    return numbers.astype(np.int64)


def _check(path: str, bad: npt.NDArray[np.bool_], what: str) -> None:
    """Refuses a shard with a bad sample."""
    if bad.any():
        index = int(np.argmax(bad))
        raise broken(path, f"is damaged: sample {index} {what}.", expected=None, got=index)
