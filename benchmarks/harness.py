"""Times two contenders in turns and prints one line a contest.

The turns are interleaved (A B A B ...), so that what else the machine does meets both. A ratio is
the median over the turns' ratios. Nothing here decides: a missed target is printed, no more.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is read and built; `QUICK` only shows that every contest runs."""

    num_chunks: int = 8
    blocks_per_chunk: int = 1024
    block_size: int = 2049
    batch_size: int = 16
    num_documents: int = 20_000
    rounds: int = 7

    @property
    def chunk_size(self) -> int:
        """Tokens in a chunk."""
        return self.blocks_per_chunk * self.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks in all chunks."""
        return self.num_chunks * self.blocks_per_chunk


FULL = Sizes()
QUICK = Sizes(num_chunks=4, blocks_per_chunk=16, block_size=33, num_documents=5, rounds=2)


@dataclass(frozen=True, slots=True)
class Contest:
    """Two ways to do the same work. Each call does all of it and returns the tokens it made."""

    title: str
    ours: Callable[[], int]
    theirs: Callable[[], int]
    target: float | None
    """The least ratio of ours to theirs, in tokens/s; None if the line is only to compare with."""
    rival: str = "the reference's technique"
    """What `theirs` is."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One piece of work that must not take longer than `at_most` seconds."""

    title: str
    ours: Callable[[], object]
    at_most: float


def rate(work: Callable[[], int]) -> float:
    """Returns tokens/s of one call."""
    start = time.perf_counter()
    tokens = work()
    return tokens / (time.perf_counter() - start)


def seconds(work: Callable[[], object]) -> float:
    """Returns the seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run_contest(contest: Contest, rounds: int) -> str:
    """Runs a contest, one unmeasured turn each first, and returns its line."""
    if contest.ours() != contest.theirs():
        message = f"{contest.title}: the contenders made different numbers of tokens."
        raise RuntimeError(message)
    turns = [(rate(contest.ours), rate(contest.theirs)) for _ in range(rounds)]
    ours, theirs = (statistics.median(column) for column in zip(*turns, strict=True))
    ratio = statistics.median(mine / other for mine, other in turns)
    return (
        f"{contest.title:<44} {ours / 1e6:>8.1f} {theirs / 1e6:>8.1f} {ratio:>7.2f}"
        f" {verdict(ratio, contest.target)}{contest.rival}"
    )


def verdict(ratio: float, target: float | None) -> str:
    """Returns the target and whether it was met, in columns."""
    if target is None:
        return f"{'-':>7}  {'':<8}"
    return f"{target:>7.2f}  {'met' if ratio >= target else 'missed':<8}"


def run_limit(limit: Limit, rounds: int) -> str:
    """Runs a limit and returns its line."""
    took = statistics.median(seconds(limit.ours) for _ in range(rounds))
    return (
        f"{limit.title:<44} {took * 1e3:>8.2f} ms, target at most {limit.at_most * 1e3:g} ms"
        f"  {'met' if took <= limit.at_most else 'missed'}"
    )


HEAD = (
    f"{'':<44} {'M tokens/s':>17}\n"
    f"{'':<44} {'packcore':>8} {'rival':>8} {'ratio':>7} {'target':>7}  {'':<8}rival"
)
