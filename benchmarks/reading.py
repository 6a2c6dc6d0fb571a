"""Reading blocks of chunks that lie in the page cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import packcore
from benchmarks.baseline import read_blocks
from benchmarks.corpus import write_chunks
from benchmarks.harness import Contest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from benchmarks.harness import Sizes


def drain(blocks: Iterable[npt.NDArray[Any]]) -> int:
    """Returns the tokens in all blocks, each of the same size."""
    num_blocks, block = 0, None
    for block in blocks:  # noqa: B007  # the last one tells the size
        num_blocks += 1
    return 0 if block is None else num_blocks * len(block)


def contests(sizes: Sizes, folder: Path) -> Iterator[Contest]:
    """Block iterators without torch."""
    files = write_chunks(folder, sizes)
    order = {"n_chunks": min(8, sizes.num_chunks), "block_size": sizes.block_size, "seed": 1}
    yield Contest(
        "block iterator, int64",
        lambda: drain(packcore.PackedDataset(files, **order)),
        lambda: drain(read_blocks(files, **order)),
        target=1.0,
    )
