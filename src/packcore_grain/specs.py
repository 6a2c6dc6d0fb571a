"""What a batch looks like before it is read: Grain's element specs."""

from __future__ import annotations

from typing import Any

import numpy as np
from grain.experimental import ShapeDtypeStruct

from packcore import Loader

__all__ = ["batch_spec"]


def batch_spec(loader: Loader) -> Any:
    """Returns the `grain.experimental.ShapeDtypeStruct` of a batch, in a dict if it is one.

    The width of `document_starts` is that of the batch's fullest row: None.
    """
    num_rows = len(loader.rows)
    block = num_rows, loader.block_size
    known = {
        "tokens": ShapeDtypeStruct(block, loader.dtype),
        "document_starts": ShapeDtypeStruct((num_rows, None), np.dtype(np.int32)),
        "segment_ids": ShapeDtypeStruct(block, np.dtype(np.int32)),
        "positions": ShapeDtypeStruct(block, np.dtype(np.int32)),
        "loss_mask": ShapeDtypeStruct(block, np.dtype(np.bool_)),
        "mask": ShapeDtypeStruct((num_rows,), np.dtype(np.bool_)),
    }
    if loader.fields is None:
        return known["tokens"]
    return {field: known[field] for field in loader.fields}
