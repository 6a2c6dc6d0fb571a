"""Corpora between formats: exact round trips, separators in and out, what is refused."""

import itertools
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import packcore
from packcore.conversion import TARGETS, convert
from packcore.errors import ArgumentError, OverwriteError, TokenError, WriteError
from packcore.formats import stream, writing

SAMPLES = Path(__file__).parents[1] / "formats"
DOCUMENTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [50000, 65535]]


def documents_of(source, **options):
    dataset = packcore.open(source, **options)
    return [dataset.document(index).tolist() for index in range(dataset.num_documents)]


def build(folder, documents, *, chunk_size=5, dtype="uint16"):
    with packcore.PackedDatasetBuilder(folder, "src", chunk_size, 0, dtype) as builder:
        for document in documents:
            builder.add_document(document)
    return folder


@pytest.fixture
def source(tmp_path):
    return build(tmp_path / "source", DOCUMENTS)


def place_of(folder, target):
    return folder / "out" / "text_document" if target == "megatron" else folder / "out"


@pytest.mark.parametrize("to", ["megatron", "datatrove", "litpkds"])
def test_formats_with_an_index_come_back_exactly(tmp_path, source, to):
    place = place_of(tmp_path, to)
    written = convert(source, place, to=to)
    assert (written.num_tokens, written.num_documents) == (11, 4)
    assert all(os.path.isfile(file) for file in written.files)
    assert documents_of(place) == DOCUMENTS
    convert(place, tmp_path / "back", prefix="src", chunk_size=5)
    for path in source.iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("to", "side"), [("llmc", "before"), ("nanogpt", "after")])
def test_formats_without_an_index_come_back_exactly_by_separators(tmp_path, source, to, side):
    place = place_of(tmp_path, to)
    written = convert(source, place, to=to, sep_token=50256, add_sep=side)
    assert written.num_tokens == 15
    options = {"sep_token": 50256, "source_dtype": "uint16" if to == "nanogpt" else None}
    convert(place, tmp_path / "back", prefix="src", chunk_size=5, strip_sep=side, **options)
    assert documents_of(tmp_path / "back") == DOCUMENTS


@pytest.mark.parametrize(
    ("sample", "files", "options"),
    [
        ("megatron/text_document_uint16", [".bin", ".idx"], {"to": "megatron"}),
        ("megatron/text_document_int32", [".bin", ".idx"], {"to": "megatron"}),
        (
            "llmc/sample_train_000001.bin",
            ["data_train_000000.bin"],
            {"to": "llmc"},
        ),
        ("llmc/llama3_train_000001.bin", ["data_train_000000.bin"], {"to": "llmc"}),
        (
            "nanogpt/train.bin",
            ["train.bin"],
            {"to": "nanogpt", "source_dtype": "uint16", "sep_token": 50256},
        ),
        ("datatrove/u16", ["", ".index"], {"to": "datatrove", "prefix": "s"}),
        ("datatrove/u32", ["", ".index"], {"to": "datatrove", "prefix": "s"}),
    ],
)
def test_what_a_format_s_own_writer_wrote_is_written_again_byte_for_byte(
    tmp_path, sample, files, options
):
    chunks = tmp_path / "chunks"
    opening = {name: options[name] for name in ("source_dtype", "sep_token") if name in options}
    convert(SAMPLES / sample, chunks, chunk_size=4, **opening)
    rest = {name: value for name, value in options.items() if name != "source_dtype"}
    if "llama3" in sample:
        rest["dtype"] = "uint32"
    convert(chunks, tmp_path / "out", **rest)
    for file in files:
        if options["to"] == "megatron":
            ours, theirs = f"{tmp_path / 'out'}{file}", f"{SAMPLES / sample}{file}"
        elif options["to"] == "datatrove":
            name = f"s_00000_unshuffled.ds{file}"
            ours, theirs = tmp_path / "out" / name, SAMPLES / sample / name
        else:
            ours, theirs = tmp_path / "out" / file, SAMPLES / sample
        assert Path(ours).read_bytes() == Path(theirs).read_bytes()


documents = st.lists(st.lists(st.integers(1, 999), max_size=6), max_size=12)


def pieces_of(documents, cuts):
    """The documents as pieces that end at `cuts`, as chunks and slabs would cut them."""
    tokens = np.array(list(itertools.chain(*documents)), np.int64)
    starts = np.cumsum([0, *map(len, documents)])[:-1].astype(np.int64)
    edges = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    for low, high in itertools.pairwise(edges):
        last = high + 1 if high == len(tokens) else high
        inside = starts[(starts >= low) & (starts < last)]
        yield stream.Piece(tokens[low:high], inside - low)


