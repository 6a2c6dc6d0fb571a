"""Saved states: their checks, and random generators in a form that JSON holds.

A state is a flat dict. Some of its fields say what it belongs to and must be the same where it
is loaded; the others say where the run was. Which fields there are is for the owner of the state.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from packcore.errors import ArgumentTypeError, StateError

__all__ = [
    "check_identity",
    "check_position",
    "pack_pcg64",
    "pack_random",
    "unpack_pcg64",
    "unpack_random",
]

_NUM_WORDS = 625
"""The Mersenne Twister's 624 words and its index, each below 2**32."""


def check_identity(state: object, identity: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns `state` if it has every field of `identity`, with the same value.

    Args:
        state: what was loaded.
        identity: field -> value of the object that loads.

    Raises:
        ArgumentTypeError: the state is not a dict.
        StateError: a field is missing or differs; `field` is the first one.

    Examples:
        >>> check_identity({"seed": 1, "step": 7}, {"seed": 2})
        Traceback (most recent call last):
        packcore.errors.StateError: The state is from something else: its seed is 1, here it is 2.
        Make this object as the saved one was made, or begin anew without the state.
    """
    if not isinstance(state, Mapping):
        message = f"A state must be a dict, as state_dict() returns it; got {type(state).__name__}."
        raise ArgumentTypeError(message, name="state", value=state)
    for field, expected in identity.items():
        if field not in state:
            raise _damaged(field, "there", None)
        got = state[field]
        if got != expected:
            raise StateError(
                f"The state is from something else: its {field} is {got!r}, here it is "
                f"{expected!r}. Make this object as the saved one was made, or begin anew without "
                "the state.",
                field=field,
                expected=expected,
                got=got,
            )
    return state


def check_position(
    state: Mapping[str, Any], field: str, is_valid: Callable[[Any], bool], rule: str
) -> Any:
    """Returns a field of `state` that says where the run was.

    Args:
        state: a dict that `check_identity` has passed.
        field: the field's name.
        is_valid: whether a value can be that of a field which was saved; a value that it can not
            look at, with TypeError, can not.
        rule: the same in words, after "must be".

    Raises:
        StateError: the field is missing or no such value.

    Examples:
        >>> check_position({"step": 7}, "step", range(5).__contains__, "in [0, 4]")
        Traceback (most recent call last):
        packcore.errors.StateError: The state is damaged: step must be in [0, 4]; got 7. Use
        another checkpoint.
    """
    value = state.get(field)
    try:
        valid = is_valid(value)
    except TypeError:
        valid = False
    if not valid or field not in state:
        raise _damaged(field, rule, value)
    return value


def _damaged(field: str, rule: str, got: object) -> StateError:
    return StateError(
        f"The state is damaged: {field} must be {rule}; got {got!r:.200}. Use another checkpoint.",
        field=field,
        expected=rule,
        got=got,
    )


def pack_pcg64(generator: np.random.Generator) -> dict[str, Any]:
    """Returns the state of a `np.random.default_rng`, its numbers in hex digits.

    It is always as long, and no reader of JSON has to hold a number above 64 bits.

    Examples:
        >>> sorted(pack_pcg64(np.random.default_rng(1)))
        ['bit_generator', 'has_uint32', 'inc', 'state', 'uinteger']
    """
    state: Any = generator.bit_generator.state
    return {
        "bit_generator": state["bit_generator"],
        "state": f"{state['state']['state']:032x}",
        "inc": f"{state['state']['inc']:032x}",
        "has_uint32": state["has_uint32"],
        "uinteger": f"{state['uinteger']:08x}",
    }


def unpack_pcg64(state: Mapping[str, Any], field: str) -> np.random.Generator:
    """Returns the generator that `pack_pcg64` saved in a field of `state`.

    Raises:
        StateError: the field is missing or damaged.

    Examples:
        >>> generator = np.random.default_rng(1)
        >>> state = {"generator": pack_pcg64(generator)}
        >>> unpack_pcg64(state, "generator").random() == generator.random()
        True
    """
    packed: Any = state.get(field)
    bits = np.random.PCG64(0)
    try:
        words = {name: int(packed[name], 16) for name in ("state", "inc")}
        restored: Any = {**packed, "state": words, "uinteger": int(packed["uinteger"], 16)}
        bits.state = restored
    except (KeyError, TypeError, ValueError, OverflowError):
        raise _damaged(field, "the state of a PCG64 generator", packed) from None
    return np.random.Generator(bits)


def pack_random(generator: random.Random) -> str:
    """Returns the state of a `random.Random`: its 625 words as 5,000 hex digits.

    Examples:
        >>> len(pack_random(random.Random(1)))
        5000
    """
    return struct.pack(f"<{_NUM_WORDS}I", *generator.getstate()[1]).hex()


def unpack_random(state: Mapping[str, Any], field: str) -> random.Random:
    """Returns the generator that `pack_random` saved in a field of `state`.

    Raises:
        StateError: the field is missing or damaged.

    Examples:
        >>> generator = random.Random(1)
        >>> state = {"generator": pack_random(generator)}
        >>> unpack_random(state, "generator").random() == generator.random()
        True
    """
    packed: Any = state.get(field)
    generator = random.Random(0)  # noqa: S311  # restored, not drawn from as it is
    try:
        words = struct.unpack(f"<{_NUM_WORDS}I", bytes.fromhex(packed))
        generator.setstate((3, words, None))
    except (TypeError, ValueError, struct.error):
        raise _damaged(field, "the state of a random.Random", packed) from None
    return generator
