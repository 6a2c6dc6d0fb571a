"""Weighted mixing: position -> (source, position in that source), as a pure function.

A `Mixture` says which sources there are and with which weights, from which position on; a
`MixtureOrder` is a mixture with a seed. A change of weights, a new source and a source that
runs out each begin a new phase, which goes on counting where the one before stopped: nothing is
lost and nothing repeated. The arithmetic of one phase is in `packcore.phases`, which block a
position of a source means is for `packcore.order`.
"""

from __future__ import annotations

import bisect
import copy
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from numbers import Real
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from packcore.checks import check_choice, check_int
from packcore.errors import ArgumentError, ArgumentTypeError
from packcore.phases import MAX_PERIOD, Phase
from packcore.protocols import BlockReader

__all__ = ["Mixture", "MixtureOrder", "OnExhausted", "Weights"]

OnExhausted = Literal["repeat", "stop", "remove"]


class Weights(NamedTuple):
    """The weights from a position on."""

    start: int
    """The first position that they hold for."""
    by_name: dict[str, float]
    """name -> weight, for every source."""


class Mixture:
    """Named sources of blocks, drawn with weights.

    Nothing here changes in place: `reweight` and `add` return another mixture, which is the same
    before their position.

    Args:
        sources: name -> (blocks, weight). Weights are relative; 0 is legal (never drawn), and so
            is a source without blocks.
        schedule: later weights, (position, {name: weight}), positions ascending; a source that
            is not named keeps its weight. Where all sources run out before a change, it begins
            there and then.
        on_exhausted: what happens when a source has been served `max_epochs` times: "remove"
            goes on with the others, "stop" ends the order there. "repeat" has no limit but for
            the sources in `max_epochs`, which are then removed.
        max_epochs: name -> passes over the source at most; 1 by default for "remove" and "stop".

    Raises:
        ArgumentError: no source, all weights zero, all drawn sources empty, a weight that is
            negative, NaN, infinite or below 2**-24 of their sum, an unknown name, positions that
            do not ascend, or sources whose block_size differs.
        ArgumentTypeError: an argument is of a wrong type.
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[BlockReader, float]],
        *,
        schedule: Iterable[tuple[int, Mapping[str, float]]] | None = None,
        on_exhausted: OnExhausted = "repeat",
        max_epochs: Mapping[str, int] | None = None,
    ) -> None:
        check_choice("on_exhausted", on_exhausted, ("repeat", "stop", "remove"))
        if not isinstance(sources, Mapping) or not sources:
            raise ArgumentError(
                f"sources must be a dict of name -> (blocks, weight), not empty; got {sources!r}.",
                name="sources",
                value=sources,
            )
        self.on_exhausted: OnExhausted = on_exhausted
        self.blocks: dict[str, BlockReader] = {}
        """name -> blocks, in the order of the sources."""
        self.weights: tuple[Weights, ...] = ()
        """The weights, from position 0 on, each until the next one's start."""
        first: dict[str, float] = {}
        for name, pair in sources.items():
            self.blocks[name], first[name] = _check_source(name, pair)
        self._max_epochs = self._check_epochs({} if max_epochs is None else max_epochs)
        self.weights = (self._check_weights(0, first),)
        for position, weights in _check_schedule(schedule):
            self.weights = self.reweight(position, weights).weights

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{name}: {len(blocks)} blocks, weight {self.weights[-1].by_name[name]}"
            for name, blocks in self.blocks.items()
        )
        return f"Mixture({parts})"

    @property
    def block_size(self) -> int:
        """Tokens in each block."""
        return next(iter(self.blocks.values())).block_size

    def reweight(self, position: int, weights: Mapping[str, float]) -> Mixture:
        """Returns the mixture that has other weights from `position` on.

        Args:
            position: counts blocks; `loader.position` is where a run stands. It may not come
                before the last change; at the same position it takes the last one's place.
            weights: name -> weight; a source that is not named keeps its weight.

        Raises:
            ArgumentError: an unknown name, a weight or position against the rules.
        """
        last = self.weights[-1]
        position = check_int("position", position, low=last.start, unit="blocks")
        if not isinstance(weights, Mapping):
            raise ArgumentTypeError(
                f"weights must be a dict of name -> weight; got {weights!r}.",
                name="weights",
                value=weights,
            )
        for name in weights:
            self._check_name(name)
        changed = copy.copy(self)
        entry = self._check_weights(position, {**last.by_name, **weights})
        replaced = position == last.start and not self._may_have_begun_early()
        kept = self.weights[:-1] if replaced else self.weights
        changed.weights = (*kept, entry)
        return changed

    def add(self, position: int, name: str, blocks: BlockReader, weight: float) -> Mixture:
        """Returns the mixture that draws one more source from `position` on.

        Args:
            position: counts blocks; it may not come before the last change.
            name: a new name.
            blocks: what the source reads from.
            weight: relative to the other sources' present weights.

        Raises:
            ArgumentError: the name is taken, or a weight or position is against the rules.
        """
        if name in self.blocks:
            raise ArgumentError(
                f"name must be a new one; got {name!r}, which the mixture has. Use reweight.",
                name="name",
                value=name,
            )
        wider = copy.copy(self)
        checked, number = _check_source(name, (blocks, weight))
        wider.blocks = {**self.blocks, name: checked}
        wider.weights = tuple(
            Weights(start, {**by_name, name: 0.0}) for start, by_name in self.weights
        )
        return wider.reweight(position, {name: number})

    @property
    def max_epochs(self) -> dict[str, int | None]:
        """The passes over each source at most, by name; None for no limit."""
        default = None if self.on_exhausted == "repeat" else 1
        return {name: self._max_epochs.get(name, default) for name in self.blocks}

    def limit(self, name: str) -> int | None:
        """Returns how many blocks of a source may be drawn in all; None for no limit."""
        epochs, num_blocks = self.max_epochs[name], len(self.blocks[name])
        return None if epochs is None and num_blocks else num_blocks * (epochs or 0)

    def _may_have_begun_early(self) -> bool:
        """Says whether the last change may have begun before its position.

        That is where all sources of the weights before it run out. Then it stays when another
        one follows at the same position: the past may hold blocks that it brought.
        """
        if len(self.weights) == 1:
            return False
        before = self.weights[-2].by_name
        return all(self.limit(name) is not None for name, weight in before.items() if weight)

    def _check_epochs(self, max_epochs: object) -> dict[str, int]:
        if not isinstance(max_epochs, Mapping):
            raise ArgumentTypeError(
                f"max_epochs must be a dict of name -> epochs; got {max_epochs!r}.",
                name="max_epochs",
                value=max_epochs,
            )
        for name in max_epochs:
            self._check_name(name)
        return {
            name: check_int(f"max_epochs[{name!r}]", limit, low=0, unit="epochs")
            for name, limit in max_epochs.items()
        }

    def _check_name(self, name: object) -> None:
        if name not in self.blocks:
            known = ", ".join(map(repr, self.blocks))
            raise ArgumentError(
                f"A source must be one of {known}; got {name!r}.", name="name", value=name
            )

    def _check_weights(self, start: int, by_name: Mapping[str, float]) -> Weights:
        numbers = {name: _check_weight(name, weight) for name, weight in by_name.items()}
        drawn = {name: w for name, w in numbers.items() if w and self.limit(name) != 0}
        if not drawn:
            raise ArgumentError(
                "At least one source with blocks must have a weight above 0; got "
                f"{dict(by_name)!r}.",
                name="weights",
                value=by_name,
            )
        total = sum(map(Fraction, drawn.values()))  # exact, and never infinite
        for name, weight in drawn.items():
            if Fraction(weight) * MAX_PERIOD < total:
                raise ArgumentError(
                    f"A weight must be 0 or at least 1/{MAX_PERIOD} of their sum; got {weight} "
                    f"for {name!r} in {drawn}.",
                    name="weights",
                    value=weight,
                )
        sizes = {name: blocks.block_size for name, blocks in self.blocks.items()}
        if len(set(sizes.values())) > 1:
            raise ArgumentError(
                f"All sources must have the same block_size; got {sizes} (tokens).",
                name="sources",
                value=sizes,
            )
        return Weights(start, numbers)


