import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packcore.builder import PackedDatasetBuilder
from packcore.errors import ArgumentError, ClosedError, NoDataError

CHUNK_SIZE = 4


def builder_in(folder, **options):
    return PackedDatasetBuilder(folder, "web", CHUNK_SIZE, sep_token=0, dtype="uint16", **options)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def build(folder, documents):
    """Builds at one go; returns the entries in the order that on_chunk had them."""
    entries = []
    with builder_in(folder, on_chunk=entries.append) as builder:
        for document in documents:
            builder.add_document(np.array(document, np.int64))
    return entries


def go_on(folder, documents, finished):
    """Adds what is in none of the finished chunks, found token by token."""
    num_tokens = sum(entry.num_tokens for entry in finished)
    num_documents = sum(entry.num_documents for entry in finished)
    begun = [token for document in documents[:num_documents] for token in document]
    with builder_in(folder, finished=finished) as builder:
        builder.add_array(np.array(begun[num_tokens:], np.int64))
        for document in documents[num_documents:]:
            builder.add_document(np.array(document, np.int64))


DOCUMENTS = st.lists(st.lists(st.integers(1, 99), max_size=9), max_size=8)


@given(DOCUMENTS, st.data())
def test_going_on_behind_any_full_chunk_gives_the_same_files(tmp_path_factory, documents, data):
    folder = tmp_path_factory.mktemp("corpus")
    entries = build(folder, documents)
    whole = files_of(folder)
    full = [entry for entry in entries if entry.num_tokens == CHUNK_SIZE]
    number = data.draw(st.integers(0, len(full)))
    go_on(folder, documents, full[:number])
    assert files_of(folder) == whole


def test_on_chunk_is_told_of_each_chunk_once_it_is_on_disk(tmp_path):
    seen = []

    def on_chunk(entry):
        seen.append((entry.file, (tmp_path / entry.file).exists()))

    with builder_in(tmp_path, on_chunk=on_chunk) as builder:
        builder.add_document(range(9))
    assert seen == [(f"web_000000000{index}.bin", True) for index in range(3)]


def test_what_on_chunk_raises_ends_the_build(tmp_path):
    def on_chunk(entry):
        raise OSError(entry.file)

    with (
        pytest.raises(OSError, match=r"web_0000000000\.bin"),
        builder_in(tmp_path, on_chunk=on_chunk) as builder,
    ):
        builder.add_document(range(13))
    assert not (tmp_path / "web.manifest.json").exists()


def test_on_chunk_may_ask_for_the_files(tmp_path):
    seen = []

    def on_chunk(entry):
        seen.append((entry.file, len(builder.filenames)))

    with builder_in(tmp_path, on_chunk=on_chunk) as builder:
        builder.add_document(range(30))
    assert seen == [(f"web_000000000{index}.bin", index + 1) for index in range(8)]


def add_and_ask(builder):
    builder.add_array(range(13))
    return builder.filenames


def test_after_an_error_the_files_are_told_without_on_chunk(tmp_path):
    seen = []

    def on_chunk(entry):
        seen.append(entry.file)
        raise OSError("the journal is full")

    builder = builder_in(tmp_path, on_chunk=on_chunk)
    with pytest.raises(OSError, match="journal"):
        add_and_ask(builder)
    assert builder.filenames == sorted(map(str, tmp_path.glob("web_*.bin"))) != []
    assert seen == ["web_0000000000.bin"]
    with pytest.raises(ClosedError):
        builder.close()


def test_finished_chunks_must_be_all_from_the_first_on(tmp_path):
    entries = build(tmp_path, [range(16)])
    before = files_of(tmp_path)
    with pytest.raises(ArgumentError) as caught:
        builder_in(tmp_path, finished=[entries[0], entries[2]])
    assert str(caught.value).startswith("finished[1] must be web_0000000001.bin: all from the fir")
    assert caught.value.value is entries[2]
    assert files_of(tmp_path) == before


def test_files_that_are_not_of_the_finished_chunks_are_removed(tmp_path):
    entries = build(tmp_path, [range(12)])
    other = tmp_path / "web_code_0000000000.bin"
    other.touch()
    with builder_in(tmp_path, finished=entries[:1]):
        names = sorted(files_of(tmp_path))
        assert names == ["web_0000000000.bin", "web_0000000000.docs.npy", other.name]


@pytest.mark.parametrize("suffix", [".bin", ".docs.npy"])
def test_a_finished_chunk_whose_file_is_gone_is_named_and_nothing_is_removed(tmp_path, suffix):
    entries = build(tmp_path, [range(12)])
    gone = tmp_path / f"web_0000000001{suffix}"
    gone.unlink()
    before = files_of(tmp_path)
    with pytest.raises(NoDataError) as caught:
        builder_in(tmp_path, finished=entries[:2])
    assert str(caught.value).startswith(f"There is no file {gone}")
    assert caught.value.path == str(gone)
    assert files_of(tmp_path) == before


def test_a_chunk_that_is_not_full_cannot_be_finished(tmp_path):
    entries = build(tmp_path, [range(6)])
    with pytest.raises(ArgumentError) as caught:
        builder_in(tmp_path, finished=entries)
    assert str(caught.value).startswith("finished[1] must be full; got 2 of 4 tokens.")
    assert caught.value.name == "finished"
