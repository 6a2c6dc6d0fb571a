import hashlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packcore
from packcore.builder import PackedDatasetBuilder
from packcore.format import map_tokens, read_header
from packcore.manifest import documents_path, manifest_path, read_documents, read_manifest

GOLDEN = Path(__file__).parent.parent / "golden"
CASES = json.loads((GOLDEN / "build.json").read_text())


def build(folder, chunk_size=4, sep_token=0, **options):
    options.setdefault("dtype", "uint16")
    return PackedDatasetBuilder(folder, "web", chunk_size, sep_token, **options)


def tokens_of(folder, prefix="web"):
    """Per chunk: all tokens, fill included."""
    paths = sorted(folder.glob(f"{prefix}_??????????.bin"))
    return [map_tokens(path, read_header(path)).tolist() for path in paths]


def starts_of(folder, prefix="web"):
    """Per chunk: where documents begin."""
    manifest = read_manifest(manifest_path(folder, prefix))
    return [read_documents(folder / entry.file, entry).tolist() for entry in manifest.chunks]


def golden_files(case):
    return {Path(file).name: (GOLDEN / file).read_bytes() for file in case["files"]}


def files_in(folder, pattern="*.bin"):
    return {path.name: path.read_bytes() for path in folder.glob(pattern)}


def golden_builder(case, folder, **options):
    arguments = (case["name"], case["chunk_size"], case["sep_token"], case["dtype"])
    return PackedDatasetBuilder(folder, *arguments, case["vocab_size"], **options)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_every_file_is_the_reference_file_byte_for_byte(tmp_path, case):
    builder = golden_builder(case, tmp_path)
    for document in case["docs"]:
        builder.add_array(np.array(document, case["expected_dtype"]))
    if case["write_reminder"]:
        builder.write_reminder()
    assert builder.dtype == np.dtype(case["expected_dtype"])
    assert builder.filenames == [str(tmp_path / Path(file).name) for file in case["files"]]
    assert files_in(tmp_path) == golden_files(case)


@pytest.mark.parametrize("way", ["add_document", "add_documents"])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_documents_make_the_same_bytes(tmp_path, case, way):
    builder = golden_builder(case, tmp_path)
    if way == "add_document":
        for document in case["docs"]:
            builder.add_document(document)
    else:
        flat = list(itertools.chain(*case["docs"]))
        builder.add_documents(flat, [len(document) for document in case["docs"]])
    if case["write_reminder"]:
        builder.write_remainder()
    assert len(builder.filenames) == len(case["files"])
    assert files_in(tmp_path) == golden_files(case)
    builder.close()


@pytest.mark.parametrize(
    ("vocab_size", "cutoff", "dtype"),
    [
        (1, "reference", np.uint16),
        (65499, "reference", np.uint16),
        (65500, "reference", np.int32),
        (65536, "reference", np.int32),
        (65500, "exact", np.uint16),
        (65536, "exact", np.uint16),
        (65537, "exact", np.int32),
        (10**12, "exact", np.int32),
    ],
)
def test_auto_takes_the_dtype_that_the_vocabulary_needs(tmp_path, vocab_size, cutoff, dtype):
    builder = build(tmp_path, dtype="auto", vocab_size=vocab_size, auto_cutoff=cutoff)
    assert builder.dtype is dtype


@pytest.mark.parametrize("given_dtype", [np.uint16, "uint16", np.dtype("uint16"), "<u2"])
def test_a_dtype_may_be_given_in_any_of_its_forms(tmp_path, given_dtype):
    assert build(tmp_path, dtype=given_dtype).dtype == np.uint16


def test_filenames_are_a_copy_and_spelt_as_the_folder_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    builder = build("./out//x")
    builder.add_array([1, 2, 3, 4, 5])
    builder.filenames.clear()
    assert builder.filenames == ["./out//x/web_0000000000.bin"]


def test_a_missing_folder_is_made(tmp_path):
    with build(tmp_path / "a" / "b") as builder:
        builder.add_array([1])
    assert tokens_of(tmp_path / "a" / "b") == [[1, 0, 0, 0]]


