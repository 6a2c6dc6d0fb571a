import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from corpora import Row, write_chunk, write_corpus, write_files

import packcore
from packcore.chunks import find_chunks
from packcore.errors import (
    ArgumentError,
    ArgumentTypeError,
    FormatError,
    MismatchError,
    NoDataError,
)

WEB = [[1, 2, 3], [4, 5, 6, 7], [8]]
CODE = [[21, 22], [23, 24, 25, 26]]


@pytest.fixture
def folder(tmp_path):
    """Two prefixes, one of which begins with the other's name, and things that are no chunks."""
    folder = tmp_path / "corpus"
    write_corpus(folder, "web", WEB, 4)
    write_corpus(folder, "web_code", CODE, 4)
    (folder / "README.txt").write_text("notes")
    (folder / "tokenizer.bin").write_bytes(b"no chunk's name")
    return folder


@pytest.fixture
def bare(tmp_path):
    """Chunks without a manifest, as lit-gpt writes them."""
    folder = tmp_path / "bare"
    write_files(folder, "web", [1, 2, 3, 4, 5, 6], 4)
    write_files(folder, "web_code", [21, 22, 23], 4)
    return folder


def names(chunks):
    return [os.path.basename(chunk.path) for chunk in chunks]


def read(source, **options):
    dataset = packcore.open(source, **options)
    return dataset.tokens(0, dataset.num_tokens).tolist()


FLAT_WEB = [1, 2, 3, 4, 5, 6, 7, 8]
FLAT_CODE = [21, 22, 23, 24, 25, 26]


# What a source names


def test_a_folder_is_all_its_manifests_in_name_order(folder):
    assert read(folder) == FLAT_WEB + FLAT_CODE


def test_a_folder_without_a_manifest_is_all_its_chunks_in_name_order(bare):
    assert names(find_chunks(bare)) == [
        "web_0000000000.bin",
        "web_0000000001.bin",
        "web_code_0000000000.bin",
    ]


