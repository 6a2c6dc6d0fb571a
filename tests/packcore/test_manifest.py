import dataclasses
import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packcore.errors import ArgumentError, ArgumentTypeError, FormatError, NoDataError
from packcore.manifest import (
    ChunkEntry,
    Manifest,
    check_prefix,
    chunk_path,
    documents_path,
    encode_documents,
    is_file_of,
    list_files,
    manifest_path,
    read_documents,
    read_manifest,
    write_manifest,
)

SHA = hashlib.sha256(b"").hexdigest()


def entry(**changes):
    made = ChunkEntry("web_0000000000.bin", 4, 2, SHA, 0, 99, SHA)
    return dataclasses.replace(made, **changes)


def manifest(**changes):
    second = entry(file="web_0000000001.bin", num_tokens=3, num_documents=0)
    made = Manifest("web", np.dtype("uint16"), 4, 1, (entry(), second), 100, "bytes", "abc")
    return dataclasses.replace(made, **changes)


def stored(folder, change):
    """A manifest on disk, its JSON changed."""
    path = Path(write_manifest(folder, manifest()))
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    return str(path)


WITHOUT_DOCUMENTS = (
    entry(num_documents=None, documents_sha256=None),
    entry(file="b.bin", num_documents=None, documents_sha256=None),
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"chunks": ()},
        {"chunks": WITHOUT_DOCUMENTS, "vocab_size": None, "tokenizer": None},
        {"dtype": np.dtype("float32"), "chunks": (entry(min_id=-0.5, max_id=1e9),)},
        {"dtype": np.dtype("int64"), "sep_token": -(2**63), "chunk_size": 2**40},
        {"chunks": (entry(min_id=None, max_id=None, num_tokens=0),)},
        {"prefix": "wéb [1]\n", "tokenizer": 'a "b" \\ é'},
    ],
)
def test_a_manifest_comes_back_as_it_was_written(tmp_path, changes):
    written = manifest(**changes)
    path = write_manifest(tmp_path, written)
    assert path == manifest_path(tmp_path, written.prefix)
    assert read_manifest(path) == written
    assert [file.name for file in tmp_path.iterdir()] == [f"{written.prefix}.manifest.json"]


def test_the_file_says_this(tmp_path):
    record = json.loads(Path(write_manifest(tmp_path, manifest())).read_text())
    chunk = record["chunks"][1]
    assert {**record, "chunks": None} == {
        "format": "packcore-manifest",
        "version": 1,
        "prefix": "web",
        "dtype": "uint16",
        "chunk_size": 4,
        "sep_token": 1,
        "vocab_size": 100,
        "tokenizer": "bytes",
        "tokenizer_hash": "abc",
        "num_chunks": 2,
        "num_tokens": 7,
        "num_documents": 2,
        "fingerprint": manifest().fingerprint,
        "chunks": None,
    }
    assert chunk == {
        "file": "web_0000000001.bin",
        "num_tokens": 3,
        "num_documents": 0,
        "sha256": SHA,
        "min_id": 0,
        "max_id": 99,
        "documents_sha256": SHA,
    }


def test_numbers_of_numpy_can_be_written(tmp_path):
    chunk = entry(num_tokens=np.int64(4), min_id=np.uint16(0), max_id=np.uint16(99))
    written = manifest(chunks=(chunk,), chunk_size=np.int32(4), sep_token=np.uint16(1))
    assert read_manifest(write_manifest(tmp_path, written)) == written


def test_documents_are_unknown_unless_somebody_recorded_them():
    assert manifest().num_documents == 2
    assert manifest(chunks=WITHOUT_DOCUMENTS).num_documents is None
    assert manifest(chunks=()).num_documents == 0


def test_the_fingerprint_is_this_one_for_ever():
    pinned = "4cb493276c38cd324307ec6aca976fc354f934eefd37508306f1f497190ca75b"
    assert manifest().fingerprint == pinned


