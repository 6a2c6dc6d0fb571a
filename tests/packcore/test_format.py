import contextlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packcore import format as litpkds
from packcore.errors import ArgumentError, FormatError, NoDataError
from packcore.format import VERSION, ChunkHeader, code, dtypes, map_tokens, read_header, read_tokens

GOLDEN = Path(__file__).parent.parent / "golden"
CASES = json.loads((GOLDEN / "build.json").read_text())
NAMES = "uint8, int8, int16, int32, int64, float32, float64, uint16"


def head(magic=b"LITPKDS", version=1, dtype_code=8, chunk_size=4):
    return struct.pack("<7sQBQ", magic, version, dtype_code, chunk_size)


PAYLOAD = bytes(range(8))  # 4 tokens of uint16

# name -> (bytes of the file, what the message says of it, the attributes of the error)
CORRUPT = {
    "empty": (b"", "but it is empty.", {"offset": 0, "expected": b"LITPKDS", "got": b""}),
    "one_byte": (b"L", "starts with b'L' and has 1 bytes.", {"offset": 0, "got": b"L"}),
    "magic_alone": (
        b"LITPKDS",
        "is cut off inside its header: expected at least 24 bytes, got 7. Delete it",
        {"offset": 7, "expected": 24, "got": 7},
    ),
    "short_header": (
        head()[:23],
        "is cut off inside its header: expected at least 24 bytes, got 23.",
        {"offset": 23, "expected": 24, "got": 23},
    ),
    "other_case": (
        head(b"litpkds") + PAYLOAD,
        "expected b'LITPKDS' at byte 0, but it starts with b'litpkds' and has 32 bytes.",
        {"offset": 0, "expected": b"LITPKDS", "got": b"litpkds"},
    ),
    "raw_tokens": (
        PAYLOAD * 9,
        "starts with b'\\x00\\x01\\x02\\x03\\x04\\x05\\x06' and has 72 bytes.",
        {"offset": 0},
    ),
    "version_0": (
        head(version=0) + PAYLOAD,
        "has LITPKDS version 0; expected 1, the only one there is.",
        {"offset": 7, "expected": 1, "got": 0},
    ),
    "version_2": (
        head(version=2) + PAYLOAD,
        "has LITPKDS version 2; expected 1",
        {"offset": 7, "expected": 1, "got": 2},
    ),
    "big_endian": (
        struct.pack(">7sQBQ", b"LITPKDS", 1, 8, 4) + PAYLOAD,
        f"has LITPKDS version {2**56}; expected 1",
        {"offset": 7, "got": 2**56},
    ),
    "code_0": (
        head(dtype_code=0) + PAYLOAD,
        "has dtype code 0; expected one of 1 to 8.",
        {"offset": 15, "expected": [1, 2, 3, 4, 5, 6, 7, 8], "got": 0},
    ),
    "code_9": (head(dtype_code=9) + PAYLOAD, "has dtype code 9;", {"offset": 15, "got": 9}),
    "no_tokens": (
        head(chunk_size=0),
        "has chunk_size 0; expected at least 1 (tokens).",
        {"offset": 16, "expected": 1, "got": 0},
    ),
    "header_alone": (
        head(),
        "is truncated: its header says 4 tokens of uint16, so 32 bytes; got 24. Copy or build it",
        {"offset": 24, "expected": 32, "got": 24},
    ),
    "half_a_token_less": (
        head() + PAYLOAD[:-1],
        "is truncated: its header says 4 tokens of uint16, so 32 bytes; got 31.",
        {"offset": 31, "expected": 32, "got": 31},
    ),
    "trailing_byte": (
        head() + PAYLOAD + b"\0",
        "has trailing bytes: its header says 4 tokens of uint16, so 32 bytes; got 33.",
        {"offset": 32, "expected": 32, "got": 33},
    ),
    "huge": (
        head(chunk_size=2**64 - 1) + PAYLOAD,
        f"is truncated: its header says {2**64 - 1} tokens of uint16",
        {"offset": 32, "expected": 24 + 2 * (2**64 - 1), "got": 32},
    ),
} | {
    f"foreign_{index}": (
        magic + bytes(64),
        f"is not a LITPKDS chunk: expected b'LITPKDS' at byte 0, but it looks like {what}.",
        {"offset": 0, "expected": b"LITPKDS", "got": (magic + bytes(64))[:7]},
    )
    for index, (magic, what) in enumerate(litpkds._MAGICS)
}


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", CORRUPT)
def test_a_file_that_is_no_chunk_is_refused_and_described(tmp_path, name):
    content, message, facts = CORRUPT[name]
    path = write(tmp_path / f"{name}.bin", content)
    with pytest.raises(FormatError) as caught:
        read_header(path)
    assert str(caught.value).startswith(f"{path} ")
    assert message in str(caught.value)
    assert {fact: getattr(caught.value, fact) for fact in facts} == facts
    assert caught.value.path == str(path)


READ_ALL = """
import json, sys
from packcore.errors import FormatError
from packcore.format import read_header
assert False, "python -O runs no asserts"
said = {}
for path in sys.argv[1:]:
    try:
        said[path] = repr(read_header(path))
    except FormatError as error:
        said[path] = str(error)
print(json.dumps(said))
"""


