"""What one pass over lit-gpt's shards serves, drops and fills: counted, not read.

Only manifests are opened, to learn which tokens are fill.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from packcore.manifest import manifest_path, read_manifest
from packcore.reference.plan import Plan
from packcore.sharding import shard_files

__all__ = ["PackedReport", "ShardReport", "make_report"]


@dataclass(frozen=True, slots=True)
class ShardReport:
    """One pass of one shard."""

    rank: int
    """The data-parallel rank."""
    worker: int
    """The loader process within the rank."""
    num_files: int
    """Files served."""
    num_blocks: int
    """Blocks served."""
    num_tokens: int
    """Tokens served, fill included."""
    num_fill_tokens: int | None
    """Of the tokens served, those that are fill; None if a served file is in no manifest."""
    num_dropped_files: int
    """Files of this shard after the last whole window."""
    num_dropped_file_tokens: int
    """Tokens in these files, fill included."""
    num_tail_tokens: int
    """Tokens after the last whole block of each file served, dropped as well; fill included."""

    @property
    def num_dropped_tokens(self) -> int:
        """Tokens of this shard that are not served."""
        return self.num_dropped_file_tokens + self.num_tail_tokens

    def __str__(self) -> str:
        fill = "unknown" if self.num_fill_tokens is None else self.num_fill_tokens
        return (
            f"rank {self.rank}, worker {self.worker}: serves {self.num_tokens} tokens in "
            f"{self.num_blocks} blocks of {self.num_files} files (fill: {fill}); drops "
            f"{self.num_dropped_tokens} tokens, {self.num_dropped_file_tokens} in "
            f"{self.num_dropped_files} files at the end and {self.num_tail_tokens} at chunks' ends"
        )


@dataclass(frozen=True, slots=True)
class PackedReport:
    """One pass of all shards. With `wrap`, every pass is the same but for its shuffle."""

    shards: tuple[ShardReport, ...]
    """Rank by rank, in each worker by worker."""
    num_unassigned_files: int
    """Files that are in no shard, because they do not go evenly into the shards."""
    num_unassigned_tokens: int
    """Tokens in these files, fill included."""

    @property
    def num_tokens(self) -> int:
        """Tokens served, fill included."""
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def num_fill_tokens(self) -> int | None:
        """Of the tokens served, those that are fill; None if it is unknown for a shard."""
        counts = [shard.num_fill_tokens for shard in self.shards]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def num_dropped_tokens(self) -> int:
        """Tokens that no shard serves."""
        dropped = sum(shard.num_dropped_tokens for shard in self.shards)
        return dropped + self.num_unassigned_tokens

    def __str__(self) -> str:
        fill = "unknown" if self.num_fill_tokens is None else self.num_fill_tokens
        total = (
            f"One pass of {len(self.shards)} shards serves {self.num_tokens} tokens (fill: {fill}) "
            f"and drops {self.num_dropped_tokens}, {self.num_unassigned_tokens} of them in "
            f"{self.num_unassigned_files} files that are in no shard."
        )
        return "\n".join([total, *map(str, self.shards)])


def make_report(plan: Plan, num_processes: int, num_workers: int) -> PackedReport:
    """Counts one pass of every shard.

    Raises:
        FormatError: a manifest beside the chunks is damaged.
    """
    num_files = len(plan.chunks.paths)
    num_valid = _valid_tokens(plan.chunks.paths)
    shards = []
    for rank in range(num_processes):
        for worker in range(num_workers):
            files = shard_files(
                num_files,
                rank=rank,
                world_size=num_processes,
                worker=worker,
                num_workers=num_workers,
            )
            shards.append(_report_shard(plan, files, num_valid, rank, worker))
    num_unassigned = num_files % (num_processes * num_workers)
    unassigned_tokens = num_unassigned * plan.chunks.header.chunk_size
    return PackedReport(tuple(shards), num_unassigned, unassigned_tokens)


def _report_shard(
    plan: Plan, files: range, num_valid: dict[str, int], rank: int, worker: int
) -> ShardReport:
    chunk_size = plan.chunks.header.chunk_size
    num_dropped = len(files) % plan.n_chunks
    served = files[: len(files) - num_dropped]
    chunk_tokens = plan.chunk_blocks * plan.block_size
    valid = [num_valid.get(plan.chunks.paths[index]) for index in served]
    return ShardReport(
        rank=rank,
        worker=worker,
        num_files=len(served),
        num_blocks=len(served) * plan.chunk_blocks,
        num_tokens=len(served) * chunk_tokens,
        num_fill_tokens=_count_fill(valid, chunk_tokens),
        num_dropped_files=num_dropped,
        num_dropped_file_tokens=num_dropped * chunk_size,
        num_tail_tokens=len(served) * (chunk_size - chunk_tokens),
    )


def _count_fill(valid: list[int | None], chunk_tokens: int) -> int | None:
    num_fill = 0
    for count in valid:
        if count is None:
            return None
        num_fill += max(0, chunk_tokens - count)
    return num_fill


def _valid_tokens(paths: tuple[str, ...]) -> dict[str, int]:
    """Path -> valid tokens, for the files that are in a manifest beside them."""
    known: dict[str, dict[str, int]] = {}
    num_valid: dict[str, int] = {}
    for path in paths:
        folder, name = Path(path).parent, Path(path).name
        manifest = manifest_path(folder, name.rpartition("_")[0])
        if manifest not in known:
            known[manifest] = _read_valid_tokens(manifest)
        if name in known[manifest]:
            num_valid[path] = known[manifest][name]
    return num_valid


def _read_valid_tokens(manifest: str) -> dict[str, int]:
    if not os.path.exists(manifest):
        return {}
    return {entry.file: entry.num_tokens for entry in read_manifest(manifest).chunks}
