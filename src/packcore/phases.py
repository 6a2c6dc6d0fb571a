"""Phases of a mixture: stretches of positions with the same weights.

Within a phase positions come in periods. The counts at the end of period k are the exact shares
of k periods rounded by the method of largest remainders, in whole numbers, so that no error
adds up: each source is less than one sample from its share at every period's end. A period
gives each source at least one sample, hence its counts never fall from one period to the next.
Inside a period the draws are shuffled by a keyed bijection. What the weights belong to is for
`packcore.mixture`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packcore.cache import Cache
from packcore.permutation import derive_key, permute

__all__ = ["MAX_PERIOD", "Phase"]

_MIN_PERIOD = 1024

MAX_PERIOD = 2**24
"""The longest period in positions: no source may have a smaller share than one in so many."""

_PIECE = 2**16
"""Places of a period that are shuffled at a time: what this takes stays in a cache."""


class _Draws(NamedTuple):
    """What is drawn in one period."""

    sources: npt.NDArray[np.unsignedinteger[Any]]
    """`(period,)`, as narrow as it may be: the source of each place."""
    ranks: npt.NDArray[np.int32]
    """`(period,)`: how many of the period's samples of that source come before it."""
    firsts: npt.NDArray[np.int64]
    """`(num_sources,)`: the samples of each source that come before the period."""


class Phase:
    """A stretch of positions with the same weights.

    Args:
        start: its first position.
        base: for each source, the samples drawn before the phase.
        weights: for each source, its weight; finite, at least 0, not all 0.
        seed: the run's seed.

    Examples:
        >>> phase = Phase(0, [0, 0], [3, 1], seed=7)
        >>> phase.period, phase.counts(1024), phase.counts(1024000)
        (1024, [768, 256], [768000, 256000])
    """

    def __init__(
        self, start: int, base: Sequence[int], weights: Sequence[float], *, seed: int
    ) -> None:
        self.start = start
        self._base = list(base)
        self._seed = seed
        fractions = [Fraction(weight) for weight in weights]
        scale = math.lcm(*(fraction.denominator for fraction in fractions))
        self._parts = [int(fraction * scale) for fraction in fractions]
        self._total = sum(self._parts)
        self.active = [index for index, part in enumerate(self._parts) if part]
        """The sources that are drawn."""
        smallest = min(self._parts[index] for index in self.active)
        needed = -(-self._total // smallest) if len(self.active) > 1 else 1
        self.period = max(_MIN_PERIOD, 1 << (needed - 1).bit_length())
        """Positions in a period."""
        self._periods = Cache(self._make_period, 2)

    def locate(
        self, positions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the source of each position, and the position in that source.

        Args:
            positions: `(num_positions,)`, int64, none before the phase.
        """
        if len(self.active) == 1:  # every position is this source's: nothing to shuffle
            (source,) = self.active
            offset = self._base[source] - self.start
            return np.full(len(positions), source, np.int64), positions + offset
        periods, places = np.divmod(positions - self.start, np.int64(self.period))
        sources = np.empty_like(positions)
        indices = np.empty_like(positions)
        for period in np.unique(periods).tolist():
            chosen = periods == period
            draws = self._periods[period]
            drawn = draws.sources[places[chosen]]
            sources[chosen] = drawn
            indices[chosen] = draws.firsts[drawn] + draws.ranks[places[chosen]]
        return sources, indices

    def counts(self, position: int) -> list[int]:
        """Returns, for each source, the samples drawn before `position`."""
        if len(self.active) == 1:
            counts = list(self._base)
            counts[self.active[0]] += position - self.start
            return counts
        period, place = divmod(position - self.start, self.period)
        counts = self._quotas(period)
        if place:
            drawn = self._periods[period].sources[:place]
            inside = np.bincount(drawn, minlength=len(counts)).tolist()
            counts = [count + more for count, more in zip(counts, inside, strict=True)]
        return [count + more for count, more in zip(counts, self._base, strict=True)]

    def position_of(self, source: int, count: int) -> int:
        """Returns the first position before which `source`, an active one, was drawn `count` times.

        `count` is at least what was drawn before the phase.
        """
        needed = count - self._base[source]
        if needed <= 0:
            return self.start
        if len(self.active) == 1:
            return self.start + needed
        period = self._last_period_below(source, needed)
        missing = needed - self._quotas(period)[source]
        (places,) = np.nonzero(self._periods[period].sources == source)
        return self.start + period * self.period + int(places[missing - 1]) + 1

    def _last_period_below(self, source: int, count: int) -> int:
        """Returns the last period at whose start `source` was drawn fewer than `count` times."""
        low, high = 0, 1
        while self._quotas(high)[source] < count:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._quotas(middle)[source] < count else (low, middle)
        return low

    def _quotas(self, num_periods: int) -> list[int]:
        """Returns each source's samples in the first `num_periods` periods."""
        drawn = self.period * num_periods
        exact = [divmod(part * drawn, self._total) for part in self._parts]
        counts = [whole for whole, _ in exact]
        by_remainder = sorted(range(len(exact)), key=lambda index: (-exact[index][1], index))
        for index in by_remainder[: drawn - sum(counts)]:
            counts[index] += 1
        return counts

    def _make_period(self, period: int) -> _Draws:
        before, after = np.array(self._quotas(period)), np.array(self._quotas(period + 1))
        shares = after - before
        ends = np.cumsum(shares)
        key = derive_key("mixture", self._seed, self.start, period)
        sources = np.empty(self.period, np.min_scalar_type(len(shares)))
        for start in range(0, self.period, _PIECE):
            places = permute(np.arange(start, min(start + _PIECE, self.period)), self.period, key)
            sources[start : start + _PIECE] = np.searchsorted(ends, places, side="right")
        # Sorted by source, places stay in order: each source's samples follow one another.
        order = np.argsort(sources, kind="stable")
        ranks = np.empty(self.period, np.int32)
        ranks[order] = np.arange(self.period, dtype=np.int32)
        ranks -= (ends - shares).astype(np.int32)[sources]
        return _Draws(sources, ranks, np.array(self._base) + before)
