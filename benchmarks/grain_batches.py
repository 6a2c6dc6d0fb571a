"""Batches in Grain pipelines, beside ArrayRecord files of the same blocks and NumPy alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

import packcore
from benchmarks.corpus import VOCAB_SIZE, make_documents
from benchmarks.harness import Contest
from packcore.trainers import maxtext_batch
from packcore_grain import BlockSource, LoaderDataset, StepDataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from benchmarks.harness import Sizes

READ_HERE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
ARRAY_RECORD = "ArrayRecord, shuffle, batch"


def contests(sizes: Sizes, folder: Path) -> Iterator[Contest]:
    """One shuffled pass over the same blocks each, in batches, in the process that uses them."""
    blocks = build(sizes, folder / "packcore")
    rows = blocks.gather(np.arange(len(blocks)))
    source = write_array_record(rows, folder / "blocks.array_record")
    size = sizes.batch_size
    num_tokens = len(blocks) // size * size * sizes.block_size

    def loader(**options: Any) -> packcore.Loader:
        return packcore.Loader(blocks, size, **{"seed": 1, "epochs": 1, "prefetch": 0} | options)

    def drain(batches: Iterable[object]) -> int:
        for _ in batches:
            pass
        return num_tokens

    def contest(title: str, ours: Any, theirs: Any, target: float | None, rival: str) -> Contest:
        return Contest(f"grain: {title}", lambda: drain(ours), lambda: drain(theirs), target, rival)

    window = loader(shuffle="window")
    batches, steps = LoaderDataset(loader()), StepDataset(loader()).to_iter_dataset()
    limit, window_limit = Take(rows, loader()), Take(rows, window)
    numpy = "np.take from memory"
    yield contest("LoaderDataset, window order", LoaderDataset(window), window_limit, 0.75, numpy)
    yield contest("LoaderDataset, global order", batches, limit, 0.75, numpy)
    ahead = LoaderDataset(loader(prefetch=2))
    yield contest("the same, a thread ahead", ahead, limit, None, numpy)
    yield contest("StepDataset, global order", steps, limit, 0.6, numpy)

    records = grain.MapDataset.source(source).map(decode).shuffle(seed=1)
    array_record = records.batch(size, drop_remainder=True).to_iter_dataset(READ_HERE)
    threads = records.to_iter_dataset().batch(size, drop_remainder=True)
    yield contest("LoaderDataset", batches, array_record, 40.0, ARRAY_RECORD)
    yield contest(
        "LoaderDataset", batches, threads, None, "ArrayRecord, shuffle, 16 threads, batch"
    )
    singles = BlockSource(blocks).shuffle(seed=1).batch(size, drop_remainder=True)
    singles = singles.to_iter_dataset(READ_HERE)
    yield contest("BlockSource, shuffle, batch", singles, array_record, 4.0, ARRAY_RECORD)
    maxtext = LoaderDataset(loader(fields=["tokens", "segment_ids", "positions"])).map(
        maxtext_batch
    )
    yield contest("MaxText's six arrays", maxtext, array_record, 10.0, ARRAY_RECORD)


def build(sizes: Sizes, folder: Path) -> packcore.Blocks:
    """Packs documents of about 500 tokens."""
    documents = make_documents(sizes, 500)
    with packcore.PackedDatasetBuilder(
        folder, "train", sizes.chunk_size, sep_token=0, vocab_size=VOCAB_SIZE
    ) as builder:
        builder.add_documents(np.concatenate(documents), [len(one) for one in documents])
    return packcore.open(folder).blocks(sizes.block_size)


def write_array_record(rows: npt.NDArray[Any], path: Path) -> grain.sources.ArrayRecordDataSource:
    """Writes a record per block, uncompressed, as random access wants it."""
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for row in rows:
        writer.write(row.tobytes())
    writer.close()
    return grain.sources.ArrayRecordDataSource(str(path))


def decode(record: bytes) -> npt.NDArray[np.uint16]:
    """Returns the tokens of a record."""
    return np.frombuffer(record, np.uint16)


class Take:
    """The batches of a loader by one np.take each, from one array, where each is known before."""

    def __init__(self, rows: npt.NDArray[Any], loader: packcore.Loader) -> None:
        self._rows = rows
        positions = np.arange(len(loader) * loader.global_batch_size)
        self._ids = loader.stream.locate(positions).ids.reshape(len(loader), -1)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Starts one pass."""
        for ids in self._ids:
            yield self._rows.take(ids, axis=0)
