"""What is told of a damaged corpus, one row a fault: when, as which error, about which file."""

import io
import json
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from corpora import write_corpus

import packcore
from packcore.chunks import find_chunks
from packcore.errors import FormatError, MismatchError, NoDataError, PackcoreError

CHUNK = "web_0000000001.bin"
SIDECAR = "web_0000000001.docs.npy"
MANIFEST = "web.manifest.json"
DOCUMENTS = [[1, 2, 3], [4, 5, 6], [7, 8], [], [9]]
"""In chunks of 4 tokens the second chunk holds 5 to 8, and documents begin at 2 and at its end."""


def put(at, data):
    """Overwrites bytes of a file from `at` on."""

    def damage(path):
        content = bytearray(path.read_bytes())
        content[at : at + len(data)] = data
        path.write_bytes(content)

    return damage


def cut(size):
    return lambda path: os.truncate(path, size)


def replace(content):
    return lambda path: path.write_bytes(content)


def append(content):
    return lambda path: path.write_bytes(path.read_bytes() + content)


def remove(path):
    path.unlink()


def make_folder(path):
    path.unlink()
    path.mkdir()


def dangle(path):
    path.unlink()
    path.symlink_to("nowhere")


def field(edit):
    """Edits the manifest's JSON."""

    def damage(path):
        record = json.loads(path.read_text())
        edit(record)
        path.write_text(json.dumps(record))

    return damage


def array(values, dtype="<u4"):
    buffer = io.BytesIO()
    np.save(buffer, np.array(values, dtype))
    return replace(buffer.getvalue())


class Fault(NamedTuple):
    name: str
    file: str
    damage: object
    error: type
    message: str
    expected: object = None
    got: object = None