def joined(pieces):
    """The documents that pieces hold."""
    tokens, starts = [], []
    for piece in pieces:
        starts += (piece.starts + len(tokens)).tolist()
        tokens += piece.tokens.tolist()
    return [tokens[low:high] for low, high in itertools.pairwise([*starts, len(tokens)])]


@given(documents, st.sets(st.integers(1, 60)), st.sampled_from(["before", "after"]))
def test_separators_go_in_and_out_wherever_pieces_end(documents, cuts, side):
    added = list(stream.add_separators(stream._tidy(pieces_of(documents, cuts)), 0, side))
    expected = [[0, *one] if side == "before" else [*one, 0] for one in documents]
    assert joined(added) == expected
    checked = list(stream.check_separators(added, 0, side, "nanogpt"))
    assert joined(stream.strip_separators(checked, 0, side)) == documents


@given(documents, st.sets(st.integers(1, 60)), st.sampled_from(["before", "after"]), st.data())
def test_a_document_without_its_separator_is_named(documents, cuts, side, data):
    if not documents:
        return
    number = data.draw(st.integers(0, len(documents) - 1))
    with_sep = [[0, *one] if side == "before" else [*one, 0] for one in documents]
    with_sep[number] = documents[number]
    pieces = stream._tidy(pieces_of(with_sep, cuts))
    with pytest.raises(ArgumentError, match=f"; document {number} does not"):
        list(stream.strip_separators(pieces, 0, side))


@given(documents, st.sampled_from(["megatron", "datatrove"]), st.integers(1, 9))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_documents_come_back_empty_ones_included(tmp_path, documents, to, chunk_size):
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    if not documents:
        documents = [[]]
    build(folder / "source", [[7], *documents], chunk_size=chunk_size)
    place = place_of(folder, to)
    convert(folder / "source", place, to=to)
    assert documents_of(place) == [[7], *documents]
    convert(place, folder / "back", chunk_size=3)
    assert documents_of(folder / "back") == [[7], *documents]


def test_documents_longer_than_a_length_are_several_sequences(tmp_path, source, monkeypatch):
    monkeypatch.setattr(writing, "_LONGEST_SEQUENCE", 2)
    convert(source, tmp_path / "out", to="megatron")
    index = (tmp_path / "out.idx").read_bytes()
    count, size = struct.unpack_from("<QQ", index, 18)
    assert (count, size) == (6, 5)
    assert np.frombuffer(index, "<i4", 6, 34).tolist() == [2, 1, 2, 2, 2, 2]
    assert documents_of(tmp_path / "out") == DOCUMENTS


def test_llmc_shards_hold_what_they_say(tmp_path, source):
    written = convert(
        source, tmp_path / "out", to="llmc", sep_token=50256, add_sep="before", chunk_size=4
    )
    names = [Path(file).name for file in written.files]
    assert names == [f"data_train_{index:06d}.bin" for index in range(4)]
    assert [chunk.num_tokens for chunk in packcore.open(tmp_path / "out").chunks] == [4, 4, 4, 3]
    assert documents_of(tmp_path / "out") == [[50256, *document] for document in DOCUMENTS]


@pytest.mark.parametrize("to", ["llmc", "nanogpt"])
def test_documents_that_separators_do_not_tell_are_not_lost_silently(tmp_path, source, to):
    with pytest.raises(ArgumentError, match=f"{to} tells documents by a separator") as info:
        convert(source, tmp_path / "out", to=to, sep_token=7)
    assert info.value.name == "sep_token"
    assert not list((tmp_path / "out").glob("*"))
    convert(source, tmp_path / "out", to=to, drop_documents=True)
    assert packcore.open(tmp_path / "out", dtype="uint16").num_tokens == 11


def test_an_index_needs_documents(tmp_path):
    source = SAMPLES / "nanogpt" / "train.bin"
    with pytest.raises(ArgumentError, match="Name the id that ends a document"):
        convert(source, tmp_path / "out", to="megatron", source_dtype="uint16")
    written = convert(
        source, tmp_path / "out", to="megatron", source_dtype="uint16", sep_token=50256
    )
    assert written.num_documents == 4


def test_unknown_documents_stay_unknown_in_chunks(tmp_path):
    convert(SAMPLES / "nanogpt" / "train.bin", tmp_path, source_dtype="uint16")
    dataset = packcore.open(tmp_path)
    assert (dataset.num_tokens, dataset.num_documents) == (15, None)


