"""fairseq's Huffman-coded datasets: `X.bin` with codes, `X.idx` with lengths, `X.vocab`.

The index: `HUFFIDX` and two zero bytes, u64 version (always 1), u64 size of the data, u64 number of
items n, i32 tokens of each item, i64 byte where each item ends. An item is a document. Its bits,
the highest of a byte first, are followed by a 1 and zeros up to a whole byte. A token's id is the
rank of its symbol by frequency. Decoding goes bit by bit in Python, some million tokens a second at
best: convert such a corpus once (source: `fairseq/data/huffman/`).
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import FormatError
from packcore.formats.mmididx import index_beside, sum_lengths
from packcore.formats.options import Options
from packcore.formats.pieces import DecodedTokens
from packcore.protocols import TokenFile
from packcore.rawfiles import broken, file_bytes, map_array, read_at, stamp

__all__ = ["Items", "Tree", "find", "open_files", "read_tree"]

_MAGIC = b"HUFFIDX\x00\x00"
_HEADER_SIZE = 33
_TOKENS_A_SPAN = 2**18
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
"""Added with a count of 1 where the vocabulary has them not, in this order."""
_INT32 = np.dtype("<i4")


@dataclass(frozen=True, slots=True)
class Tree:
    """A Huffman code: where each bit leads from each inner node."""

    children: tuple[tuple[int, int], ...]
    """For bit 0 and bit 1: another inner node, or -1 - id of a leaf."""
    root: int
    """The inner node to begin at."""

    def decode(self, content: bytes) -> list[int]:
        """Returns the ids of one item.

        Raises:
            ValueError: its bits end inside of a code, or it has no bit at all.
        """
        bits = np.unpackbits(np.frombuffer(content, np.uint8))
        (ones,) = np.nonzero(bits)
        node, ids = self.root, []
        for bit in bits[: ones[-1] if len(ones) else None].tolist():
            node = self.children[node][bit]
            if node < 0:
                ids.append(-1 - node)
                node = self.root
        if node != self.root or not len(ones):
            raise ValueError(node)
        return ids


@dataclass(frozen=True, slots=True)
class Items:
    """Some items of a data file."""

    index: str
    """The index file."""
    num_items: int
    """All items that it knows."""
    first: int
    """The first of these."""
    last: int
    """The one behind the last."""

    def tokens(self, path: str) -> npt.NDArray[Any]:
        """Returns all tokens, `(num_tokens,)`."""
        vocabulary = path.removesuffix(".bin") + ".vocab"
        tree = _cached_tree(*stamp(vocabulary))
        ends = map_array(self.index, np.dtype("<i8"), self._ends, self.num_items)
        begin = int(ends[self.first - 1]) if self.first else 0
        ids: list[int] = []
        pairs = zip(self._sizes(), ends[self.first : self.last].tolist(), strict=True)
        for number, (size, end) in enumerate(pairs, self.first):
            try:
                found = tree.decode(read_at(path, begin, end - begin))
            except ValueError:
                found = []
                size = -1  # noqa: PLW2901 - so that it does not fit
            if len(found) != size:
                raise broken(
                    path,
                    f"is damaged: item {number} has other tokens than its index says.",
                    expected=size,
                    got=len(found),
                    offset=begin,
                )
            ids += found
            begin = end
        return np.array(ids, _INT32)

    def starts(self, path: str) -> npt.NDArray[np.int64]:  # noqa: ARG002 - the protocol's
        """Returns where documents begin, `(num_documents,)`, ascending."""
        sizes = np.array(self._sizes(), np.int64)
        return np.cumsum(sizes) - sizes

    @property
    def _ends(self) -> int:
        return _HEADER_SIZE + 4 * self.num_items

    def _sizes(self) -> list[int]:
        at = _HEADER_SIZE + 4 * self.first
        found: list[int] = map_array(self.index, _INT32, at, self.last - self.first).tolist()
        return found


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns the index file of a .bin, .idx or .vocab."""
    stem, suffix = os.path.splitext(path)
    return index_beside(stem + ".idx" if suffix == ".vocab" else path, _MAGIC)