AT_OPENING = [
    Fault("empty file", CHUNK, cut(0), FormatError, "is not a LITPKDS chunk.* it is empty"),
    Fault("cut in the header", CHUNK, cut(20), FormatError, "cut off inside its header", 24, 20),
    Fault("cut after the header", CHUNK, cut(24), FormatError, "is truncated", 32, 24),
    Fault("cut by a byte", CHUNK, cut(31), FormatError, "is truncated.*Copy or build it", 32, 31),
    Fault("a byte more", CHUNK, append(b"\0"), FormatError, "has trailing bytes", 32, 33),
    Fault("wrong magic", CHUNK, put(0, b"X"), FormatError, "expected b'LITPKDS'", b"LITPKDS"),
    Fault("text", CHUNK, replace(b"once upon a time"), FormatError, "starts with b'once up'"),
    Fault("JSON", CHUNK, replace(b'{"a": 1}'), FormatError, "looks like JSON"),
    Fault("NumPy", CHUNK, array([1, 2]), FormatError, r"looks like a NumPy \.npy file"),
    Fault("gzip", CHUNK, replace(b"\x1f\x8b\x08"), FormatError, "decompress it first"),
    Fault("LFS", CHUNK, replace(b"version https://git-lfs.x"), FormatError, "git lfs pull"),
    Fault("index", CHUNK, replace(b"MMIDIDX\0\0" * 4), FormatError, "Megatron or fairseq index"),
    Fault("llm.c", CHUNK, replace(struct.pack("<i", 20240520)), FormatError, "llm.c token file"),
    Fault("version 2", CHUNK, put(7, b"\2"), FormatError, "LITPKDS version 2; expected 1", 1, 2),
    Fault("version 2**56", CHUNK, put(14, b"\1"), FormatError, "LITPKDS version 720", 1, 2**56 + 1),
    Fault("dtype code 0", CHUNK, put(15, b"\0"), FormatError, "dtype code 0", list(range(1, 9)), 0),
    Fault("dtype code 9", CHUNK, put(15, b"\t"), FormatError, "dtype code 9", list(range(1, 9)), 9),
    Fault("no chunk_size", CHUNK, put(16, bytes(8)), FormatError, "has chunk_size 0", 1, 0),
    Fault(
        "chunk_size 2**64 - 1", CHUNK, put(16, b"\xff" * 8), FormatError, "is truncated", None, 32
    ),
    Fault("big-endian chunk_size", CHUNK, put(16, struct.pack(">Q", 4)), FormatError, "truncated"),
    Fault(
        "another dtype",
        CHUNK,
        put(15, b"\3"),
        MismatchError,
        "has dtype int16",
        np.uint16,
        np.int16,
    ),
    Fault("missing", CHUNK, remove, NoDataError, "There is no file"),
    Fault("a folder", CHUNK, make_folder, NoDataError, "is a folder"),
    Fault("a dangling link", CHUNK, dangle, NoDataError, "There is no file"),
    Fault("empty manifest", MANIFEST, cut(0), FormatError, "is not a manifest"),
    Fault("half a manifest", MANIFEST, cut(200), FormatError, "is not a manifest"),
    Fault("a list", MANIFEST, replace(b"[]"), FormatError, "must be a JSON object"),
    Fault("not UTF-8", MANIFEST, replace(b"\xff\xfe{}"), FormatError, "is not a manifest"),
    Fault("nested", MANIFEST, replace(b"[" * 10**5), FormatError, "is not a manifest"),
    Fault("no fields", MANIFEST, replace(b"{}"), FormatError, "format must be 'packcore-manifest'"),
    Fault(
        "a later version",
        MANIFEST,
        field(lambda m: m.update(version=2)),
        FormatError,
        "version must be 1; got 2",
    ),
    Fault(
        "a field less",
        MANIFEST,
        field(lambda m: m.pop("chunk_size")),
        FormatError,
        "chunk_size is missing",
    ),
    Fault(
        "no chunks", MANIFEST, field(lambda m: m.update(chunks=None)), FormatError, "chunks must be"
    ),
    Fault(
        "the dtype of other files",
        MANIFEST,
        field(lambda m: m.update(dtype="int16")),
        FormatError,
        "fingerprint must be",
    ),
    Fault(
        "an unknown dtype",
        MANIFEST,
        field(lambda m: m.update(dtype="uint32")),
        FormatError,
        "dtype must be one of uint8",
    ),
    Fault(
        "a count that does not add up",
        MANIFEST,
        field(lambda m: m["chunks"][0].update(num_tokens=3)),
        FormatError,
        "num_tokens must be",
    ),
    Fault(
        "more tokens than the chunk holds",
        MANIFEST,
        field(lambda m: m["chunks"][0].update(num_tokens=5)),
        FormatError,
        r"num_tokens must be in \[0, 4\]; got 5",
    ),
    Fault(
        "a negative count",
        MANIFEST,
        field(lambda m: m["chunks"][0].update(num_tokens=-1)),
        FormatError,
        "num_tokens must be at least 0",
    ),
    Fault(
        "a file twice",
        MANIFEST,
        field(lambda m: m["chunks"][1].update(file="web_0000000000.bin")),
        FormatError,
        "chunks must be different files",
    ),
    Fault(
        "a file outside the folder",
        MANIFEST,
        field(lambda m: m["chunks"][1].update(file="../web_0000000001.bin")),
        FormatError,
        "file must be a plain name",
    ),
    Fault(
        "a checksum that is none",
        MANIFEST,
        field(lambda m: m["chunks"][1].update(sha256="0")),
        FormatError,
        "64 hexadecimal digits",
    ),
    Fault(
        "other content than the fingerprint's",
        MANIFEST,
        field(lambda m: m["chunks"][1].update(sha256="0" * 64)),
        FormatError,
        "fingerprint must be",
    ),
]

AT_READING_DOCUMENTS = [
    Fault("missing", SIDECAR, remove, NoDataError, "There is no file.*build again"),
    Fault("a folder", SIDECAR, make_folder, NoDataError, "There is no file"),
    Fault("empty", SIDECAR, cut(0), FormatError, r"header must be that of a \.npy file"),
    Fault("cut", SIDECAR, cut(130), FormatError, "Copy or build it again"),
    Fault("text", SIDECAR, replace(b"once upon a time"), FormatError, "got b'once upon"),
    Fault("floats", SIDECAR, array([2.0, 4.0], "<f4"), FormatError, "1-D uint32 or uint64"),
    Fault("signed", SIDECAR, array([2, 4], "<i4"), FormatError, "1-D uint32 or uint64"),
    Fault("2-D", SIDECAR, array([[2, 4]]), FormatError, "1-D uint32 or uint64"),
    Fault(
        "one less", SIDECAR, array([2]), FormatError, "number of documents must be 2; got 1", 2, 1
    ),
    Fault("one more", SIDECAR, array([2, 4, 4]), FormatError, "must be 2; got 3", 2, 3),
    Fault("not ascending", SIDECAR, array([4, 2]), FormatError, "start 1 must be at least 4"),
    Fault("past the end", SIDECAR, array([2, 5]), FormatError, "start 1 must be at most 4"),
]


