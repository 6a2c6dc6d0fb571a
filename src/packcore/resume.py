"""The state of a run: a position, and what it is a position of.

The order before a position is fixed by the state; what comes after is the loader's own. Which
fields every state is checked by is for `packcore.state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packcore.mixture import Mixture, Weights
from packcore.state import check_identity, check_position

__all__ = ["MAX_POSITION", "STATE_VERSION", "load_position", "save_position"]

STATE_VERSION = 1

MAX_POSITION = 2**62
"""Blocks of a run: far from where int64 ends."""

_History = list[tuple[int, dict[str, float]]]
"""(start, name -> weight), positions ascending; what is not drawn is left out."""


def save_position(
    mixture: Mixture, order: Mapping[str, Any], position: int, *, num_changes: int
) -> dict[str, Any]:
    """Returns the state of a run that stands at `position`.

    Args:
        mixture: the sources.
        order: field -> value of what else the order depends on, such as the seed.
        position: blocks served, over all ranks.
        num_changes: how many of the mixture's weights began before the position.
    """
    return {
        **_identity(mixture, order, list(mixture.blocks)),
        "weights": [[start, weights] for start, weights in _history(mixture.weights)],
        "num_changes": num_changes,
        "position": position,
    }


def load_position(mixture: Mixture, order: Mapping[str, Any], state: object) -> tuple[Mixture, int]:
    """Returns where a state stands, and the mixture with the weights that the state brings.

    Before the position the weights must be the same. If the mixture has no change of weights but
    those that the state begins with, the state's later ones are taken over.

    Args:
        mixture: the loader's sources; it may have more than the state, not drawn before the
            position.
        order: as in `save_position`.
        state: what was saved.

    Raises:
        StateError: the state is of something else, or damaged; `field` says in what.
        ArgumentTypeError: the state is not a dict.
    """
    checked = check_identity(state, {"version": STATE_VERSION, **order})
    names = check_position(checked, "sources", _is_names, "a list of names, not empty")
    check_identity(checked, _identity(mixture, order, names))
    position: int = check_position(checked, "position", _is_count, "an integer in [0, 2^62]")
    saved = _parse_history(checked)
    rule = f"an integer in [0, {len(saved)}]"
    num_changes = check_position(checked, "num_changes", range(len(saved) + 1).__contains__, rule)
    mine = _history(mixture.weights)
    if saved[: len(mine)] == mine:
        for start, weights in saved[len(mine) :]:
            mixture = mixture.reweight(start, {**dict.fromkeys(mixture.blocks, 0.0), **weights})
    elif saved[:num_changes] != mine[:num_changes] or any(
        start < position for start, _ in mine[num_changes:]
    ):
        check_identity({"weights": saved}, {"weights": mine})
    return mixture, position


def _identity(mixture: Mixture, order: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Returns what a state of the sources `names` must agree with."""
    known = {name: blocks.fingerprint for name, blocks in mixture.blocks.items()}
    identity = {
        "version": STATE_VERSION,
        **order,
        "block_size": mixture.block_size,
        "fingerprint": {name: known.get(name) for name in names},
        # The order decides who is drawn first, and a dict of JSON may lose it.
        "sources": [name for name in known if name in names],
    }
    if len(names) > 1:  # how often a source alone is passed over changes nothing before its end
        identity["on_exhausted"] = mixture.on_exhausted
        identity["max_epochs"] = {name: mixture.max_epochs.get(name) for name in names}
    return identity


def _history(weights: tuple[Weights, ...]) -> _History:
    return [
        (entry.start, {name: weight for name, weight in entry.by_name.items() if weight})
        for entry in weights
    ]


def _parse_history(state: Mapping[str, Any]) -> _History:
    """Returns the weights of a state, checked by making a mixture's changes of them."""
    entries = check_position(
        state, "weights", _is_history, "a list of [position, weights], not empty"
    )
    return [(start, dict(weights)) for start, weights in entries]


def _is_history(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(entry, list | tuple)
            and len(entry) == 2  # noqa: PLR2004 - position and weights
            and _is_count(entry[0])
            and _is_dict(entry[1])
            for entry in value
        )
    )


def _is_names(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_POSITION
