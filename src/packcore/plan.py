"""What a run will serve, drop, pad and repeat, known before any token is read.

Counting follows from the order alone; serving is for `packcore.loader`.
"""

from __future__ import annotations

from dataclasses import dataclass

from packcore.protocols import BlockReader
from packcore.sharding import ServedSteps, rank_rows
from packcore.stream import Stream

__all__ = ["Plan", "RankPlan", "RowOrigin", "SourcePlan", "make_plan"]


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Where a row of a batch comes from."""

    source: str
    """The source's name; "data" for a loader of one source."""
    epoch: int
    """The pass over the source, from 0."""
    block: int
    """The block of the source."""
    file: str | None
    """The file that the row begins in; None if the source is not made of files."""
    offset: int | None
    """Its first token, counted from the first of the file."""
    documents: range | None
    """The numbers of the source's documents that it has tokens of; None if they are unknown."""

    @classmethod
    def of(cls, source: str, reader: BlockReader, epoch: int, block: int) -> RowOrigin:
        """Returns the origin of a block of a source."""
        find = getattr(reader, "origin", None)
        if find is None:
            return cls(source, epoch, block, None, None, None)
        origin = find(block)
        return cls(source, epoch, block, origin.file, origin.offset, origin.documents)


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What a run does with one source, over all ranks."""

    name: str
    num_blocks: int
    """Blocks that the source has."""
    blocks_served: int
    """Rows of batches, repeats included."""
    tokens_served: int
    """The same in tokens."""
    tokens_repeated: int
    """Tokens of what is served beyond one pass."""
    tokens_dropped: int
    """Tokens never served: blocks not reached, and what is in no block."""
    tokens_skipped: int
    """Tokens of the blocks in skipped steps."""
    epochs: float
    """Passes over the source, skipped blocks included."""

    def __str__(self) -> str:
        return (
            f"source {self.name}: {self.epochs:.4g} epochs, tokens: {self.tokens_served} served, "
            f"{self.tokens_repeated} repeated, {self.tokens_dropped} dropped, "
            f"{self.tokens_skipped} skipped"
        )


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank gets."""

    rank: int
    rows_per_step: int
    """Rows of each batch, fill included."""
    tokens_served: int
    """Tokens in all, fill excluded."""
    tokens_padded: int
    """Tokens of fill."""

    def __str__(self) -> str:
        return (
            f"rank {self.rank}: {self.rows_per_step} rows a step, tokens: {self.tokens_served} "
            f"served, {self.tokens_padded} padded"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run serves. `str()` is a table."""

    num_steps: int
    """Steps served; the same on every rank."""
    num_skipped_steps: int
    global_batch_size: int
    block_size: int
    sources: tuple[SourcePlan, ...]
    ranks: tuple[RankPlan, ...]

    @property
    def tokens_served(self) -> int:
        """Tokens over all sources."""
        return sum(source.tokens_served for source in self.sources)

    @property
    def tokens_padded(self) -> int:
        """Tokens of fill over all ranks."""
        return sum(rank.tokens_padded for rank in self.ranks)

    def __str__(self) -> str:
        head = (
            f"{self.num_steps} steps of {self.global_batch_size} x {self.block_size} tokens on "
            f"{len(self.ranks)} ranks, {self.num_skipped_steps} steps skipped"
        )
        total = f"{self.tokens_served} tokens served, {self.tokens_padded} padded"
        return "\n".join((head, total, *map(str, self.sources), *map(str, self.ranks)))


def make_plan(
    stream: Stream,
    *,
    num_steps: int,
    global_batch_size: int,
    world_size: int,
    skip: ServedSteps,
) -> Plan:
    """Returns what steps [0, num_steps) of a run serve.

    Args:
        stream: the order.
        num_steps: steps, skipped ones included.
        global_batch_size: rows of a step over all ranks.
        world_size: the number of ranks.
        skip: which steps are left out.
    """
    ranges = [(start, min(stop, num_steps)) for start, stop in skip.ranges() if start < num_steps]
    positions = [(start * global_batch_size, stop * global_batch_size) for start, stop in ranges]
    end = num_steps * global_batch_size
    reached = _count(stream, 0, end)
    left_out = [_count(stream, start, stop) for start, stop in positions]
    skipped = [sum(counts) for counts in zip([0] * len(reached), *left_out, strict=True)]
    sources = tuple(
        _source_plan(*source)
        for source in zip(stream.names, stream.readers, reached, skipped, strict=True)
    )
    num_skipped = sum(stop - start for start, stop in ranges)
    last = None if stream.num_positions is None else min(stream.num_positions, end)
    fill = end - last if last is not None and num_steps - num_skipped else 0
    if ranges and ranges[-1][1] == num_steps:  # the padded step is skipped itself
        fill = 0
    return Plan(
        num_steps=num_steps - num_skipped,
        num_skipped_steps=num_skipped,
        global_batch_size=global_batch_size,
        block_size=stream.mixture.block_size,
        sources=sources,
        ranks=tuple(
            _rank_plan(
                rank_rows(global_batch_size, rank=rank, world_size=world_size),
                rank,
                num_steps=num_steps - num_skipped,
                first_fill=global_batch_size - fill,
                block_size=stream.mixture.block_size,
            )
            for rank in range(world_size)
        ),
    )


def _count(stream: Stream, start: int, stop: int) -> list[int]:
    """Returns each source's blocks in positions [start, stop)."""
    end = stream.num_positions
    if end is not None:
        start, stop = min(start, end), min(stop, end)
    before = stream.order.counts(start)
    return [count - low for count, low in zip(stream.order.counts(stop), before, strict=True)]


def _source_plan(name: str, reader: BlockReader, reached: int, skipped: int) -> SourcePlan:
    num_blocks, size = len(reader), reader.block_size
    stride = min(getattr(reader, "stride", size), size)
    in_no_block = getattr(reader, "num_dropped_tokens", 0)
    return SourcePlan(
        name=name,
        num_blocks=num_blocks,
        blocks_served=reached - skipped,
        tokens_served=(reached - skipped) * size,
        tokens_repeated=max(0, reached - num_blocks) * size,
        tokens_dropped=max(0, num_blocks - reached) * stride + in_no_block,
        tokens_skipped=skipped * size,
        epochs=reached / num_blocks if num_blocks else 0.0,
    )


def _rank_plan(
    rows: range, rank: int, *, num_steps: int, first_fill: int, block_size: int
) -> RankPlan:
    padded = max(0, rows.stop - max(rows.start, first_fill))
    return RankPlan(
        rank=rank,
        rows_per_step=len(rows),
        tokens_served=(len(rows) * num_steps - padded) * block_size,
        tokens_padded=padded * block_size,
    )