@pytest.mark.parametrize(
    ("stored", "to", "expected"),
    [
        ("uint16", "llmc", "uint16"),
        ("int32", "llmc", "uint32"),
        ("int64", "datatrove", "uint32"),
        ("uint8", "datatrove", "uint16"),
        ("int64", "nanogpt", "uint16"),
        ("int64", "megatron", "int64"),
    ],
)
def test_the_dtype_is_the_nearest_that_a_format_has(tmp_path, stored, to, expected):
    build(tmp_path / "source", [[9, 1, 2]], dtype=stored)
    place = place_of(tmp_path, to)
    convert(tmp_path / "source", place, to=to, drop_documents=to in ("llmc", "nanogpt"))
    options = {"dtype": "uint16"} if to == "nanogpt" else {}
    assert packcore.open(place, **options).dtype == np.dtype(expected)


def test_uint32_becomes_int32_and_each_id_is_checked(tmp_path):
    convert(SAMPLES / "llmc" / "llama3_train_000001.bin", tmp_path / "a")
    assert packcore.open(tmp_path / "a").dtype == np.int32
    header = struct.pack("<3i", 20240801, 7, 1)
    (tmp_path / "x.bin").write_bytes(header + bytes(1012) + struct.pack("<I", 2**31))
    with pytest.raises(TokenError, match="is 2147483648, which does not fit") as info:
        convert(tmp_path / "x.bin", tmp_path / "b")
    assert info.value.value == 2**31
    convert(tmp_path / "x.bin", tmp_path / "c", dtype="int64")
    assert packcore.open(tmp_path / "c").tokens(0, 1).tolist() == [2**31]


@pytest.mark.parametrize("to", TARGETS)
def test_an_id_beyond_the_vocabulary_leaves_no_file(tmp_path, source, to):
    with pytest.raises(TokenError, match=r"ids must be in \[0, 65534\]"):
        convert(source, place_of(tmp_path, to), to=to, vocab_size=65535, drop_documents=True)
    assert not [path for path in tmp_path.glob("out*/*") if path.is_file()]


@pytest.mark.parametrize("to", TARGETS)
def test_what_is_there_is_replaced_only_when_told(tmp_path, source, to):
    place = place_of(tmp_path, to)
    options = {"to": to, "drop_documents": True}
    first = convert(source, place, **options)
    with pytest.raises(OverwriteError) as info:
        convert(source, place, **options)
    assert info.value.path in first.files
    assert convert(source, place, overwrite=True, **options) == first
    assert not [path for path in (tmp_path / "out").iterdir() if path.suffix == ".tmp"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "arrow"}, "to must be one of 'litpkds', 'megatron'"),
        ({"to": "llmc", "dtype": "int32"}, "dtype must be one of uint16, uint32; got 'int32'"),
        ({"add_sep": "around"}, "add_sep must be one of 'before', 'after'"),
        ({"strip_sep": "after"}, "sep_token must be named"),
        ({"strip_sep": "after", "sep_token": 3}, "document 1 does not"),
        ({"add_sep": "after", "sep_token": 3, "drop_documents": True}, "add_sep needs documents"),
        ({"chunk_size": -1}, "chunk_size must be at least 1"),
        ({"prefix": "a/b"}, "prefix must be a plain name"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path, source, options, message):
    with pytest.raises(ArgumentError, match=message):
        convert(source, tmp_path / "out", **options)


@pytest.mark.skipif(sys.platform == "win32", reason="Unix: a file in place of a folder")
def test_a_folder_that_cannot_be_made_is_told(tmp_path, source):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="Could not write") as info:
        convert(source, tmp_path / "file" / "out", to="datatrove")
    assert info.value.errno


@pytest.mark.parametrize("to", TARGETS)
def test_what_is_refused_leaves_no_folder_behind(tmp_path, source, to):
    place = place_of(tmp_path / "new", to)
    options = {"sep_token": 0, "add_sep": "after"} if to == "nanogpt" else {}
    options |= {"add_sep": "before", "sep_token": 0} if to == "llmc" else {}
    with pytest.raises(TokenError):
        convert(source, place, to=to, vocab_size=5, **options)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_was_there_stays_when_a_conversion_is_refused(tmp_path, source):
    (tmp_path / "out").mkdir()
    with pytest.raises(TokenError):
        convert(source, tmp_path / "out" / "deeper", vocab_size=5)
    assert list((tmp_path / "out").iterdir()) == []
