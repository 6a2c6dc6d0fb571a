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

import numpy as np
import numpy.typing as npt

from packcore.cache import Cache
from packcore.permutation import derive_key, permute

__all__ = ["MAX_PERIOD", "Phase"]

_MIN_PERIOD = 1024

MAX_PERIOD = 2**24
"""The longest period in positions: no source may have a smaller share than one in so many."""


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
            drawn, numbers = self._periods[period]
            sources[chosen] = drawn[places[chosen]]
            indices[chosen] = numbers[places[chosen]]
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
            drawn = self._periods[period][0][:place]
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
        (places,) = np.nonzero(self._periods[period][0] == source)
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

    def _make_period(self, period: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns, for each place of a period, the source and the position in that source."""
        before, after = self._quotas(period), self._quotas(period + 1)
        shares = np.array(after) - np.array(before)
        slots = np.repeat(np.arange(len(shares)), shares)
        key = derive_key("mixture", self._seed, self.start, period)
        drawn = slots[permute(np.arange(self.period), self.period, key)]
        # Sorted by source, places stay in order: each source's samples follow one another.
        places = np.argsort(drawn, kind="stable")
        firsts = np.array(self._base) + np.array(before) - (np.cumsum(shares) - shares)
        numbers = np.empty(self.period, np.int64)
        numbers[places] = np.arange(self.period) + firsts[slots]
        return drawn, numbers
