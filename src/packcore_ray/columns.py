"""Takes one column out of a Ray block, in the form in which packcore reads rows of tables.

The only module that knows what Ray makes of lists: Arrow lists, or tensors of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.data.block import BlockAccessor

from packcore.errors import ArgumentError
from packcore.extras import import_extra

__all__ = ["read_column"]

_arrow: Any = import_extra("pyarrow", extra="ray", needed_for="Ray Data")


def read_column(block: Any, column: str) -> tuple[int, bytes]:
    """Returns how many rows a block has, and one column of it as an Arrow stream.

    Raises:
        ArgumentError: there is no such column.
    """
    accessor = BlockAccessor.for_block(block)
    table = accessor.to_arrow()
    if not table.num_rows:  # Ray's empty blocks have no columns either
        return 0, b""
    if column not in table.column_names:
        raise ArgumentError(
            f"There is no column {column!r}; the columns are {', '.join(table.column_names)}.",
            name="column",
            value=column,
        )
    values = table.column(column)
    if isinstance(values.type, _arrow.ExtensionType):
        values = _tensors_as_lists(accessor.to_numpy(column), values.type)
    elif _arrow.types.is_list(values.type) and _arrow.types.is_null(values.type.value_type):
        values = values.cast(_arrow.large_list(_arrow.int64()))  # all lists of the block are empty
    sink = _arrow.BufferOutputStream()
    one = _arrow.table({column: values})
    with _arrow.ipc.new_stream(sink, one.schema) as writer:
        writer.write_table(one)
    return table.num_rows, sink.getvalue().to_pybytes()


def _tensors_as_lists(rows: Any, kind: Any) -> Any:
    """Returns what `map_batches` made of NumPy arrays as lists."""
    arrays = [np.asarray(row) for row in rows]
    for row in arrays:
        if row.ndim != 1:
            raise ArgumentError(
                f"A row must be a flat list of ids; got {row.ndim} dimensions in a column of "
                f"{kind}.",
                name="column",
            )
    offsets = np.cumsum([0, *map(len, arrays)])
    return _arrow.LargeListArray.from_arrays(offsets, _arrow.array(np.concatenate(arrays)))
