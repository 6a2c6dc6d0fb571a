"""Single blocks by number, for Grain's own shuffle, mix, samplers and loaders."""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any, Self, SupportsIndex

import grain
import numpy as np
import numpy.typing as npt
from grain.experimental import ShapeDtypeStruct

from packcore.blocks import Blocks, check_dtype
from packcore.checks import check_type
from packcore.errors import ArgumentError
from packcore_grain.flags import use_flag_defaults
from packcore_grain.shares import stretch

__all__ = ["BlockSource"]

_VERSION = 1


class BlockSource(grain.MapDataset):  # type: ignore[misc] # Grain has no types
    """Blocks as a source and as a dataset.

    It is a `grain.sources.RandomAccessDataSource`, for `grain.DataLoader` and
    `grain.MapDataset.source`, and a `grain.MapDataset` itself, which is the faster way:
    `BlockSource(blocks).shuffle(seed=1).batch(16)`.

    An element is a block, `(block_size,)`, an array of its own. Threads may share a source; it
    pickles as paths. `grain.DataLoader` compares the `repr` when it restores a state, and so
    refuses other data; in a pipeline of datasets `CheckedDataset` does.

    Args:
        blocks: from `packcore.open(...).blocks(block_size)`, at least one.
        dtype: of the elements; the stored one by default. It must hold every id.

    Raises:
        ArgumentError: there is no block, or ids may not fit the dtype.
        ArgumentTypeError: the blocks are not `packcore.Blocks`.
    """

    def __init__(self, blocks: Blocks, *, dtype: npt.DTypeLike | None = None) -> None:
        super().__init__()
        use_flag_defaults()
        must = "packcore.Blocks, from packcore.open(...).blocks(block_size)"
        check_type("blocks", blocks, Blocks, must)
        self._whole = self._blocks = blocks
        self._num_blocks = len(blocks)
        if not self._num_blocks:
            raise ArgumentError(
                f"blocks must have at least one block; got {blocks!r}. Use a smaller block_size.",
                name="blocks",
                value=blocks,
            )
        self._dtype = check_dtype(blocks, dtype)

    def __len__(self) -> int:
        return self._num_blocks

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        # Past the end it begins anew, as every MapDataset does.
        block = self._blocks[operator.index(index) % self._num_blocks]
        return block.astype(self._dtype, copy=False)

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[npt.NDArray[Any]]:
        """Returns several blocks, read together."""
        count = self._num_blocks
        ids = np.array([operator.index(index) % count for index in indices], np.int64)
        return list(self._blocks.gather(ids, dtype=self._dtype))

    def _getitems(self, indices: Sequence[SupportsIndex]) -> list[npt.NDArray[Any]]:
        # Grain's name for it since 0.2.13.
        return self.__getitems__(indices)

    def __repr__(self) -> str:
        return (
            f"BlockSource({len(self._whole)} blocks of {self._whole.block_size} {self._dtype} "
            f"tokens, fingerprint {self._whole.fingerprint})"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Grain copies a dataset for each thread. Blocks never change, so they share the maps.
        other = memo[id(self)] = copy.copy(self)
        return other

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Leaves one stretch of the blocks. Grain calls this on copies, for its workers.

        Raises:
            ArgumentError: not slice(worker, None, num_workers) with sequential_slice.
            ArgumentTypeError: no slice of integers.
        """
        part = stretch(len(self._whole), sl, sequential_slice=sequential_slice)
        self._blocks = self._whole[part]
        self._num_blocks = len(self._blocks)

    @property
    def identity(self) -> dict[str, Any]:
        """What a state must belong to: the data, and how it is cut."""
        return {
            "version": _VERSION,
            "block_size": self._whole.block_size,
            "dtype": self._dtype.name,
            "fingerprint": self._whole.fingerprint,
        }

    @property
    def _element_spec(self) -> Any:
        return ShapeDtypeStruct((self._blocks.block_size,), self._dtype)