def test_close_fills_the_last_chunk_and_writes_the_manifest(tmp_path):
    builder = build(tmp_path, sep_token=7, vocab_size=100, tokenizer="bytes", tokenizer_hash="ab")
    builder.add_document([1, 2, 3, 4, 5, 99])
    manifest = builder.close()
    assert tokens_of(tmp_path) == [[1, 2, 3, 4], [5, 99, 7, 7]]
    assert read_manifest(tmp_path / "web.manifest.json") == manifest
    said = (manifest.prefix, manifest.dtype, manifest.chunk_size, manifest.sep_token)
    assert said == ("web", np.dtype("uint16"), 4, 7)
    said = (manifest.vocab_size, manifest.tokenizer, manifest.tokenizer_hash)
    assert said == (100, "bytes", "ab")
    last = manifest.chunks[1]
    assert (last.file, last.num_tokens, last.num_documents) == ("web_0000000001.bin", 2, 0)
    assert (last.min_id, last.max_id) == (5, 99)  # the fill is not counted


def test_the_checksums_are_those_of_the_files(tmp_path):
    with build(tmp_path) as builder:
        builder.add_documents(range(10), [3, 7])
    for entry in builder.close().chunks:
        chunk = tmp_path / entry.file
        sidecar = Path(documents_path(chunk))
        assert entry.sha256 == hashlib.sha256(chunk.read_bytes()).hexdigest()
        assert entry.documents_sha256 == hashlib.sha256(sidecar.read_bytes()).hexdigest()


def test_an_exactly_full_chunk_leaves_no_fill_chunk(tmp_path):
    with build(tmp_path) as builder:
        builder.add_document([1, 2, 3, 4])
        assert builder.filenames == []  # as in the reference, it is written at the next add
    assert tokens_of(tmp_path) == [[1, 2, 3, 4]]
    assert starts_of(tmp_path) == [[0]]


def test_an_empty_build_leaves_a_manifest_and_no_chunk(tmp_path):
    manifest = build(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == ["web.manifest.json"]
    assert (manifest.num_chunks, manifest.num_tokens, manifest.num_documents) == (0, 0, 0)


def test_a_remainder_of_nothing_is_a_chunk_of_fill_as_in_the_reference(tmp_path):
    builder = build(tmp_path, sep_token=7)
    builder.write_reminder()
    (entry,) = builder.close().chunks
    assert tokens_of(tmp_path) == [[7, 7, 7, 7]]
    assert (entry.num_tokens, entry.min_id, entry.max_id) == (0, None, None)


def test_the_file_of_a_remainder_is_there_when_the_call_returns(tmp_path):
    builder = build(tmp_path)
    builder.add_array([1])
    builder.write_reminder()
    assert tokens_of(tmp_path) == [[1, 0, 0, 0]]


def test_after_a_remainder_the_next_chunk_goes_on(tmp_path):
    with build(tmp_path) as builder:
        builder.add_document([1])
        builder.write_remainder()
        builder.add_document([2, 3])
    assert tokens_of(tmp_path) == [[1, 0, 0, 0], [2, 3, 0, 0]]
    assert [entry.num_tokens for entry in builder.close().chunks] == [1, 2]
    assert starts_of(tmp_path) == [[0], [0]]


def test_without_documents_there_are_no_sidecars(tmp_path):
    with build(tmp_path) as builder:
        builder.add_array([1, 2, 3, 4, 5])
    assert not list(tmp_path.glob("*.npy"))
    manifest = builder.close()
    assert manifest.num_documents is None
    assert manifest.chunks[0].documents_sha256 is None


def test_plain_arrays_continue_the_document_before_them(tmp_path):
    with build(tmp_path) as builder:
        builder.add_document([1])
        builder.add_array([2, 3, 4, 5])
        builder.add_document([6])
    assert starts_of(tmp_path) == [[0], [1]]


def test_chunks_before_the_first_document_get_empty_sidecars(tmp_path):
    with build(tmp_path) as builder:
        builder.add_array(range(9))
        builder.add_document([9])
    assert starts_of(tmp_path) == [[], [], [1]]
    assert builder.close().num_documents == 1


def test_separators_are_tokens_of_their_document(tmp_path):
    with build(tmp_path, chunk_size=8, sep_token=9) as builder:
        builder.add_document([1, 2], sep="before")
        builder.add_document([3], sep="after")
        builder.add_document([4])
        builder.add_document([], sep="after")
    assert tokens_of(tmp_path) == [[9, 1, 2, 3, 9, 4, 9, 9]]
    assert starts_of(tmp_path) == [[0, 3, 5, 6]]
    assert builder.close().num_tokens == 7


def test_a_document_that_runs_over_begins_in_one_chunk_only(tmp_path):
    with build(tmp_path) as builder:
        builder.add_document(range(1, 11))
        builder.add_document([11])
    assert starts_of(tmp_path) == [[0], [], [2]]


@pytest.mark.parametrize("at_once", [False, True])
def test_an_empty_document_stands_with_the_token_before_it(tmp_path, at_once):
    documents = [[], [1, 2], [], [3, 4], [], [], [5], []]
    with build(tmp_path) as builder:
        if at_once:
            builder.add_documents([1, 2, 3, 4, 5], [len(document) for document in documents])
        for document in [] if at_once else documents:
            builder.add_document(document)
    assert starts_of(tmp_path) == [[0, 0, 2, 2, 4, 4], [0, 1]]


def test_min_and_max_are_those_of_valid_tokens_that_are_numbers(tmp_path):
    builder = PackedDatasetBuilder(tmp_path, "x", 2, -5, "float32")
    builder.add_array([0.5, 2.0, 1.5, float("nan"), 4])
    chunks = builder.close().chunks
    assert [(entry.min_id, entry.max_id) for entry in chunks] == [(0.5, 2.0), (None, None), (4, 4)]
    assert all(type(entry.max_id) in (float, type(None)) for entry in chunks)


def test_whatever_holds_integers_can_be_added(tmp_path):
    with build(tmp_path, chunk_size=64) as builder:
        builder.add_document([1, 2])
        builder.add_document(iter((3, 4)))
        builder.add_document(b"\x05\x06")
        builder.add_array(np.array([7, 8], ">i8"))
        builder.add_documents((9, 10), np.array([1, 1], np.uint8))
        builder.add_documents([], [])
    assert tokens_of(tmp_path)[0][:10] == list(range(1, 11))
    assert builder.close().num_documents == 5


def test_the_array_that_was_added_may_change_afterwards(tmp_path):
    ids = np.array([1, 2, 3], np.uint16)
    with build(tmp_path) as builder:
        for _ in range(4):
            builder.add_array(ids)
            ids += 3
    assert tokens_of(tmp_path) == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


def test_closing_again_returns_the_same_manifest_and_writes_nothing(tmp_path):
    builder = build(tmp_path)
    builder.add_document([1])
    manifest = builder.close()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert builder.close() == manifest
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_forgetting_to_close_a_build_of_documents_is_warned_of(tmp_path):
    builder = build(tmp_path)
    builder.add_document([1])
    with pytest.warns(ResourceWarning, match=r"The builder of 'web' was never closed: no manif"):
        del builder


def test_a_script_of_the_reference_need_not_close(tmp_path, recwarn):
    builder = build(tmp_path)
    builder.add_array([1])
    builder.write_reminder()
    del builder
    assert not recwarn.list


def test_overwriting_removes_every_file_of_the_old_build_and_no_other(tmp_path):
    for prefix in ("web", "web_code"):
        with PackedDatasetBuilder(tmp_path, prefix, 2, 0, "uint16") as builder:
            builder.add_documents(range(9), [4, 5])
    kept = files_in(tmp_path, "web_code*")
    (tmp_path / "web_notes.txt").touch()
    builder = build(tmp_path, overwrite=True)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*kept, "web_notes.txt"}
    builder.add_array([1, 2, 3, 4, 5])
    builder.close()
    assert tokens_of(tmp_path) == [[1, 2, 3, 4], [5, 0, 0, 0]]
    assert files_in(tmp_path, "web_code*") == kept


