"""litdata and MDS: tokens in items of chunks, with an index.json beside them."""

import itertools
import json
import pickle
import struct

import numpy as np
import pytest
from samples import DOCUMENTS, SAMPLES, copy_of, documents_of

import packcore
from packcore.errors import ArgumentError, FormatError, MissingExtraError
from packcore.formats import pieces


def edit_index(folder, edit):
    path = folder / "index.json"
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))


def write_litdata(folder, items, *, dtype="<i4", loader="TokensLoader", dim=None):
    """Writes one chunk by hand, with the index that litdata would write."""
    data = [np.array(item, dtype).tobytes() for item in items]
    first = 4 * (len(items) + 2)
    offsets = np.cumsum([first, *map(len, data)]).astype("<u4")
    content = struct.pack("<I", len(items)) + offsets.tobytes() + b"".join(data)
    (folder / "chunk-0-0.bin").write_bytes(content)
    chunk = {"filename": "chunk-0-0.bin", "chunk_bytes": len(content), "chunk_size": len(items)}
    config = {"data_format": ["no_header_numpy:2"], "item_loader": loader, "compression": None}
    index = {"chunks": [{**chunk, "dim": dim}], "config": config}
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("name", "dtype", "num_files"),
    [
        ("tokens_tensor_i32", "int32", 3),
        ("tokens_tensor_i64", "int64", 1),
        ("tokens_numpy_u16", "uint16", 1),
        ("pytree_no_item_loader", "int32", 1),
    ],
)
def test_litdata_items_are_documents(name, dtype, num_files):
    folder = SAMPLES / "litdata" / name
    dataset = packcore.open(folder)
    assert (dataset.dtype, len(dataset.chunks)) == (np.dtype(dtype), num_files)
    assert documents_of(folder) == documents_of(folder / "index.json") == DOCUMENTS


def test_one_litdata_chunk_opens_by_itself():
    assert documents_of(SAMPLES / "litdata" / "tokens_tensor_i32" / "chunk-0-1.bin") == [
        [6, 7, 8, 9]
    ]


def test_litdata_chunks_come_in_the_order_of_the_index(tmp_path):
    folder = copy_of("litdata/tokens_tensor_i32", tmp_path)
    edit_index(folder, lambda record: record["chunks"].reverse())
    assert documents_of(folder) == [DOCUMENTS[3], DOCUMENTS[2], *DOCUMENTS[:2]]


def test_a_litdata_dim_that_is_null_is_counted(tmp_path):
    write_litdata(tmp_path, [[], [1, 2], [3]], dim=None)
    assert documents_of(tmp_path) == [[], [1, 2], [3]]


def test_litdata_tokens_that_are_not_aligned_are_read_and_not_mapped(tmp_path):
    write_litdata(tmp_path, [[1, 2], [3]], dtype="<i8")
    edit_index(tmp_path, lambda record: record["config"].update(data_format=["no_header_numpy:3"]))
    assert documents_of(tmp_path) == [[1, 2], [3]]
    write_litdata(tmp_path, [[1, 2], [3], [4]], dtype="<i8")
    edit_index(tmp_path, lambda record: record["config"].update(data_format=["no_header_numpy:3"]))
    assert not packcore.open(tmp_path).mmap
    assert documents_of(tmp_path) == [[1, 2], [3], [4]]


def test_litdata_offsets_that_wrapped_around_are_unwrapped(monkeypatch, tmp_path):
    """A file above 4 GiB, in small: the last offset is the file's size modulo 2**32."""
    sizes = np.array([3 * 2**30, 2**30 + 4], np.int64)
    offsets = np.cumsum([16, *sizes]).astype(np.uint64).astype("<u4")
    arrays = {0: np.array([2], "<u4"), 4: offsets}
    litdata = packcore.formats.litdata
    monkeypatch.setattr(litdata, "map_array", lambda _path, _dtype, offset, _count: arrays[offset])
    monkeypatch.setattr(litdata, "file_bytes", lambda _path: 16 + int(sizes.sum()))
    first, counts = litdata.ItemTable(4, 0).read(str(tmp_path))
    assert first.tolist() == [16, 16 + 3 * 2**30]
    assert counts.tolist() == (sizes // 4).tolist()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda r: r["config"].update(compression="zstd"), "says compression 'zstd'"),
        (lambda r: r["config"].update(encryption={"a": 1}), "says encryption"),
        (lambda r: r["config"].update(data_format=["jpeg"]), r"has the data_format \['jpeg'\]"),
        (lambda r: r["chunks"][0].update(dim=4), "dim is 4 there, 5 in the chunk"),
        (lambda r: r["chunks"][0].update(chunk_bytes=4), "chunk_bytes is 4 there, 36"),
        (lambda r: r["chunks"][0].update(filename="../a.bin"), "each with a filename in its"),
    ],
)
def test_a_litdata_index_that_does_not_fit_is_refused(tmp_path, edit, message):
    folder = copy_of("litdata/tokens_tensor_i32", tmp_path)
    edit_index(folder, edit)
    with pytest.raises(FormatError, match=message):
        packcore.open(folder)