@pytest.mark.parametrize(
    "changes",
    [
        {"prefix": "code"},
        {"chunks": (entry(file="a.bin"), manifest().chunks[1])},
        {"tokenizer": None, "tokenizer_hash": None, "vocab_size": None},
    ],
)
def test_the_fingerprint_does_not_depend_on_names(changes):
    assert manifest(**changes).fingerprint == manifest().fingerprint


OTHER_SHA = "0" * 64


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": np.dtype("int16")},
        {"chunks": manifest().chunks[:1]},
        {"chunks": manifest().chunks[::-1]},
        {"chunks": (entry(sha256=OTHER_SHA), manifest().chunks[1])},
        {"chunks": (entry(num_tokens=3), manifest().chunks[1])},
        {"chunks": (entry(num_documents=1), manifest().chunks[1])},
        {"chunks": (entry(documents_sha256=OTHER_SHA), manifest().chunks[1])},
        {"chunks": WITHOUT_DOCUMENTS},
    ],
)
def test_the_fingerprint_depends_on_the_content(changes):
    assert manifest(**changes).fingerprint != manifest().fingerprint


FAULTS = [  # (what it is, field, value, words of the message)
    (entry, "file", "", "file must be a plain name"),
    (entry, "file", "../x.bin", "file must be a plain name"),
    (entry, "file", "a\\x.bin", "file must be a plain name"),
    (entry, "file", "..", "file must be a plain name"),
    (entry, "file", "a\0", "file must be a plain name"),
    (entry, "file", 3, "file must be a string; got 3 (int)."),
    (entry, "num_tokens", -1, "num_tokens must be at least 0; got -1."),
    (entry, "num_tokens", 1.0, "num_tokens must be an integer; got 1.0 (float)."),
    (entry, "num_tokens", True, "num_tokens must be an integer; got True (bool)."),
    (entry, "num_tokens", None, "num_tokens must be an integer; got None (NoneType)."),
    (entry, "num_documents", -1, "num_documents must be at least 0; got -1."),
    (entry, "num_documents", "2", "num_documents must be an integer; got '2' (str)."),
    (entry, "sha256", SHA[:-1], "sha256 must be 64 hexadecimal digits"),
    (entry, "sha256", SHA.upper(), "sha256 must be 64 hexadecimal digits"),
    (entry, "sha256", None, "sha256 must be 64 hexadecimal digits; got None."),
    (entry, "documents_sha256", "", "documents_sha256 must be 64 hexadecimal digits"),
    (entry, "min_id", "0", "min_id must be a number or None; got '0' (str)."),
    (entry, "max_id", False, "max_id must be a number or None; got False (bool)."),
    (entry, "max_id", float("inf"), "max_id must be finite; got inf."),
    (manifest, "provenance", "web", "provenance must be a dict or None; got 'web' (str)."),
    (manifest, "prefix", "", "prefix must be a plain name"),
    (manifest, "prefix", None, "prefix must be a string; got None (NoneType)."),
    (manifest, "dtype", "uint16", "dtype must be a NumPy dtype; got 'uint16' (str)."),
    (manifest, "dtype", np.dtype("uint32"), "dtype must be one of uint8"),
    (manifest, "chunk_size", 0, "chunk_size must be at least 1; got 0 (tokens)."),
    (manifest, "sep_token", 1.0, "sep_token must be an integer; got 1.0 (float)."),
    (manifest, "vocab_size", 0, "vocab_size must be at least 1; got 0 (ids)."),
    (manifest, "tokenizer", 3, "tokenizer must be a string or None; got 3 (int)."),
    (manifest, "tokenizer_hash", b"", "tokenizer_hash must be a string or None; got b'' (bytes)."),
    (manifest, "chunks", [entry()], "chunks must be a tuple of ChunkEntry"),
    (manifest, "chunks", ("x.bin",), "chunks must be a tuple of ChunkEntry"),
    (manifest, "chunks", (entry(), entry()), "chunks must be different files."),
    (
        manifest,
        "chunks",
        (entry(num_tokens=5),),
        "chunks[0].num_tokens must be in [0, 4]; got 5 (tokens).",
    ),
    (
        manifest,
        "chunks",
        (entry(), entry(file="b.bin", num_documents=None)),
        "num_documents must be None for all chunks or for none.",
    ),
]


