"""A loader's batch as tensors, here or where it arrives from a worker process.

torch sends a tensor as a file descriptor, which costs more than a batch is worth. Here its bytes
go through the pipe, tokens in the dtype that they are stored in, and widened where they arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Tensors", "tensors", "tensors_to_send"]

Tensors: TypeAlias = torch.Tensor | dict[str, Any]
"""A batch: `(rows, block_size)`, or a dict of what `packcore.Loader` names."""


def tensors(batch: Any) -> Tensors:
    """Returns a batch as tensors; tokens that are integers become int64.

    Args:
        batch: an array of tokens, or a dict of arrays of which `tokens` is one. What is no array
            stays as it is.
    """
    if not isinstance(batch, Mapping):
        return _tokens(batch)
    return {name: _field(name, value) for name, value in batch.items()}


def tensors_to_send(batch: Any) -> Tensors:
    """Returns a batch that arrives in another process as `tensors(batch)`.

    Until then it is in the dtypes of `batch`. Slices of the tensors travel in the same way.
    """
    if not isinstance(batch, Mapping):
        return torch.from_numpy(batch).as_subclass(_SentTokens)
    return {name: _sent_field(name, value) for name, value in batch.items()}


def _field(name: str, value: Any) -> Any:
    if name == "tokens":
        return _tokens(value)
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _tokens(array: npt.NDArray[Any]) -> torch.Tensor:
    # NumPy widens in this thread; torch would wake its thread pool for it.
    return torch.from_numpy(
        array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else array
    )


def _sent_field(name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return torch.from_numpy(value).as_subclass(_SentTokens if name == "tokens" else _Sent)


class _Sent(torch.Tensor):
    """A tensor that pickles as bytes and arrives as a plain one."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        array = self.numpy()
        return _arrive, (array.tobytes(), array.dtype.str, array.shape)


class _SentTokens(_Sent):
    """The same for tokens, which arrive as int64."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _arrive_tokens, super().__reduce_ex__(protocol)[1]


def _arrive(data: bytes, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype).reshape(shape).copy())


def _arrive_tokens(data: bytes, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    array = np.frombuffer(data, dtype).reshape(shape)
    # Not a view of `data`, which may not be written to.
    return torch.from_numpy(array.astype(np.int64 if array.dtype.kind in "iu" else array.dtype))
