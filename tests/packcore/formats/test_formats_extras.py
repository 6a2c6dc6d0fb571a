"""Formats that are read through their own packages; each test needs its package."""

import itertools
import json
import pickle
import struct

import numpy as np
import pytest
from samples import DOCUMENTS, SAMPLES, copy_of, documents_of

import packcore
from packcore.errors import ArgumentError, FormatError
from packcore.formats.arrayrecord import read_feature


@pytest.fixture
def pyarrow():
    return pytest.importorskip("pyarrow")


@pytest.fixture
def parquet(pyarrow):  # noqa: ARG001 - skips without it
    return pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize(
    "name",
    ["disk_uint16", "disk_int32", "disk_int64", "ipc_file_large_u16.arrow"]
    + [f"{name}.parquet" for name in ("uint16", "int32", "int64", "pyarrow_large_u16")],
)
def test_hugging_face_rows_are_documents(pyarrow, name):  # noqa: ARG001 - skips without it
    assert documents_of(SAMPLES / "hf" / name) == DOCUMENTS


def write_arrow(pyarrow, path, rows, *, kind, compression=None, batch=3):
    table = pyarrow.table({"x": list(range(len(rows))), "input_ids": rows})
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with getattr(pyarrow.ipc, f"new_{kind}")(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch)


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_each_record_batch_is_a_chunk(tmp_path, pyarrow, kind, compression):
    rows = [[1, 2], [], [3], [4, 5, 6], [7]]
    path = str(tmp_path / "a.arrow")
    write_arrow(pyarrow, path, rows, kind=kind, compression=compression)
    dataset = packcore.open(path)
    assert [chunk.num_tokens for chunk in dataset.chunks] == [3, 4]
    assert {chunk.access for chunk in dataset.chunks} == {"decode" if compression else "map"}
    assert documents_of(path) == rows
    again = pickle.loads(pickle.dumps(dataset))
    assert again.tokens(1, 6).tolist() == [2, 3, 4, 5, 6]
    assert again.fingerprint == dataset.fingerprint


def test_each_row_group_is_a_chunk(tmp_path, parquet, pyarrow):
    rows = [[1, 2], [], [3], [4, 5, 6], [7]]
    table = pyarrow.table({"input_ids": rows})
    for statistics in (True, False):
        path = str(tmp_path / f"{statistics}.parquet")
        parquet.write_table(table, path, row_group_size=3, write_statistics=statistics)
        dataset = packcore.open(path)
        assert [chunk.num_tokens for chunk in dataset.chunks] == [3, 4]
        assert documents_of(path) == rows


@pytest.mark.parametrize("rows", [[[1, None], [2]], [[1], None]])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_null_tokens_are_refused(tmp_path, parquet, pyarrow, rows, kind):
    path = str(tmp_path / f"a.{kind}")
    if kind == "arrow":
        write_arrow(pyarrow, path, rows, kind="file")
    else:
        parquet.write_table(pyarrow.table({"input_ids": rows}), path)
    with pytest.raises(FormatError, match="that are null; expected none"):
        documents_of(path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"]}, r"has the columns \['text'\]; expected a column input_ids or tokens"),
        ({"tokens": ["a"]}, "has a column of string; expected lists of integers"),
        ({"input_ids": [[1.5]]}, "has a column of list.*; expected lists of integers"),
    ],
)
def test_columns_that_are_no_tokens_are_refused(tmp_path, parquet, pyarrow, columns, message):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(FormatError, match=message):
        packcore.open(path)


def test_only_a_few_decoded_files_are_kept(tmp_path, parquet, pyarrow, monkeypatch):
    monkeypatch.setattr("packcore.dataset._DECODED_CACHE_BYTES", 1000)
    path = str(tmp_path / "a.parquet")
    rows = [[number] * 100 for number in range(20)]
    parquet.write_table(pyarrow.table({"input_ids": rows}), path, row_group_size=1)
    dataset = packcore.open(path)
    assert dataset.tokens(0, 2000).tolist() == list(itertools.chain(*rows))
    assert len(dataset._maps) == 2
    loader = packcore.Loader(dataset.blocks(100), 4, seed=1, epochs=1)
    assert sorted(int(row[0]) for batch in loader for row in np.array(batch)) == list(range(20))


@pytest.fixture
def cache(tmp_path):
    pytest.importorskip("zarr")
    return copy_of("levanter/cache", tmp_path) / "train"


