"""Checks of arguments, made once at the door.

Every check returns the value in the form that the code behind it works with.
"""

from __future__ import annotations

import contextlib
import operator
from typing import TypeVar

import numpy as np

from packcore.errors import ArgumentError, ArgumentTypeError

__all__ = ["check_choice", "check_int", "check_type"]

_Kind = TypeVar("_Kind")

_INT64_MAX = 2**63 - 1


def check_int(name: str, value: object, *, low: int, high: int = _INT64_MAX, unit: str = "") -> int:
    """Returns `value` as an int in [low, high].

    Args:
        name: the argument's name, for the message.
        value: anything with `__index__`, NumPy integers included; a bool is refused.
        low: the smallest legal value.
        high: the largest legal value.
        unit: what is counted, for the message, such as "tokens".

    Raises:
        ArgumentTypeError: the value is not an integer.
        ArgumentError: the value is outside [low, high].

    Examples:
        >>> check_int("block_size", 4, low=1)
        4
        >>> check_int("block_size", 0, low=1, unit="tokens")
        Traceback (most recent call last):
        packcore.errors.ArgumentError: block_size must be at least 1; got 0 (tokens).
    """
    if type(value) is int and low <= value <= high:  # nearly always; loops ask at each batch
        return value
    number = None
    if not isinstance(value, bool | np.bool_):
        with contextlib.suppress(TypeError):
            number = operator.index(value)  # type: ignore[arg-type] # without __index__ it raises
    if number is None:
        message = f"{name} must be an integer; got {value!r} ({type(value).__name__})."
        raise ArgumentTypeError(message, name=name, value=value)
    if not low <= number <= high:
        is_open = high == _INT64_MAX and number < low
        rule = f"at least {low}" if is_open else f"in [{low}, {high}]"
        suffix = f" ({unit})" if unit else ""
        raise ArgumentError(f"{name} must be {rule}; got {number}{suffix}.", name=name, value=value)
    return number


def check_type(name: str, value: object, kind: type[_Kind], must: str, way: str = "") -> _Kind:
    """Returns `value` if it is of a type.

    Args:
        name: the argument's name, for the message.
        value: what was given.
        kind: the type.
        must: what it must be, for the message, as in "name must be ...".
        way: what to do, for the message, as a sentence.

    Raises:
        ArgumentTypeError: it is of another type.

    Examples:
        >>> check_type("path", 5, str, "a path")
        Traceback (most recent call last):
        packcore.errors.ArgumentTypeError: path must be a path; got int.
    """
    if isinstance(value, kind):
        return value
    message = f"{name} must be {must}; got {type(value).__name__}. {way}".rstrip()
    raise ArgumentTypeError(message, name=name, value=value)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Returns `value` if it is one of `choices`.

    Raises:
        ArgumentError: it is not; the message lists the choices.

    Examples:
        >>> check_choice("remainder", "keep", ("drop", "pad", "error"))
        Traceback (most recent call last):
        packcore.errors.ArgumentError: remainder must be one of 'drop', 'pad', 'error'; got 'keep'.
    """
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ArgumentError(
            f"{name} must be one of {listed}; got {value!r}.", name=name, value=value
        )
    return value