def test_any_kind_of_path_names_the_same(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    for source in (folder, str(folder), "corpus", "corpus/", Path("corpus"), "./corpus/../corpus"):
        assert read(source) == FLAT_WEB + FLAT_CODE


def test_a_prefix_is_its_own_chunks_only(folder):
    assert read(folder / "web") == FLAT_WEB
    assert read(folder / "web_code") == FLAT_CODE


def test_a_prefix_without_a_manifest_is_its_own_chunks_only(bare):
    assert read(bare / "web") == [1, 2, 3, 4, 5, 6, 0, 0]
    assert read(bare / "web_code") == [21, 22, 23, 0]


def test_a_prefix_may_be_in_the_working_directory(folder, bare, monkeypatch):
    monkeypatch.chdir(folder)
    assert read("web") == FLAT_WEB
    monkeypatch.chdir(bare)
    assert read("web") == [1, 2, 3, 4, 5, 6, 0, 0]


def test_a_manifest_is_its_own_chunks(folder):
    assert read(folder / "web.manifest.json") == FLAT_WEB


def test_a_single_file_knows_its_manifest(folder):
    last = folder / "web_code_0000000001.bin"
    assert read(last) == FLAT_CODE[4:]  # without the fill
    (chunk,) = find_chunks(last)
    assert (chunk.num_tokens, chunk.entry.file) == (2, last.name)


def test_a_file_of_any_name_can_be_opened(tmp_path):
    path = write_chunk(tmp_path / "tokens", [1, 2, 3])
    assert read(path) == [1, 2, 3]


def test_a_list_is_served_in_its_own_order(folder):
    files = ["web_0000000001.bin", "web_code_0000000000.bin", "web_0000000000.bin"]
    assert read([folder / name for name in files]) == FLAT_WEB[4:] + FLAT_CODE[:4] + FLAT_WEB[:4]


def test_a_list_may_be_of_any_iterable(folder):
    files = [folder / "web_0000000000.bin", str(folder / "web_0000000001.bin")]
    for source in (tuple(files), iter(files), dict.fromkeys(files), (path for path in files)):
        assert read(source) == FLAT_WEB


def test_a_list_of_bytes_is_a_list_of_paths(folder):
    assert read([os.fsencode(folder / "web_0000000000.bin")]) == FLAT_WEB[:4]


@pytest.mark.parametrize("pattern", ["web_0*", "web_0*.bin", "web_[0-9]*.bin", "web.*"])
def test_a_glob_of_a_prefix_is_that_prefix(folder, pattern):
    assert read(folder / pattern) == FLAT_WEB


@pytest.mark.parametrize("pattern", ["web*", "web*.bin", "*.json", "**/web*", "*_*"])
def test_a_glob_that_matches_manifests_sidecars_and_chunks_opens_each_chunk_once(folder, pattern):
    assert read(folder / pattern) == FLAT_WEB + FLAT_CODE


def test_two_stars_match_any_depth(tmp_path):
    write_corpus(tmp_path / "a", "web", WEB, 4)
    write_corpus(tmp_path / "b" / "deep" / "deeper", "web", CODE, 4)
    assert read(tmp_path / "**" / "*.bin") == FLAT_WEB + FLAT_CODE


def test_a_folder_whose_name_looks_like_a_glob_is_a_folder(tmp_path):
    write_corpus(tmp_path / "run[1]*", "web", WEB, 4)
    assert read(tmp_path / "run[1]*") == FLAT_WEB
    assert read(tmp_path / "run[1]*" / "web") == FLAT_WEB
    assert read(tmp_path / "run[1]*" / "web_0000000000.bin") == FLAT_WEB[:4]


def test_what_is_named_twice_is_opened_once_and_in_its_first_place(folder):
    chunk, manifest = folder / "web_0000000001.bin", folder / "web.manifest.json"
    assert read([chunk, manifest, chunk, manifest]) == FLAT_WEB[4:] + FLAT_WEB[:4]
    assert read([manifest, str(chunk)]) == FLAT_WEB
    assert read([folder / ".." / "corpus" / chunk.name, chunk]) == FLAT_WEB[4:]


def test_links_are_followed(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert read(tmp_path / "link") == FLAT_WEB + FLAT_CODE


def test_files_that_are_hidden_or_half_written_are_passed_over(folder):
    (folder / ".web_0000000002.bin.123.0123abcd.tmp").write_bytes(b"LITPKDS")
    (folder / "web_0000000002.bin.part").write_bytes(b"LITPKDS")
    assert read(folder) == FLAT_WEB + FLAT_CODE


def test_a_list_of_chunks_of_many_manifests_reads_each_manifest_once(folder, monkeypatch):
    asked = []
    original = packcore.chunks.read_manifest
    monkeypatch.setattr(
        "packcore.chunks.read_manifest", lambda path: asked.append(path) or original(path)
    )
    assert len(find_chunks(sorted(folder.glob("web_*.bin")))) == 4
    assert len(asked) == 2


# What a chunk knows


def test_a_manifest_tells_the_valid_tokens_and_documents(folder):
    first, last = find_chunks(folder / "web_code")
    assert [(chunk.num_tokens, chunk.num_documents) for chunk in (first, last)] == [(4, 2), (2, 0)]
    assert first.document_starts().tolist() == [0, 2]
    assert last.document_starts().tolist() == []
    assert last.map().tolist() == FLAT_CODE[4:]


def test_a_chunk_reads_any_part_of_itself(folder):
    chunk = find_chunks(folder / "web")[0]
    for start in range(5):
        out = np.empty(4 - start, np.uint16)
        chunk.read(start, out)
        assert out.tolist() == FLAT_WEB[start:4]


def test_a_mapped_chunk_cannot_be_written_to(folder):
    tokens = find_chunks(folder / "web")[0].map()
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


def test_warming_a_chunk_changes_nothing(folder):
    for chunk in find_chunks(folder):
        chunk.warm()
    assert read(folder) == FLAT_WEB + FLAT_CODE


# What is refused


def test_a_chunk_in_no_manifest_of_its_folder_is_refused_with_the_way_out(folder):
    path = write_files(folder, "new", [9, 9], 4)[0]
    with pytest.raises(FormatError, match="is in no manifest of its folder") as info:
        packcore.open(folder)
    assert info.value.path == path
    assert "Build 'new' again with overwrite=True" in str(info.value)
    assert "open the files that you want by a list" in str(info.value)
    others = [folder / "web.manifest.json", folder / "web_code.manifest.json"]
    assert read(others) == FLAT_WEB + FLAT_CODE
    assert read([*others, path]) == [*FLAT_WEB, *FLAT_CODE, 9, 9, 0, 0]


@pytest.mark.parametrize("source", ["", "web*", "web_0000000002.bin"])
def test_a_chunk_left_from_an_older_build_of_its_prefix_is_refused(folder, source):
    path = shutil.copy(folder / "web_0000000000.bin", folder / "web_0000000002.bin")
    with pytest.raises(FormatError, match=r"is not one of the chunks of .*web\.manifest") as info:
        packcore.open(folder / source)
    assert info.value.path == str(path)
    assert "Delete it, or build 'web' again with overwrite=True." in str(info.value)
    assert read(folder / "web.manifest.json") == FLAT_WEB


@pytest.mark.parametrize("what", ["dtype", "chunk_size"])
def test_files_that_differ_are_refused_with_both_values(tmp_path, what):
    first = write_chunk(tmp_path / "a.bin", [1, 2], dtype="uint16")
    if what == "dtype":
        second, expected, got = (
            write_chunk(tmp_path / "b.bin", [1, 2], dtype="int32"),
            "uint16",
            "int32",
        )
    else:
        second, expected, got = write_chunk(tmp_path / "b.bin", [1, 2, 3]), 2, 3
    with pytest.raises(
        MismatchError, match=f"has {what} {got}, but .*a.bin says {expected}"
    ) as info:
        packcore.open([first, second])
    assert (info.value.path, info.value.expected, info.value.got) == (second, expected, got)
    assert "packcore.Mixture" in str(info.value)


@pytest.mark.parametrize(
    ("dtype", "sep_token", "rule"),
    [
        ("uint16", -1, r"in \[0, 65535\]"),
        ("uint16", 65536, r"in \[0, 65535\]"),
        ("int8", 128, r"in \[-128, 127\]"),
        ("int32", 2**40, r"in \[-2147483648, 2147483647\]"),
    ],
)
def test_a_separator_that_cannot_be_in_the_files_is_refused(tmp_path, dtype, sep_token, rule):
    write_files(tmp_path, "a", [1, 0, 2], 4, dtype=dtype)
    with pytest.raises(ArgumentError, match=f"sep_token must be {rule}; got {sep_token}") as info:
        packcore.open(tmp_path, sep_token=sep_token)
    assert (info.value.name, info.value.value) == ("sep_token", sep_token)


@pytest.mark.parametrize("sep_token", [0.0, "0", True, [0]])
def test_a_separator_that_is_no_integer_is_refused(bare, sep_token):
    with pytest.raises(ArgumentTypeError, match="sep_token must be an integer") as info:
        packcore.open(bare, sep_token=sep_token)
    assert info.value.name == "sep_token"


def test_numpy_integers_are_separators(bare):
    assert packcore.open(bare, sep_token=np.uint16(0)).num_documents == 2


@pytest.mark.parametrize("source", [7, None, 1.5, [1, 2], [None], b"corpus", object()])
def test_what_is_no_path_is_refused(source):
    with pytest.raises(ArgumentTypeError, match="source must be a path, a glob or a list") as info:
        packcore.open(source)
    assert info.value.name == "source"
    assert info.value.value is source


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", r"No file is at .*nowhere\. Check the path\."),
        ("nowhere/web", r"No file is at .*nowhere/web\. Check the path\."),
        ("notes.txt/web", r"No file is at .*notes\.txt/web\. Check the path\."),
        ("*.bin", r"No file matches the glob .*\*\.bin\. Check the path\."),
        ("empty", r"The folder .*empty has no chunk file \(\.bin\) and no manifest\."),
        ("", r"has no chunk file \(\.bin\) and no manifest\."),
    ],
)
def test_a_path_with_nothing_there_is_told(tmp_path, source, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("notes")
    path = str(tmp_path / source) if source else str(tmp_path)
    with pytest.raises(NoDataError, match=message) as info:
        packcore.open(path)
    assert info.value.path == path


def test_an_empty_list_is_told():
    with pytest.raises(NoDataError, match="The list of files is empty"):
        packcore.open([])


def test_sidecars_alone_are_no_data(folder):
    with pytest.raises(NoDataError, match="There is no chunk in"):
        packcore.open(folder / "*.docs.npy")


def test_a_manifest_of_no_chunks_is_no_data(tmp_path):
    write_corpus(tmp_path, "web", [], 4)
    with pytest.raises(NoDataError, match=r"corpus is empty: .*web\.manifest\.json lists no chunk"):
        packcore.open(tmp_path)


def test_an_empty_prefix_beside_others_is_passed_over(folder):
    write_corpus(folder, "nothing", [], 4)
    assert read(folder) == FLAT_WEB + FLAT_CODE


def test_a_folder_in_a_list_stands_for_its_chunks(folder):
    assert read([folder]) == FLAT_WEB + FLAT_CODE


def test_the_row_of_a_list_keeps_the_documents_of_each_chunk(folder):
    files = [folder / "web_code_0000000000.bin", folder / "web_0000000001.bin"]
    dataset = packcore.open(files)
    row = Row(FLAT_CODE[:4] + FLAT_WEB[4:], [0, 2, 7], [4, 4])
    assert dataset.document_starts(0, 8).tolist() == row.starts
    assert [dataset.document(index).tolist() for index in range(3)] == [
        row.document(index) for index in range(3)
    ]