def test_levanter_rows_are_documents(cache):
    assert documents_of(cache) == documents_of(cache / "shard_ledger.json") == DOCUMENTS
    dataset = pickle.loads(pickle.dumps(packcore.open(cache)))
    assert dataset.blocks(4).gather([1]).tolist() == [[5, 6, 7, 8]]


@pytest.mark.parametrize("array", ["data", "offsets"])
def test_a_missing_zarr_file_is_not_read_as_zeros(cache, array):
    path = cache / "input_ids" / array / "c" / "0"
    path.unlink()
    with pytest.raises(FormatError, match="misses the chunk from number 0 on") as info:
        packcore.open(cache)
    assert info.value.path == str(path)


def test_a_missing_chunk_of_a_zarr_shard_is_not_read_as_zeros(cache):
    path = cache / "input_ids" / "data" / "c" / "0"
    content = bytearray(path.read_bytes())
    at = len(content) - 4 - 16 * 512
    content[at : at + 16] = b"\xff" * 16
    path.write_bytes(content)
    with pytest.raises(FormatError, match="misses the chunk from number 0 on"):
        packcore.open(cache)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"is_finished": False}, "says that the cache was never finished"),
        ({"total_num_rows": 5}, "says 5 rows, but the offsets beside it say 4"),
        ({"field_counts": {"input_ids": 10}}, "says 10 tokens, but the offsets beside it say 11"),
        ({"field_counts": {"audio": 11}}, "expected one of input_ids, tokens"),
    ],
)
def test_a_ledger_that_disagrees_is_refused(cache, edit, message):
    ledger = cache / "shard_ledger.json"
    ledger.write_text(json.dumps({**json.loads(ledger.read_text()), **edit}))
    with pytest.raises(FormatError, match=message):
        packcore.open(cache)


def test_levanter_spans_meet_at_their_edges(tmp_path):
    """Documents that begin before, at and behind the edges of spans, some of them empty."""
    zarr = pytest.importorskip("zarr")
    rng = np.random.default_rng(5)
    sizes = rng.integers(0, 30, 40)
    ends = np.cumsum(sizes)
    tokens = np.arange(1, ends[-1] + 1, dtype=np.int32)
    field = tmp_path / "input_ids"
    for name, values in (("data", tokens), ("offsets", np.array([len(sizes), *ends]))):
        array = zarr.create_array(
            str(field / name), shape=(2**20,), dtype=values.dtype, chunks=(2,), shards=(32,)
        )
        array[: len(values)] = values
    ledger = {"total_num_rows": 40, "is_finished": True, "field_counts": {"input_ids": len(tokens)}}
    (tmp_path / "shard_ledger.json").write_text(json.dumps(ledger))
    expected = [part.tolist() for part in np.split(tokens, ends[:-1])]
    assert len(packcore.open(tmp_path).chunks) == -(-len(tokens) // 32)
    assert documents_of(tmp_path) == expected


def test_arrayrecord_examples_are_documents():
    pytest.importorskip("array_record")
    folder = SAMPLES / "arrayrecord"
    assert documents_of(folder / "tfex_default.array_record") == DOCUMENTS
    assert packcore.open(folder / "tfex_default.array_record").dtype == np.int32


def test_bare_arrayrecord_tokens_ask_for_their_dtype():
    pytest.importorskip("array_record")
    path = SAMPLES / "arrayrecord" / "raw_u16_g1_uncompressed.array_record"
    with pytest.raises(ArgumentError, match="If they are bare tokens"):
        packcore.open(path)
    assert documents_of(path, dtype="uint16") == DOCUMENTS


def encode(number):
    out = b""
    while number >= 128:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number, content):
    return encode(number << 3 | 2) + encode(len(content)) + content


@pytest.mark.parametrize("numbers", [[], [0], [127, 128, 2**31, 2**62], list(range(300))])
def test_a_feature_is_read_from_the_bytes_of_an_example(numbers):
    packed = field(3, field(1, b"".join(map(encode, numbers))))
    entry = field(1, b"inputs") + field(2, packed)
    other = field(1, b"weights") + field(2, field(2, struct.pack("<f", 1.5)))
    record = field(1, field(1, other) + field(1, entry))
    assert read_feature(record).tolist() == numbers


def test_what_is_no_example_has_no_feature():
    rng = np.random.default_rng(2)
    for _ in range(2000):
        assert read_feature(rng.bytes(int(rng.integers(40)))) is None