def open_files(paths: Sequence[str], options: Options) -> Iterator[TokenFile]:  # noqa: ARG001
    """Yields the tokens of each data file, some items at a time."""
    for path in paths:
        yield from _open(path)


def _open(path: str) -> Iterator[TokenFile]:
    size = file_bytes(path)
    head = read_at(path, 0, _HEADER_SIZE)
    version, data_bytes, count = (int.from_bytes(head[at : at + 8], "little") for at in (9, 17, 25))
    data = path.removesuffix(".idx") + ".bin"
    whole = (1, _HEADER_SIZE + 12 * count, file_bytes(data))
    if (version, size, data_bytes) != whole:
        raise broken(
            path,
            f"does not add up: version {version}, {size} bytes for {count} items, {data_bytes} "
            f"bytes of data; expected version 1, {whole[1]} and {whole[2]}. Copy all files again.",
            expected=whole,
            got=(version, size, data_bytes),
            offset=9,
        )
    sum_lengths(path, _HEADER_SIZE, count)  # refuses negative ones
    ends = map_array(path, np.dtype("<i8"), _HEADER_SIZE + 4 * count, count)
    if count and (ends[0] < 0 or ends[-1] != data_bytes or (ends[1:] < ends[:-1]).any()):
        raise broken(
            path,
            f"is damaged: the ends of its items do not ascend to {data_bytes}.",
            expected=data_bytes,
            got=int(ends[-1]),
        )
    read_tree(path.removesuffix(".idx") + ".vocab")
    sizes = map_array(path, _INT32, _HEADER_SIZE, count).astype(np.int64)
    bits = 8 * np.diff(ends, prepend=0)
    if (sizes >= bits).any():  # a bit a token at least, and one behind them
        number = int(np.argmax(sizes >= bits))
        raise broken(
            path,
            f"is damaged: item {number} has {sizes[number]} tokens in {bits[number]} bits.",
            expected=int(bits[number]) - 1,
            got=int(sizes[number]),
            offset=_HEADER_SIZE + 4 * number,
        )
    before = np.cumsum(sizes) - sizes
    edges = np.flatnonzero(np.diff(before // _TOKENS_A_SPAN)) + 1
    for first, last in itertools.pairwise([0, *edges.tolist(), count] if count else []):
        yield DecodedTokens(
            path=data,
            dtype=_INT32,
            num_tokens=int(sizes[first:last].sum()),
            decoder=Items(path, count, first, last),
            count=last - first,
        )


def read_tree(path: str) -> Tree:
    """Reads the vocabulary, `symbol count` a line, and builds the code.

    Raises:
        FormatError: it is no such text.
        NoDataError: there is no such file.
    """
    content = read_at(path, 0, file_bytes(path))
    counts: dict[str, int] = {}
    try:
        for line in content.decode().splitlines():
            symbol, count = line.split()
            counts[symbol] = counts.get(symbol, 0) + int(count)
    except ValueError as error:
        raise FormatError(
            f"{path} is not a vocabulary of `symbol count` lines: {error}.", path=path
        ) from error
    for symbol in _SPECIAL:
        counts[symbol] = counts.get(symbol, 0) or 1
    ranked = sorted(counts.values(), reverse=True)  # stable: of equal ones the earlier is first
    return _build(ranked)


@functools.lru_cache(maxsize=4)
def _cached_tree(path: str, _size: int, _time: int) -> Tree:
    return read_tree(path)


def _build(ranked: list[int]) -> Tree:
    """Builds the code of ids with these counts, the most frequent first."""
    leaves = deque((count, -1 - rank) for rank, count in enumerate(ranked))
    nodes: deque[tuple[int, int]] = deque()  # made in ascending order of count
    children: list[tuple[int, int]] = []

    def take() -> tuple[int, int]:
        is_leaf = leaves and (not nodes or leaves[-1][0] < nodes[0][0])
        return leaves.pop() if is_leaf else nodes.popleft()

    while leaves or len(nodes) > 1:
        (first, left), (second, right) = take(), take()
        nodes.append((first + second, len(children)))
        children.append((right, left))  # bit 0 leads right
    return Tree(tuple(children), len(children) - 1)