@pytest.mark.parametrize(("make", "field", "value", "message"), FAULTS)
def test_a_value_that_breaks_its_rule_is_refused(make, field, value, message):
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        make(**{field: value})
    assert str(caught.value).startswith(message)


FIELDS = [field.name for field in dataclasses.fields(Manifest) if field.name != "provenance"]
ENTRY_FIELDS = [field.name for field in dataclasses.fields(ChunkEntry)]
TOTALS = ["format", "version", "num_chunks", "num_tokens", "num_documents", "fingerprint"]


def test_provenance_is_kept_and_may_be_missing(tmp_path):
    made = {"inputs": {"num_files": 2}, "skipped": []}
    write_manifest(tmp_path, manifest(provenance=made))
    assert read_manifest(manifest_path(tmp_path, "web")).provenance == made
    assert read_manifest(stored(tmp_path, lambda _: None)).provenance is None


@pytest.mark.parametrize("field", FIELDS + TOTALS)
def test_a_missing_field_is_named(tmp_path, field):
    path = stored(tmp_path, lambda record: record.pop(field))
    with pytest.raises(FormatError) as caught:
        read_manifest(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert field in str(caught.value)
    assert caught.value.path == path


@pytest.mark.parametrize("field", ENTRY_FIELDS)
def test_a_missing_field_of_a_chunk_is_named(tmp_path, field):
    path = stored(tmp_path, lambda record: record["chunks"][1].pop(field))
    with pytest.raises(FormatError) as caught:
        read_manifest(path)
    assert str(caught.value) == f"{path}: the field chunks[1].{field} is missing. Build it again."


@pytest.mark.parametrize("value", [[], {}, True, 1.5, ["x"]])
@pytest.mark.parametrize("field", [name for name in FIELDS + TOTALS if name != "chunks"])
def test_a_field_of_a_wrong_type_is_named(tmp_path, field, value):
    path = stored(tmp_path, lambda record: record.update({field: value}))
    with pytest.raises(FormatError) as caught:
        read_manifest(path)
    assert str(caught.value).startswith(f"{path}: {field} must be ")


@pytest.mark.parametrize("value", [[], {}, True, ["x"]])
@pytest.mark.parametrize("field", ENTRY_FIELDS)
def test_a_field_of_a_chunk_of_a_wrong_type_is_named(tmp_path, field, value):
    path = stored(tmp_path, lambda record: record["chunks"][1].update({field: value}))
    with pytest.raises(FormatError) as caught:
        read_manifest(path)
    assert str(caught.value).startswith(f"{path}: chunks[1].{field} must be ")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", "packcore-state", "format must be 'packcore-manifest'; got 'packcore-state'."),
        ("version", 2, "version must be 1; got 2. Copy or build it again."),
        ("version", "1", "version must be 1; got '1'."),
        ("version", True, "version must be 1; got True."),
        ("dtype", "uint32", "dtype must be one of uint8"),
        ("dtype", ">u2", "dtype must be one of uint8"),
        ("dtype", "auto", "dtype must be one of uint8"),
        ("chunk_size", 3, "chunks[0].num_tokens must be in [0, 3]; got 4 (tokens)."),
        ("chunks", {}, "chunks must be a list; got {}."),
        ("chunks", [3], "chunks[0] must be a JSON object; got 3."),
        ("num_chunks", 3, "num_chunks must be 2; got 3."),
        ("num_tokens", 8, "num_tokens must be 7; got 8."),
        ("num_documents", None, "num_documents must be 2; got None."),
        ("fingerprint", OTHER_SHA, f"fingerprint must be '{manifest().fingerprint}'; got '000000"),
    ],
)
def test_a_field_that_contradicts_is_named(tmp_path, field, value, message):
    path = stored(tmp_path, lambda record: record.update({field: value}))
    with pytest.raises(FormatError) as caught:
        read_manifest(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert caught.value.path == path


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"3",
        b'"packcore-manifest"',
        b"\xff\xfe",
        b"LITPKDS" + bytes(20),
        b"[" * 100_000,
        b'{"version": ' + b"9" * 10_000 + b"}",
        b"{}",
        b'{"format": "packcore-manifest", "version": 1}',
    ],
)
def test_junk_is_no_manifest(tmp_path, content):
    path = tmp_path / "web.manifest.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"web\.manifest\.json") as caught:
        read_manifest(path)
    assert caught.value.path == str(path)


