"""What a pass serves, drops and fills."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_chunks import CHUNK_SIZE, write_chunks

from packcore.manifest import ChunkEntry, Manifest, write_manifest
from packcore.reference import (
    PackedDataset,
)


def test_a_report_counts_what_each_shard_serves_and_drops(tmp_path):
    # 11 files: 5 a rank, 1 in no shard. Windows of 2: 4 served, 1 left over. Blocks of 3: 1
    # token left over in each chunk of 10.
    dataset = PackedDataset(write_chunks(tmp_path, 11), 2, 3, num_processes=2)
    report = dataset.report()
    first, second = report.shards
    assert (first.rank, first.worker, second.rank, second.worker) == (0, 0, 1, 0)
    for shard in report.shards:
        assert (shard.num_files, shard.num_blocks, shard.num_tokens) == (4, 12, 36)
        assert (shard.num_dropped_files, shard.num_dropped_file_tokens) == (1, 10)
        assert (shard.num_tail_tokens, shard.num_dropped_tokens) == (4, 14)
        assert shard.num_fill_tokens is None
    assert (report.num_unassigned_files, report.num_unassigned_tokens) == (1, 10)
    assert (report.num_tokens, report.num_dropped_tokens) == (72, 38)
    assert report.num_fill_tokens is None


@given(
    num_files=st.integers(1, 30),
    n_chunks=st.integers(1, 4),
    block_size=st.integers(1, 10),
    num_processes=st.integers(1, 3),
    num_workers=st.integers(1, 3),
)
@settings(max_examples=40)
def test_served_and_dropped_tokens_are_all_tokens(
    num_files, n_chunks, block_size, num_processes, num_workers
):
    num_files = max(num_files, n_chunks * num_processes * num_workers)
    with tempfile.TemporaryDirectory() as folder:
        dataset = PackedDataset(
            write_chunks(folder, num_files),
            n_chunks,
            block_size,
            num_processes=num_processes,
            num_workers=num_workers,
        )
        report = dataset.report()
        assert len(report.shards) == num_processes * num_workers
        assert report.num_tokens + report.num_dropped_tokens == num_files * CHUNK_SIZE
        served = sum(block.size for block in dataset)
        assert report.shards[0].num_tokens == served
        assert report.shards[0].num_blocks == served // block_size


def write_manifest_beside(folder, paths, num_valid):
    entries = tuple(
        ChunkEntry(Path(path).name, valid, None, "0" * 64, 0, 9)
        for path, valid in zip(paths, num_valid, strict=True)
    )
    write_manifest(folder, Manifest("train", np.dtype("uint16"), CHUNK_SIZE, 0, entries))


def test_a_report_counts_the_fill_that_a_manifest_tells_of(tmp_path):
    paths = write_chunks(tmp_path, 4)
    write_manifest_beside(tmp_path, paths, [10, 10, 10, 4])
    report = PackedDataset(paths, 1, 3, num_processes=2).report()
    # Of the last chunk 9 tokens are served; from the fifth on they are fill.
    assert [shard.num_fill_tokens for shard in report.shards] == [0, 5]
    assert report.num_fill_tokens == 5


def test_fill_that_is_not_served_is_not_counted(tmp_path):
    paths = write_chunks(tmp_path, 3)
    write_manifest_beside(tmp_path, paths, [10, 9, 0])
    # Blocks of 9: the tenth token is in no block. Windows of 2: the last file is in none.
    assert PackedDataset(paths, 2, 9).report().num_fill_tokens == 0


def test_fill_is_unknown_where_a_served_chunk_is_in_no_manifest(tmp_path):
    paths = write_chunks(tmp_path, 4)
    write_manifest_beside(tmp_path, paths[:3], [10, 10, 10])
    report = PackedDataset(paths, 1, 10, num_processes=2).report()
    assert [shard.num_fill_tokens for shard in report.shards] == [0, None]
    assert report.num_fill_tokens is None


def test_a_report_can_be_read(tmp_path):
    paths = write_chunks(tmp_path, 5)
    write_manifest_beside(tmp_path, paths, [10, 10, 10, 10, 4])
    assert str(PackedDataset(paths, 2, 3, num_workers=1).report()) == (
        "One pass of 1 shards serves 36 tokens (fill: 0) and drops 14, 0 of them in 0 files that "
        "are in no shard.\n"
        "rank 0, worker 0: serves 36 tokens in 12 blocks of 4 files (fill: 0); drops 14 tokens, "
        "10 in 1 files at the end and 4 at chunks' ends"
    )


def test_a_report_for_workers_counts_a_shard_for_each(tmp_path):
    dataset = PackedDataset(write_chunks(tmp_path, 9), 2, 10)
    report = dataset.for_worker(num_workers=2, worker_id=1).report()
    assert [(shard.worker, shard.num_files) for shard in report.shards] == [(0, 4), (1, 4)]
    assert report.num_unassigned_files == 1
