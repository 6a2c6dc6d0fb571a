"""Single blocks by number, for Grain's own shuffle, mix, samplers and loaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from packcore.blocks import Blocks, check_dtype
from packcore_grain.flags import use_flag_defaults

__all__ = ["BlockSource"]

_VERSION = 1


class BlockSource:
    """Blocks as a `grain.sources.RandomAccessDataSource`.

    An element is a block, `(block_size,)`, an array of its own. Threads may share a source; it
    pickles as paths. `grain.DataLoader` compares the `repr` when it restores a state, and so
    refuses other data; in a pipeline of datasets `CheckedDataset` does.

    Args:
        blocks: from `packcore.open(...).blocks(block_size)`.
        dtype: of the elements; the stored one by default. It must hold every id.

    Raises:
        ArgumentError: ids may not fit the dtype.
    """

    def __init__(self, blocks: Blocks, *, dtype: npt.DTypeLike | None = None) -> None:
        use_flag_defaults()
        self._blocks = blocks
        self._dtype = check_dtype(blocks, dtype)

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: SupportsIndex) -> npt.NDArray[Any]:
        block: npt.NDArray[Any] = self._blocks[index.__index__()]
        return block.astype(self._dtype, copy=False)

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[npt.NDArray[Any]]:
        """Returns several blocks, read together."""
        ids = np.array([index.__index__() for index in indices], np.int64)
        return list(self._blocks.gather(ids, dtype=self._dtype))

    def _getitems(self, indices: Sequence[SupportsIndex]) -> list[npt.NDArray[Any]]:
        # Grain's name for it since 0.2.13.
        return self.__getitems__(indices)

    def __repr__(self) -> str:
        return (
            f"BlockSource({len(self)} blocks of {self._blocks.block_size} {self._dtype} tokens, "
            f"fingerprint {self._blocks.fingerprint})"
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What a state must belong to: the data, and how it is cut."""
        return {
            "version": _VERSION,
            "block_size": self._blocks.block_size,
            "dtype": self._dtype.name,
            "fingerprint": self._blocks.fingerprint,
        }