@pytest.fixture
def folder(tmp_path):
    write_corpus(tmp_path, "web", DOCUMENTS, 4)
    return tmp_path


def check(error, fault, path):
    """A fault names its file, by its message and its attribute, and survives a pipe."""
    assert isinstance(error, PackcoreError)
    assert path in str(error)
    assert error.path == path
    for name in ("expected", "got"):
        wanted = getattr(fault, name)
        assert wanted is None or getattr(error, name) == wanted


def ids(fault):
    return f"{fault.file.split('.')[1]}: {fault.name}"


@pytest.mark.parametrize("fault", AT_OPENING, ids=ids)
@pytest.mark.parametrize("source", ["", "web", "web.manifest.json"])
@pytest.mark.parametrize("mmap", [True, False])
def test_what_is_damaged_is_told_at_opening(folder, fault, source, mmap):
    path = folder / fault.file
    fault.damage(path)
    with pytest.raises(fault.error, match=fault.message) as info:
        packcore.open(folder / source, mmap=mmap)
    check(info.value, fault, str(path))


@pytest.mark.parametrize("fault", AT_OPENING, ids=ids)
@pytest.mark.parametrize("pattern", ["web*", "*"])
def test_what_is_damaged_among_the_matches_of_a_glob_is_told_by_name(folder, fault, pattern):
    # As nothing but the content says what a match is, it may be taken for a file of another kind.
    path = folder / fault.file
    fault.damage(path)
    with pytest.raises((FormatError, NoDataError)) as info:
        packcore.open(folder / pattern)
    assert str(path) in str(info.value)


@pytest.mark.parametrize("fault", [f for f in AT_OPENING if f.file == CHUNK], ids=ids)
def test_without_a_manifest_a_damaged_chunk_is_told_at_opening(folder, fault):
    (folder / MANIFEST).unlink()
    path = folder / fault.file
    fault.damage(path)
    if not os.path.lexists(path):
        assert len(find_chunks(folder)) == 2  # nobody knows that it was there
        return
    with pytest.raises(fault.error, match=fault.message) as info:
        find_chunks(folder)
    check(info.value, fault, str(path))


@pytest.mark.parametrize("fault", AT_READING_DOCUMENTS, ids=ids)
def test_a_damaged_sidecar_is_told_when_documents_are_asked_for(folder, fault):
    path = folder / fault.file
    fault.damage(path)
    dataset = packcore.open(folder)
    blocks = dataset.blocks(3)
    assert dataset.num_documents == 5
    assert blocks[1].tolist() == [4, 5, 6]  # tokens are read as before
    for read in (
        lambda: dataset.document(2),
        lambda: dataset.document_starts(0, 9),
        lambda: blocks.document_starts(np.arange(3)),
        lambda: blocks.origin(1),
    ):
        with pytest.raises(fault.error, match=fault.message) as info:
            read()
        check(info.value, fault, str(path))


@pytest.mark.parametrize("size", [0, 23, 24, 30])
@pytest.mark.parametrize("mmap", [True, False])
def test_a_chunk_that_is_cut_after_opening_is_told_when_it_is_read(folder, size, mmap):
    blocks = packcore.open(folder, mmap=mmap).blocks(2)
    path = folder / CHUNK
    os.truncate(path, size)
    with pytest.raises(FormatError, match="is truncated") as info:
        blocks.gather(np.arange(4))
    assert (info.value.path, info.value.expected, info.value.got) == (str(path), 32, size)


def test_the_undamaged_corpus_opens(folder):
    # Or else nothing above shows anything.
    dataset = packcore.open(folder)
    assert dataset.num_documents == 5
    assert dataset.document_starts(0, 9).tolist() == [0, 3, 6, 8, 8]
    assert np.load(folder / SIDECAR).tolist() == [2, 4]
    assert Path(folder / CHUNK).stat().st_size == 32