class MixtureOrder:
    """A mixture with a seed: the source of every position, and the position in that source.

    Args:
        mixture: the sources and their weights.
        seed: the run's seed.
    """

    def __init__(self, mixture: Mixture, *, seed: int) -> None:
        self._mixture = mixture
        self._limits = [mixture.limit(name) for name in mixture.blocks]
        self.phases: list[Phase] = []
        """In order, each until the next one's start."""
        self.num_positions: int | None = None
        """Positions in all; None if there is no end."""
        self._changes: list[int] = []  # for each phase, which of the mixture's weights it has
        self._plan(seed)
        self._starts = [phase.start for phase in self.phases]

    def locate(
        self, positions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the source of each position, and the position in that source.

        Args:
            positions: `(num_positions,)`, int64, ascending, each in [0, num_positions).

        Returns:
            sources: `(num_positions,)`, int64: the source, counted in the mixture's order.
            indices: `(num_positions,)`, int64: how many of that source came before.
        """
        edges = np.searchsorted(positions, [*self._starts[1:], 2**63 - 1])
        sources, indices = np.empty_like(positions), np.empty_like(positions)
        low = 0
        for phase, high in zip(self.phases, edges.tolist(), strict=True):
            if low < high:
                part = slice(low, high)
                sources[part], indices[part] = phase.locate(positions[part])
            low = high
        return sources, indices

    def counts(self, position: int) -> list[int]:
        """Returns, for each source, how many of its samples come before `position`."""
        number = bisect.bisect_right(self._starts, position) - 1
        return self.phases[number].counts(position)

    def num_changes(self, position: int) -> int:
        """Returns how many of the mixture's weights, the first included, begin before `position`.

        One that would come too late begins early, where all sources of those before ran out.
        """
        number = bisect.bisect_left(self._starts, position)
        return self._changes[number - 1] + 1 if number else 0

    def _plan(self, seed: int) -> None:
        """Lays the phases out, until the order ends or goes on for ever."""
        start, counts = 0, [0] * len(self._limits)
        changes = list(self._mixture.weights)
        while changes:
            while len(changes) > 1 and changes[1].start <= start:
                changes.pop(0)
            weights = self._remaining(changes[0], counts)
            if not any(weights):  # a change that would come too late begins here
                changes.pop(0)
                continue
            phase = Phase(start, counts, weights, seed=seed)
            self.phases.append(phase)
            self._changes.append(len(self._mixture.weights) - len(changes))
            exhausted = self._first_exhausted(phase)
            following = changes[1].start if len(changes) > 1 else None
            ends = [end for end in (exhausted, following) if end is not None]
            if not ends:
                return
            start = min(ends)
            counts = phase.counts(start)
            if self._mixture.on_exhausted == "stop" and start == exhausted:
                break
        self.num_positions = start

    def _remaining(self, entry: Weights, counts: list[int]) -> list[float]:
        """Returns the weights of `entry`, 0 for what is exhausted."""
        return [
            0.0 if limit is not None and count >= limit else weight
            for weight, limit, count in zip(
                entry.by_name.values(), self._limits, counts, strict=True
            )
        ]

    def _first_exhausted(self, phase: Phase) -> int | None:
        """Returns the first position of the phase at which a source has been used up."""
        limits = [(source, self._limits[source]) for source in phase.active]
        ends = [phase.position_of(source, limit) for source, limit in limits if limit is not None]
        return min(ends, default=None)


def _check_source(name: object, pair: object) -> tuple[BlockReader, float]:
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"A source's name must be a string; got {name!r}.", name="sources", value=name
        )
    if not isinstance(pair, tuple | list) or len(pair) != 2:  # noqa: PLR2004 - blocks and weight
        raise ArgumentTypeError(
            f"sources[{name!r}] must be (blocks, weight); got {pair!r}.",
            name="sources",
            value=pair,
        )
    blocks, weight = pair
    if not hasattr(blocks, "gather"):
        raise ArgumentTypeError(
            f"sources[{name!r}] must hold blocks, from packcore.open(...).blocks(block_size); got "
            f"{type(blocks).__name__}.",
            name="sources",
            value=blocks,
        )
    return blocks, _check_weight(name, weight)


def _check_schedule(schedule: object) -> list[tuple[int, Mapping[str, float]]]:
    """Returns the changes of a schedule; `Mixture.reweight` checks what is in them."""
    listed = list(schedule) if isinstance(schedule, Iterable) else schedule
    if listed is None:
        return []
    if not isinstance(listed, list) or not all(
        isinstance(change, tuple | list) and len(change) == 2  # noqa: PLR2004 - when and what
        for change in listed
    ):
        raise ArgumentTypeError(
            f"schedule must be a list of (position, {{name: weight}}); got {schedule!r}.",
            name="schedule",
            value=schedule,
        )
    return listed


def _check_weight(name: str, weight: object) -> float:
    if isinstance(weight, bool) or not isinstance(weight, Real):
        raise ArgumentTypeError(
            f"The weight of {name!r} must be a number; got {weight!r}.",
            name="weights",
            value=weight,
        )
    try:
        number = float(weight)
    except OverflowError:  # an int or a Fraction beyond every float
        number = math.inf
    if not (math.isfinite(number) and number >= 0):
        raise ArgumentError(
            f"The weight of {name!r} must be finite and at least 0; got {number}.",
            name="weights",
            value=number,
        )
    return number
