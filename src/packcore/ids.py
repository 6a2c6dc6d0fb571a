"""Which ids a dtype and a vocabulary admit, and the check of every id that comes in.

What is admitted comes out as an array; putting it anywhere is for `packcore.builder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from packcore.checks import check_int
from packcore.errors import ArgumentError, ArgumentTypeError, TokenError

__all__ = ["IdRule", "Ids"]

Ids = npt.ArrayLike | Iterable[int]
"""Token ids: a 1-D integer array, a list, any iterable of ints, bytes (one id a byte)."""

_Test = Callable[[npt.NDArray[Any]], bool]


class IdRule:
    """The smallest and largest id that fit a dtype and a vocabulary.

    Attributes:
        dtype: the dtype that ids are stored in.
        low: the smallest id that fits.
        high: the largest id that fits.

    Examples:
        >>> rule = IdRule(np.dtype("uint16"), vocab_size=32000)
        >>> rule.low, rule.high
        (0, 31999)
        >>> rule.check("ids", [5, 32000])
        Traceback (most recent call last):
        packcore.errors.TokenError: ids[1] is 32000, which does not fit: ids must be in [0, 31999]
        (dtype uint16, vocab_size 32000). Nothing of this call was written. Check the tokenizer,
        or build with a larger vocab_size or a wider dtype.
    """

    __slots__ = ("_tests", "dtype", "high", "low", "vocab_size")

    def __init__(self, dtype: np.dtype[Any], vocab_size: int | None = None) -> None:
        self.dtype = dtype
        self.vocab_size = vocab_size
        info: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
        self.low = int(info.min) if vocab_size is None else 0
        self.high = int(info.max) if vocab_size is None else min(int(info.max), vocab_size - 1)
        self._tests: dict[np.dtype[Any], _Test] = {}

    def check(self, name: str, ids: Ids) -> npt.NDArray[Any]:
        """Returns ids as an array, every one of them shown to fit.

        Args:
            name: what the ids are called, for the message.
            ids: `(num_tokens,)`, any integer dtype, or what makes one: a list, an iterable, bytes.
                Floats are admitted where `dtype` is a float; an empty array of floats always, as
                that is what NumPy makes of an empty list.

        Returns:
            `(num_tokens,)`, in the dtype that came in: an array comes back as it is.

        Raises:
            TokenError: an id is outside [low, high]; it has the index of the first.
            ArgumentError: the array is not 1-D.
            ArgumentTypeError: these are not ids: text, bools, floats, objects.
        """
        if type(ids) is np.ndarray and ids.ndim == 1 and ids.size:  # nearly always
            test = self._tests.get(ids.dtype)
            if test is not None and test(ids):
                return ids
        array = ids if isinstance(ids, np.ndarray) else self._to_array(name, ids)
        if array.ndim != 1:
            raise ArgumentError(
                f"{name} must be 1-D; got shape {array.shape}. Use reshape(-1), or add one "
                "document at a time.",
                name=name,
                value=array.shape,
            )
        if not array.size and array.dtype.kind in "iuf":
            return array
        test = self._tests.get(array.dtype) or self._add_test(name, array.dtype)
        if not test(array):
            index = int(np.argmax(self._misfits(array)))
            self._refuse(name, index, array[index].item())
        return array

    def check_one(self, name: str, value: object) -> int:
        """Returns a single id that fits; a float such as 3.0 counts where `dtype` is a float.

        Raises:
            ArgumentTypeError: it is not an integer.
            ArgumentError: it does not fit.
        """
        if self.dtype.kind == "f" and isinstance(value, float) and value.is_integer():
            value = int(value)
        return check_int(name, value, low=self.low, high=self.high)

    def _add_test(self, name: str, dtype: np.dtype[Any]) -> _Test:
        if dtype.kind not in ("iu" if self.dtype.kind in "iu" else "iuf"):
            raise _wrong_type(name, dtype, self.dtype)
        test = self._tests[dtype] = self._make_test(dtype)
        return test

    def _make_test(self, dtype: np.dtype[Any]) -> _Test:
        """Returns what says whether an array of `dtype`, not empty, fits: in one pass or none."""
        low, high = self.low, self.high
        if dtype.kind == "f" or (self.dtype.kind == "f" and self.vocab_size is not None):
            return lambda array: not self._misfits(array).any()
        info = np.iinfo(dtype)
        if low <= int(info.min) and int(info.max) <= high:
            return lambda _: True
        # argmax and item take a third of the time of max on the few hundred ids of a document.
        if low < 0:
            return lambda array: (
                array.item(array.argmin()) >= low and array.item(array.argmax()) <= high
            )
        limit = min(high, int(info.max))
        if dtype.kind == "u":
            return lambda array: array.item(array.argmax()) <= limit
        # Read unsigned, a negative id is larger than any that fits.
        unsigned = np.dtype(dtype.str.replace("i", "u"))
        return lambda array: limit >= (same := array.view(unsigned)).item(same.argmax())

    def _misfits(self, array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        if self.dtype.kind == "f" and self.vocab_size is None:  # what would become infinite
            bad = (np.abs(array) > np.finfo(self.dtype).max) & np.isfinite(array)
        else:
            bad = ~((array >= self.low) & (array <= self.high))  # NaN does not fit either
        return np.asarray(bad, np.bool_)

    def _to_array(self, name: str, ids: object) -> npt.NDArray[Any]:
        if isinstance(ids, str):
            raise ArgumentTypeError(
                f"{name} must be token ids; got text. Tokenize it first.", name=name, value=ids
            )
        if isinstance(ids, set | frozenset):
            raise ArgumentTypeError(
                f"{name} must be in an order; got a set. Make it a list.", name=name, value=ids
            )
        if isinstance(ids, bytes | bytearray):
            return np.frombuffer(ids, np.uint8)
        if not isinstance(ids, Sequence | memoryview) and not hasattr(ids, "__array__"):
            ids = _to_list(name, ids)
        try:
            array = np.asarray(ids)
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentTypeError(
                f"{name} must be a flat row of integers: {error}", name=name, value=ids
            ) from error
        if self.dtype.kind in "iu" and array.dtype.kind in "fO" and isinstance(ids, Sequence):
            self._find_huge(name, ids)
        return array

    def _find_huge(self, name: str, ids: Sequence[Any]) -> None:
        """Names the first id outside int64; NumPy made floats or objects of them all."""
        for index, value in enumerate(ids):
            if isinstance(value, int) and not self.low <= value <= self.high:
                self._refuse(name, index, value)

    def _refuse(self, name: str, index: int, value: object) -> NoReturn:
        why = f"dtype {self.dtype.name}"
        if self.vocab_size is not None:
            why += f", vocab_size {self.vocab_size}"
        raise TokenError(
            f"{name}[{index}] is {value}, which does not fit: ids must be in [{self.low}, "
            f"{self.high}] ({why}). Nothing of this call was written. Check the tokenizer, or "
            "build with a larger vocab_size or a wider dtype.",
            index=index,
            value=value,
            low=self.low,
            high=self.high,
        )


def _to_list(name: str, ids: object) -> list[Any]:
    if isinstance(ids, Iterable):
        return list(ids)
    raise ArgumentTypeError(
        f"{name} must be an array, a list or an iterable of integers; got {type(ids).__name__}.",
        name=name,
        value=ids,
    )


def _wrong_type(name: str, got: np.dtype[Any], wanted: np.dtype[Any]) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{name} must be integers for a builder of {wanted.name}; got {got.name}. Convert them "
        "first, such as with numpy.asarray(ids, dtype=numpy.int64).",
        name=name,
        value=got,
    )