BUILD_ONE = """
import sys
from packcore.builder import PackedDatasetBuilder
folder, prefix, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
with PackedDatasetBuilder(folder, prefix, 8, 0, "uint16") as builder:
    for i in range(50):
        builder.add_document([first + i] * 3)
"""


def test_several_processes_build_different_prefixes_in_one_folder(tmp_path):
    prefixes = ["web", "web_code", "web_0000000000"]
    running = [
        subprocess.Popen([sys.executable, "-c", BUILD_ONE, tmp_path, prefix, str(i * 100)])
        for i, prefix in enumerate(prefixes)
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    for i, prefix in enumerate(prefixes):
        manifest = read_manifest(manifest_path(tmp_path, prefix))
        assert (manifest.num_documents, manifest.num_tokens) == (50, 150)
        expected = np.repeat(np.arange(50) + i * 100, 3).tolist()
        assert list(itertools.chain(*tokens_of(tmp_path, prefix)))[:150] == expected
    assert not list(tmp_path.glob(".*"))


def without_fsync():
    """For tests of many small builds; test_files.py shows what is fsynced."""
    return mock.patch.object(os, "fsync")


class Oracle:
    """The builder, one token at a time."""

    def __init__(self, chunk_size, sep_token):
        self.chunk_size, self.sep_token = chunk_size, sep_token
        self.chunks, self.starts, self.lengths = [], [], []
        self.open, self.open_starts = [], []

    def flush(self):
        fill = [self.sep_token] * (self.chunk_size - len(self.open))
        self.chunks.append(self.open + fill)
        self.lengths.append(len(self.open))
        self.starts.append(self.open_starts)
        self.open, self.open_starts = [], []

    def add(self, ids):
        for token in ids:
            if len(self.open) == self.chunk_size:
                self.flush()
            self.open.append(token)

    def add_document(self, ids, sep):
        ids = {None: ids, "before": [self.sep_token, *ids], "after": [*ids, self.sep_token]}[sep]
        if ids and len(self.open) == self.chunk_size:
            self.flush()
        self.open_starts.append(len(self.open))
        self.add(ids)

    def close(self):
        if self.open or self.open_starts:
            self.flush()


def test_empty_documents_at_the_end_are_kept_even_in_a_chunk_of_their_own(tmp_path):
    with build(tmp_path, 4) as builder:
        builder.add_document([1, 2])
        builder.write_reminder()
        builder.add_document([])
        builder.add_documents([], [0])
    manifest = builder.close()
    assert [entry.num_documents for entry in manifest.chunks] == [1, 2]
    dataset = packcore.open(tmp_path)
    assert (dataset.num_tokens, dataset.num_documents) == (2, 3)
    assert [dataset.document(index).tolist() for index in range(3)] == [[1, 2], [], []]


IDS = st.lists(st.integers(0, 99), max_size=4) | st.lists(st.integers(0, 99), max_size=20)
SEPS = st.sampled_from([None, "before", "after"])
ACTIONS = st.one_of(
    st.tuples(st.just("array"), IDS, st.none()),
    st.tuples(st.just("document"), IDS, SEPS),
    st.tuples(st.just("documents"), st.lists(IDS, max_size=8), SEPS),
    st.tuples(st.just("remainder"), st.none(), st.none()),
)


def act(builder, oracle, action, ids, sep, dtype):
    if action == "array":
        builder.add_array(np.array(ids, dtype))
        oracle.add(ids)
    elif action == "document":
        builder.add_document(np.array(ids, dtype), sep=sep)
        oracle.add_document(ids, sep)
    elif action == "documents":
        flat = np.array(list(itertools.chain(*ids)), dtype)
        builder.add_documents(flat, [len(document) for document in ids], sep=sep)
        for document in ids:
            oracle.add_document(document, sep)
    else:
        builder.write_remainder()
        oracle.flush()


@given(
    st.integers(1, 9),
    st.integers(0, 99),
    st.sampled_from(["uint8", "uint16", "int32", "float32"]),
    st.lists(ACTIONS, max_size=8),
)
def test_any_build_is_what_one_token_at_a_time_would_make(
    tmp_path_factory, chunk_size, sep_token, dtype, actions
):
    folder = tmp_path_factory.getbasetemp() / "oracle"
    oracle = Oracle(chunk_size, sep_token)
    options = {"dtype": dtype, "overwrite": True}
    with without_fsync(), build(folder, chunk_size, sep_token, **options) as builder:
        for action in actions:
            act(builder, oracle, *action, dtype)
    oracle.close()
    manifest = builder.close()
    assert tokens_of(folder) == oracle.chunks
    assert [entry.num_tokens for entry in manifest.chunks] == oracle.lengths
    valid = [chunk[:n] for chunk, n in zip(oracle.chunks, oracle.lengths, strict=True)]
    assert [entry.min_id for entry in manifest.chunks] == [min(v, default=None) for v in valid]
    assert [entry.max_id for entry in manifest.chunks] == [max(v, default=None) for v in valid]
    if any(action[0].startswith("document") for action in actions):
        assert starts_of(folder) == oracle.starts
    else:
        assert not list(folder.glob("*.npy"))


@given(st.integers(2, 6), SEPS, st.lists(st.integers(0, 4) | st.integers(0, 12), max_size=16))
def test_documents_at_once_are_the_same_as_one_by_one(tmp_path_factory, chunk_size, sep, lengths):
    folder = tmp_path_factory.getbasetemp() / "at_once"
    flat = np.arange(sum(lengths)) % 251
    options = {"chunk_size": chunk_size, "sep_token": 255, "overwrite": True}
    with without_fsync(), build(folder, **options) as builder:
        builder.add_documents(flat, lengths, sep=sep)
    at_once = files_in(folder, "*")
    with without_fsync(), build(folder, **options) as builder:
        for document in np.split(flat, np.cumsum(lengths)[:-1]) if lengths else []:
            builder.add_document(document, sep=sep)
        if not lengths:
            builder.add_documents([], [])
    assert files_in(folder, "*") == at_once