@given(st.data())
def test_a_damaged_byte_never_raises_anything_else(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "web.manifest.json"
    write_manifest(path.parent, manifest())
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        read = read_manifest(path)
    except FormatError:
        return
    # What is left: a name, a hash of a tokenizer, ... that nothing else speaks of.
    assert read.fingerprint == manifest().fingerprint


def test_a_field_that_a_later_version_may_add_is_let_be(tmp_path):
    path = stored(tmp_path, lambda record: record.update({"licence": "CC0"}))
    assert read_manifest(path) == manifest()


def test_a_missing_manifest_and_a_folder_are_no_data(tmp_path):
    for path in (tmp_path / "web.manifest.json", tmp_path):
        with pytest.raises(NoDataError, match=r"There is no manifest ") as caught:
            read_manifest(path)
        assert caught.value.path == str(path)


@pytest.mark.parametrize("prefix", ["", ".", "..", ".web", "a/b", "/web", "a\\b", "a\0b"])
def test_a_prefix_that_is_no_plain_name_is_refused(prefix):
    with pytest.raises(ArgumentError) as caught:
        check_prefix(prefix)
    assert str(caught.value).startswith("prefix must be a plain name: not empty, no leading dot")
    assert (caught.value.name, caught.value.value) == ("prefix", prefix)


def test_files_of_a_prefix_are_told_from_those_of_a_longer_one(tmp_path):
    ours = ["web.manifest.json", "web_0000000000.bin", "web_0000000000.docs.npy"]
    others = [
        "web_code.manifest.json",
        "web_code_0000000000.bin",
        "web_000000000.bin",
        "web_00000000000.bin",
        "web_0000000000.bin.bak",
        "web_0000000000.idx",
        "web_٠٠٠٠٠٠٠٠٠٠.bin",  # noqa: RUF001 - digits, but not ours
        "web.json",
        "web",
        ".web_0000000000.bin.1.00000000.tmp",
        "0000000000.bin",
        "eb_0000000000.bin",
    ]
    for name in ours + others:
        (tmp_path / name).touch()
    assert list_files(tmp_path, "web") == [str(tmp_path / name) for name in ours]
    assert [name for name in others if is_file_of("web", name)] == []
    assert list_files(tmp_path / "none", "web") == []
    assert not is_file_of("w.b", "web_0000000000.bin")


def test_paths_stay_as_the_user_spelt_them():
    assert chunk_path("./out//x", "web", 12) == "./out//x/web_0000000012.bin"
    assert documents_path("./out//web_0000000012.bin") == "./out//web_0000000012.docs.npy"
    assert documents_path("raw.tokens") == "raw.tokens.docs.npy"
    assert manifest_path("./out//x", "web") == "./out//x/web.manifest.json"


def sidecar(folder, content):
    (folder / "web_0000000000.docs.npy").write_bytes(content)
    return folder / "web_0000000000.bin"


@pytest.mark.parametrize("starts", [[], [0], [0, 0, 3, 4], [4, 4]])
def test_document_starts_come_back(tmp_path, starts):
    chunk = sidecar(tmp_path, encode_documents(np.array(starts, np.int64), 4))
    read = read_documents(chunk, entry(num_documents=len(starts)))
    assert read.dtype == np.uint32
    assert read.tolist() == starts
    assert np.load(documents_path(chunk)).tolist() == starts


@pytest.mark.parametrize(
    ("chunk_size", "dtype"), [(2**32 - 1, np.uint32), (2**32, np.uint64), (2**40, np.uint64)]
)
def test_starts_are_as_wide_as_the_chunk_needs(tmp_path, chunk_size, dtype):
    chunk = sidecar(tmp_path, encode_documents(np.array([0, chunk_size]), chunk_size))
    read = read_documents(chunk, entry(num_tokens=chunk_size))
    assert read.dtype == dtype
    assert read.tolist() == [0, chunk_size]


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


GOOD = npy(np.array([0, 3], np.uint32))
NO_HEADER = "the header must be that of a .npy file of 1-D uint32 or uint64; got b"
SIDECAR_FAULTS = {
    "empty": (b"", NO_HEADER),
    "foreign": (b"PK\x03\x04" + bytes(50), NO_HEADER),
    "pickle": (b"\x80\x02", NO_HEADER),
    "half_header": (GOOD[:50], NO_HEADER),
    "bad_header": (GOOD[:12] + b"\xff" * 60 + GOOD[72:], NO_HEADER),
    "objects": (npy(np.array([0, "x"], object)), NO_HEADER),
    "int64": (npy(np.array([0, 3])), NO_HEADER),
    "big_endian": (npy(np.array([0, 3], ">u4")), NO_HEADER),
    "2-D": (npy(np.array([[0, 3]], np.uint32)), NO_HEADER),
    "0-D": (npy(np.uint32(0)), NO_HEADER),
    "truncated": (GOOD[:-1], "the file's size must be 136 bytes; got 135."),
    "trailing": (GOOD + b"x", "the file's size must be 136 bytes; got 137."),
    "huge": (
        GOOD.replace(b"(2,)", b"(999999999999999999,)"),
        "the file's size must be 4000000000000000141 bytes; got ",
    ),
    "too_few": (npy(np.array([0], np.uint32)), "the number of documents must be 2; got 1."),
    "too_many": (npy(np.array([0, 1, 2], np.uint32)), "the number of documents must be 2; got 3."),
    "descending": (
        npy(np.array([3, 2], np.uint32)),
        "start 1 must be at least 3, the start before it; got 2.",
    ),
    "past_the_end": (
        npy(np.array([0, 5], np.uint32)),
        "start 1 must be at most 4, the chunk's valid tokens; got 5.",
    ),
}


@pytest.mark.parametrize("name", SIDECAR_FAULTS)
def test_a_damaged_sidecar_is_refused_and_named(tmp_path, name):
    content, message = SIDECAR_FAULTS[name]
    chunk = sidecar(tmp_path, content)
    with pytest.raises(FormatError) as caught:
        read_documents(chunk, entry())
    path = documents_path(chunk)
    assert str(caught.value).removeprefix(path).lstrip(": ").startswith(message)
    assert caught.value.path == path


@given(st.data())
def test_a_damaged_sidecar_never_raises_anything_else(tmp_path_factory, data):
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    chunk = sidecar(
        tmp_path_factory.getbasetemp(), bytes(content[: data.draw(st.integers(0, 140))])
    )
    try:
        starts = read_documents(chunk, entry()).tolist()
    except FormatError:
        return
    assert 0 <= starts[0] <= starts[1] <= 4


def test_a_missing_sidecar_and_one_that_was_never_written_are_told_apart(tmp_path):
    chunk = tmp_path / "web_0000000000.bin"
    with pytest.raises(NoDataError, match="the manifest says that there is one") as caught:
        read_documents(chunk, entry())
    assert caught.value.path == documents_path(chunk)
    with pytest.raises(NoDataError, match="was built without recording documents"):
        read_documents(chunk, WITHOUT_DOCUMENTS[0])