def test_every_corrupt_file_is_refused_alike_without_asserts(tmp_path):
    paths = [
        str(write(tmp_path / name, content)) for name, (content, _, _) in sorted(CORRUPT.items())
    ]
    run = subprocess.run(
        [sys.executable, "-O", "-c", READ_ALL, *paths], capture_output=True, text=True, check=True
    )
    said = json.loads(run.stdout)
    for path in paths:
        with pytest.raises(FormatError) as caught:
            read_header(path)
        assert said[path] == str(caught.value)


def test_a_missing_file_and_a_folder_are_no_data(tmp_path):
    with pytest.raises(NoDataError, match=r"There is no file .*none\.bin\.") as caught:
        read_header(tmp_path / "none.bin")
    assert caught.value.path == str(tmp_path / "none.bin")
    with pytest.raises(NoDataError, match=r"is a folder\. Open it with packcore\.open\."):
        read_header(tmp_path)


@given(st.binary(max_size=64) | st.binary(max_size=40).map(lambda rest: b"LITPKDS" + rest))
def test_no_file_raises_anything_else(tmp_path_factory, content):
    path = write(tmp_path_factory.getbasetemp() / "any.bin", content)
    with contextlib.suppress(FormatError):
        header = read_header(path)
        assert content[:24] == header.to_bytes()
        assert len(content) == header.file_bytes


@pytest.mark.parametrize("known", dtypes.values())
def test_a_header_comes_back_as_it_was_written(tmp_path, known):
    header = ChunkHeader(VERSION, np.dtype(known), 5)
    path = write(tmp_path / "x.bin", header.to_bytes() + bytes(5 * np.dtype(known).itemsize))
    assert read_header(path) == header


def test_the_header_has_these_bytes():
    header = ChunkHeader(VERSION, np.dtype("uint16"), 0x0102030405)
    assert header.to_bytes() == (b"LITPKDS\1\0\0\0\0\0\0\0\x08\x05\x04\x03\x02\x01\0\0\0")
    assert len(header.to_bytes()) == litpkds.HDR_SIZE


def test_the_codes_are_those_of_the_reference():
    listed = ["uint8", "int8", "int16", "int32", "int64", "float32", "float64", "uint16"]
    assert {number: np.dtype(known).name for number, known in dtypes.items()} == dict(
        enumerate(listed, 1)
    )
    assert [code(known) for known in dtypes.values()] == list(dtypes)
    assert [code(name) for name in listed] == list(dtypes)


@pytest.mark.parametrize("dtype", ["uint32", np.uint64, bool, ">u2", "float16", None, "junk", [1]])
def test_a_dtype_without_a_code_is_refused(dtype):
    with pytest.raises(ArgumentError) as caught:
        code(dtype)
    assert str(caught.value) == f"dtype must be one of {NAMES}; got {dtype!r}."
    assert caught.value.name == "dtype"


GOLDEN_FILES = [(case, file) for case in CASES for file in case["files"]]


@pytest.mark.parametrize(("case", "file"), GOLDEN_FILES, ids=[file for _, file in GOLDEN_FILES])
def test_the_reference_files_are_read_alike_by_map_and_by_read(case, file):
    path = GOLDEN / file
    header = read_header(path)
    assert header == ChunkHeader(1, np.dtype(case["expected_dtype"]), case["chunk_size"])
    expected = np.frombuffer(path.read_bytes()[24:], case["expected_dtype"])
    tokens = map_tokens(path, header)
    assert tokens.dtype == expected.dtype
    np.testing.assert_array_equal(tokens, expected)
    out = np.empty(header.chunk_size - 3, header.dtype)
    read_tokens(path, header, 2, out)
    np.testing.assert_array_equal(out, expected[2:-1])


@pytest.fixture
def chunk(tmp_path):
    header = ChunkHeader(VERSION, np.dtype("uint16"), 4)
    return write(tmp_path / "x.bin", header.to_bytes() + PAYLOAD), header


def test_a_map_cannot_be_written_to(chunk):
    with pytest.raises(ValueError, match="read-only"):
        map_tokens(*chunk)[0] = 1


def test_a_view_of_a_map_outlives_map_and_file(chunk):
    path, header = chunk
    view = map_tokens(path, header)[1:3]
    path.unlink()
    assert view.tolist() == [0x0302, 0x0504]


def test_a_file_that_shrank_is_refused_before_it_is_touched(chunk):
    path, header = chunk
    os.truncate(path, 30)
    with pytest.raises(FormatError, match=r"is truncated: .* so 32 bytes; got 30\.") as caught:
        map_tokens(path, header)
    assert (caught.value.path, caught.value.offset) == (str(path), 30)
    with pytest.raises(FormatError, match=r"is truncated: .* so 32 bytes; got 30\."):
        read_tokens(path, header, 0, np.empty(4, np.uint16))


@pytest.mark.parametrize("start", range(5))
def test_any_row_of_tokens_can_be_read_an_empty_one_too(chunk, start):
    path, header = chunk
    for stop in range(start, 5):
        out = np.empty(stop - start, np.uint16)
        read_tokens(path, header, start, out)
        assert out.tolist() == [0x0100, 0x0302, 0x0504, 0x0706][start:stop]


def test_reading_past_the_end_says_so(chunk):
    path, header = chunk
    with pytest.raises(FormatError, match=r"x\.bin is truncated: expected at least") as caught:
        read_tokens(path, header, 2, np.empty(4, np.uint16))
    assert caught.value.path == str(path)
