"""Blocks as a map-style dataset, for samplers and the trainers that bring their own.

Which block comes when, on which rank, is for the sampler. The order that loses nothing and can
be resumed anywhere is that of `packcore_torch.BatchLoader`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from packcore import Blocks
from packcore.checks import check_type

__all__ = ["BlockDataset"]


class BlockDataset(Dataset[torch.Tensor]):
    """Blocks by number, each a tensor `(block_size,)`, int64, or float if the chunks are.

    A DataLoader asks for all blocks of a batch at once, which costs little more than one.

    Args:
        blocks: from `packcore.open(...).blocks(block_size)`.

    Raises:
        ArgumentTypeError: it is something else.
    """

    def __init__(self, blocks: Blocks) -> None:
        must = "of packcore.open(...).blocks(block_size)"
        self.blocks = check_type("blocks", blocks, Blocks, must)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: SupportsIndex) -> torch.Tensor:
        return torch.from_numpy(_widen(self.blocks[operator.index(index)]))

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """Returns several blocks, in the order asked for.

        Raises:
            ArgumentError: an index is out of range.
        """
        rows = torch.from_numpy(_widen(self.blocks.gather(indices)))
        return list(rows.unbind())


def _widen(tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return tokens.astype(np.int64) if tokens.dtype.kind in "iu" else tokens