def test_a_truncated_litdata_chunk_is_refused(tmp_path):
    folder = copy_of("litdata/tokens_numpy_u16", tmp_path)
    chunk = folder / "chunk-0-0.bin"
    chunk.write_bytes(chunk.read_bytes()[:-2])
    with pytest.raises(FormatError, match=r"does not add up: its 4 items .* end at 46") as info:
        packcore.open(folder)
    assert (info.value.expected, info.value.got) == (44, 46)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("ndarray_int32", "int32"), ("ndarray_dyn", "uint16"), ("bytes_int64", "int64")],
)
def test_mds_samples_are_documents(name, dtype):
    folder = SAMPLES / "mds" / name
    assert packcore.open(folder).dtype == np.dtype(dtype)
    assert documents_of(folder) == documents_of(folder / "shard.00000.mds") == DOCUMENTS


def test_mds_samples_of_a_fixed_shape_are_documents():
    assert documents_of(SAMPLES / "mds" / "ndarray_fixed") == [[1, 2, 3, 4], [5, 6, 7, 65535]]


def test_mds_shards_that_are_compressed_are_documents_too():
    pytest.importorskip("backports.zstd")
    assert documents_of(SAMPLES / "mds" / "zstd") == DOCUMENTS


def test_mds_columns_stand_in_the_order_of_their_names(tmp_path):
    """A column before the tokens and one behind them; the index has them in another order."""
    samples = [(b"abc", [1, 2], 7), (b"", [3], 8)]
    data = []
    for text, tokens, number in samples:
        array = bytes([1 << 2, len(tokens)]) + np.array(tokens, "<u2").tobytes()
        data.append(struct.pack("<II", len(text), len(array)) + text + array + bytes([number] * 8))
    config = b"{}"
    first = 4 * (len(data) + 2) + len(config)
    offsets = np.cumsum([first, *map(len, data)]).astype("<u4")
    shard = struct.pack("<I", len(data)) + offsets.tobytes() + config + b"".join(data)
    (tmp_path / "s.mds").write_bytes(shard)
    columns = {
        "column_names": ["tokens", "id", "z"],
        "column_encodings": ["ndarray:uint16", "str", "int"],
        "column_sizes": [None, None, 8],
    }
    raw = {"basename": "s.mds", "bytes": len(shard)}
    entry = {"format": "mds", "compression": None, "samples": 2, "raw_data": raw, **columns}
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    assert documents_of(tmp_path) == [[1, 2], [3]]


def test_bytes_that_are_not_int64_are_asked_for(tmp_path):
    folder = copy_of("mds/bytes_int64", tmp_path)
    shard = folder / "shard.00000.mds"
    content = shard.read_bytes()
    shard.write_bytes(content[:-16] + b"\xff" * 16)
    with pytest.raises(ArgumentError, match="its tokens are bare bytes, and not int64"):
        packcore.open(folder)
    shard.write_bytes(content)
    assert packcore.open(folder, dtype="int32").num_tokens == 22


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda s: s.update(column_encodings=["pkl"]), "Pickled columns are never read"),
        (lambda s: s.update(column_names=["text"]), r"has the columns \['text'\]"),
        (lambda s: s.update(samples=5), "has 4 samples, but .* says 5"),
        (lambda s: s.update(format="json"), "is not an index of MDS shards"),
        (lambda s: s["raw_data"].update(basename="../x.mds"), "names a file outside of its folder"),
        (lambda s: s.update(column_encodings=["ndarray:int64"]), "is not a row of int64"),
    ],
)
def test_an_mds_index_that_does_not_fit_is_refused(tmp_path, edit, message):
    folder = copy_of("mds/ndarray_int32", tmp_path)
    edit_index(folder, lambda record: edit(record["shards"][0]))
    with pytest.raises(FormatError, match=message):
        packcore.open(folder)


def test_a_truncated_mds_shard_is_refused(tmp_path):
    folder = copy_of("mds/ndarray_int32", tmp_path)
    shard = folder / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(FormatError, match="does not add up: its samples begin at byte 220"):
        packcore.open(folder)


def test_a_missing_package_names_its_pip_command(monkeypatch):
    def refuse(name):
        raise ModuleNotFoundError(name, name=name)

    monkeypatch.setattr("importlib.import_module", refuse)
    with pytest.raises(MissingExtraError, match=r'pip install "packcore\[zstd\]"'):
        packcore.open(SAMPLES / "mds" / "zstd")


def test_tokens_in_pieces_are_read_from_any_place():
    dataset = pickle.loads(pickle.dumps(packcore.open(SAMPLES / "mds" / "ndarray_int32")))
    tokens = list(itertools.chain(*DOCUMENTS))
    for start in range(12):
        for stop in range(start, 12):
            assert dataset.tokens(start, stop).tolist() == tokens[start:stop]


def test_a_loader_serves_items_in_its_order():
    dataset = packcore.open(SAMPLES / "litdata" / "pytree_no_item_loader")
    loader = packcore.Loader(dataset.blocks(2), 1, seed=3, epochs=1)
    served = sorted(np.array(batch).ravel().tolist() for batch in loader)
    assert served == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 50000]]


def test_a_piece_table_is_read_once_a_file(monkeypatch):
    dataset = packcore.open(SAMPLES / "mds" / "ndarray_int32")
    table = type(dataset.chunks[0].table)
    asked = []
    original = table.read
    monkeypatch.setattr(
        table, "read", lambda self, path: asked.append(path) or original(self, path)
    )
    pieces._read_table.cache_clear()
    dataset.tokens(0, 5)
    dataset.tokens(3, 11)
    assert len(asked) == 1
