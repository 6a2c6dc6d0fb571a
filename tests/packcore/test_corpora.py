import errno
import os
import shutil

import numpy as np
import pytest
from corpora import write_corpus, write_files
from hypothesis import given
from hypothesis import strategies as st
from real_text import documents_of

import packcore
from packcore.builder import PackedDatasetBuilder
from packcore.corpora import merge, split, summarize, verify
from packcore.errors import ArgumentError, MismatchError, NoDataError, OverwriteError, WriteError
from packcore.manifest import read_manifest

DOCUMENTS = [list(range(1, number + 1)) for number in (3, 0, 9, 1, 1, 30, 0)]


def corpus_in(folder, documents=DOCUMENTS, prefix="web", **options):
    options = {"chunk_size": 7, "sep_token": 0, "dtype": "uint16", "vocab_size": 99} | options
    with PackedDatasetBuilder(folder, prefix, **options) as builder:
        for document in documents:
            builder.add_document(np.array(document, np.int64))
    return folder


@pytest.fixture(autouse=True, scope="module")
def _fast_disk():
    """Dozens of corpora a test; none has to outlive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


# verify


def test_a_corpus_that_is_whole_has_no_problem(tmp_path):
    corpus_in(tmp_path)
    corpus_in(tmp_path, [], prefix="empty")
    corpus_in(tmp_path, [[1.5]], prefix="floats", dtype="float32", vocab_size=None)
    seen = []
    found = verify(tmp_path, on_chunk=seen.append)
    assert found.is_whole
    assert (found.num_manifests, found.num_chunks, found.num_tokens) == (3, 8, 45)
    assert len(seen) == 8


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def cut_short(path, _):
    path.write_bytes(path.read_bytes()[:-1])


def remove(path, _):
    path.unlink()


DAMAGES = [
    (flip, "web_0000000001.bin", 24, "has the SHA-256"),
    (flip, "web_0000000006.bin", -1, "has the SHA-256"),  # in the fill
    (flip, "web_0000000001.bin", 0, "is not a LITPKDS chunk"),
    (flip, "web_0000000001.bin", 16, "bytes"),
    (flip, "web_0000000001.docs.npy", -1, "start 1 must be at most 7"),
    (flip, "web_0000000001.docs.npy", 2, "the header must be"),
    (cut_short, "web_0000000002.bin", 0, "bytes"),
    (cut_short, "web_0000000002.docs.npy", 0, "the file's size must be"),
    (remove, "web_0000000002.bin", 0, "There is no"),
    (remove, "web_0000000000.docs.npy", 0, "There is no"),
]


@pytest.mark.parametrize(("damage", "name", "offset", "what"), DAMAGES)
def test_every_damage_is_found_and_named(tmp_path, damage, name, offset, what):
    corpus_in(tmp_path)
    damage(tmp_path / name, offset)
    found = verify(tmp_path / "web")
    assert not found.is_whole
    assert {problem.path for problem in found.problems} == {str(tmp_path / name)}
    assert what in " ".join(problem.what for problem in found.problems)


@given(st.data())
def test_any_flipped_byte_is_found(tmp_path_factory, data):
    folder = corpus_in(tmp_path_factory.mktemp("corpus"))
    files = sorted(path for path in folder.iterdir() if path.suffix != ".json")
    path = data.draw(st.sampled_from(files))
    flip(path, data.draw(st.integers(0, path.stat().st_size - 1)))
    assert not verify(folder).is_whole


def edit(folder, old, new):
    path = folder / "web.manifest.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return str(path)


def test_a_manifest_that_says_something_else_is_found(tmp_path):
    corpus_in(tmp_path)
    edit(tmp_path, '"vocab_size": 99', '"vocab_size": 20')
    found = verify(tmp_path)
    assert [problem.what for problem in found.problems] == [
        "holds ids from 15 to 21; the vocabulary has 20",
        "holds ids from 22 to 28; the vocabulary has 20",
        "holds ids from 29 to 30; the vocabulary has 20",
    ]
    path = edit(tmp_path, '"num_chunks": 7', '"num_chunks": 8')
    (problem,) = verify(tmp_path).problems
    assert (problem.path, "num_chunks" in problem.what) == (path, True)


def test_the_range_of_ids_and_a_left_over_file_are_looked_at(tmp_path):
    corpus_in(tmp_path)
    edit(tmp_path, '"max_id": 30', '"max_id": 29')
    stray = tmp_path / "web_0000000099.bin"
    stray.touch()
    assert [(problem.path, problem.what) for problem in verify(tmp_path).problems] == [
        (str(stray), "is of this prefix, but not in the manifest"),
        (
            str(tmp_path / "web_0000000006.bin"),
            "holds ids from 29 to 30, the manifest says 29 to 29",
        ),
    ]


def test_where_there_is_no_manifest_there_is_nothing_to_compare(tmp_path):
    write_files(tmp_path, "web", [1, 2, 3], 4)
    for path in (tmp_path, tmp_path / "web", tmp_path / "web.manifest.json"):
        with pytest.raises(NoDataError) as caught:
            verify(path)
        assert str(caught.value).startswith(f"There is no manifest at {path}.")


# summarize


@given(st.lists(st.integers(0, 40), max_size=12))
def test_lengths_are_counted_in_powers_of_two(tmp_path_factory, lengths):
    lengths.append(1)  # a corpus without a token has no chunk
    folder = corpus_in(tmp_path_factory.mktemp("corpus"), [[1] * length for length in lengths])
    found = summarize(folder).lengths
    assert (found.shortest, found.longest) == (min(lengths), max(lengths))
    assert found.mean == sum(lengths) / len(lengths)
    for low, high, count in found.bins():
        assert count == sum(low <= length <= high for length in lengths)
    assert sum(found.counts) == len(lengths)


def test_lengths_of_documents_that_a_separator_ends(tmp_path):
    write_files(tmp_path, "web", [1, 2, 0, 3, 0, 4, 5, 6, 7, 0], 4)
    found = summarize(tmp_path, sep_token=0)
    assert found.manifests == ()
    assert (found.lengths.shortest, found.lengths.longest, sum(found.lengths.counts)) == (2, 5, 3)
    assert summarize(tmp_path).lengths is None


# merge


def test_a_merged_corpus_has_the_documents_of_all_and_no_file_is_rewritten(tmp_path):
    corpus_in(tmp_path / "a")
    corpus_in(tmp_path / "a", [[5] * 8], prefix="code")
    corpus_in(tmp_path / "b", [], vocab_size=120)
    corpus_in(tmp_path / "c", [[7]], vocab_size=120)
    sources = [tmp_path / name for name in ("a", "b", "c")]
    merged = merge(sources, tmp_path / "out", prefix="all")
    assert documents_of(tmp_path / "out") == [[5] * 8, *DOCUMENTS, [7]]
    assert verify(tmp_path / "out").is_whole
    assert (merged.vocab_size, merged.num_chunks) == (120, 10)
    assert merged == read_manifest(tmp_path / "out" / "all.manifest.json")
    assert len(merged.provenance["merged"]) == 4
    first = tmp_path / "out" / merged.chunks[0].file
    assert first.samefile(tmp_path / "a" / "code_0000000000.bin")


def test_files_are_copied_where_they_cannot_be_linked(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    corpus_in(tmp_path / "a")
    monkeypatch.setattr(os, "link", refuse)
    merged = merge([tmp_path / "a"], tmp_path / "out")
    assert documents_of(tmp_path / "out") == DOCUMENTS
    assert merged.fingerprint == read_manifest(tmp_path / "a" / "web.manifest.json").fingerprint
    assert not list((tmp_path / "out").glob("*.tmp"))
    monkeypatch.setattr(shutil, "copyfile", refuse)
    with pytest.raises(WriteError, match=r"Could not make .*train_0000000000"):
        merge([tmp_path / "a"], tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out" / "train.manifest.json").exists()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"dtype": "int32"}, "has dtype int32, but"),
        ({"chunk_size": 8}, "has chunk_size 8, but"),
        ({"sep_token": 1}, "has sep_token 1, but"),
        ({"tokenizer_hash": "abc"}, "has tokenizer_hash abc, but"),
    ],
)
def test_corpora_that_differ_are_not_merged(tmp_path, options, what):
    corpus_in(tmp_path / "a")
    corpus_in(tmp_path / "b", **options)
    with pytest.raises(MismatchError, match=what):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_corpora_with_and_without_documents_are_not_merged(tmp_path):
    write_corpus(tmp_path / "a", "web", [[1, 2]], 4)
    write_corpus(tmp_path / "b", "web", [[1, 2]], 4, recorded=False)
    with pytest.raises(MismatchError, match="has documents recorded False, but"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")


def test_a_source_is_never_overwritten_by_the_merge(tmp_path):
    corpus_in(tmp_path)
    with pytest.raises(ArgumentError, match="outdir and prefix must not be a source's"):
        merge([tmp_path], tmp_path, prefix="web", overwrite=True)
    merge([tmp_path], tmp_path, prefix="again")
    with pytest.raises(OverwriteError):
        merge([tmp_path / "web"], tmp_path, prefix="again")
    with pytest.raises(ArgumentError, match="sources must name at least one corpus; got none"):
        merge([], tmp_path)
    assert verify(tmp_path).is_whole


# split


def sides(folder, **options):
    made = split(folder, folder.parent / f"{folder.name}-split", fraction=0.3, **options)
    return made, [
        documents_of(folder.parent / f"{folder.name}-split" / name)
        for name in ("train", "validation")
    ]


def numbered(count):
    return [[number % 90 + 1, number // 90 + 1] * 3 for number in range(count)]


@given(st.lists(st.lists(st.integers(1, 98), max_size=20), max_size=30), st.integers(1, 40))
def test_each_document_is_on_one_side_in_order(tmp_path_factory, documents, span):
    documents += numbered(12)  # some of these are on either side
    folder = corpus_in(tmp_path_factory.mktemp("corpus") / "in", documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packcore.corpora.splitting._SPAN_TOKENS", span)
        made, found = sides(folder)
    chosen = {tuple(document) for document in found[1]}
    assert found[0] == [document for document in documents if tuple(document) not in chosen]
    assert found[1] == [document for document in documents if tuple(document) in chosen]
    assert [one.vocab_size for one in made] == [99, 99]


def test_a_document_keeps_its_side_when_data_is_added(tmp_path):
    few = sides(corpus_in(tmp_path / "few", numbered(400)))[1]
    many = sides(corpus_in(tmp_path / "many", numbered(900)[::-1], dtype="int32", chunk_size=50))[1]
    for small, large in zip(few, many, strict=True):
        assert {tuple(one) for one in small} < {tuple(one) for one in large}
    assert 80 < len(few[1]) < 160
    other = sides(corpus_in(tmp_path / "few2", numbered(400)), seed=1)[1]
    assert other[1] != few[1]


def test_the_split_of_these_documents_is_pinned(tmp_path):
    made, found = sides(corpus_in(tmp_path / "in", numbered(12)))
    assert [one[0] for one in found[1]] == PINNED
    assert made[1].provenance["split"]["side"] == "validation"
    assert verify(tmp_path / "in-split").is_whole


PINNED = [2, 4, 5, 9]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fraction": 0}, ArgumentError, r"fraction must be in \(0, 1\); got 0\."),
        ({"fraction": 1.0}, ArgumentError, r"fraction must be in \(0, 1\); got 1\.0\."),
        ({"fraction": "x"}, ArgumentError, r"fraction must be in \(0, 1\); got 'x'\."),
        ({"seed": -1}, ArgumentError, r"seed must be at least 0; got -1\."),
        ({"validation": "train"}, ArgumentError, "train and validation must be two names"),
        ({"validation": "web"}, ArgumentError, "outdir must not hold the source under one of"),
    ],
)
def test_a_split_that_breaks_a_rule_is_refused(tmp_path, options, error, message):
    corpus_in(tmp_path)
    with pytest.raises(error, match=message):
        split(tmp_path, tmp_path, **{"fraction": 0.5} | options)
    assert packcore.open(tmp_path).num_documents == len(DOCUMENTS)


def test_a_corpus_that_cannot_be_split_is_refused(tmp_path):
    write_corpus(tmp_path / "a", "web", [[1, 2]], 4, recorded=False)
    with pytest.raises(ArgumentError, match="Where documents begin was not recorded"):
        split(tmp_path / "a", tmp_path / "out", fraction=0.5)
    corpus_in(tmp_path / "b", prefix="a", vocab_size=50)
    corpus_in(tmp_path / "b", prefix="b")
    with pytest.raises(MismatchError, match=r"has vocab_size 99, but .* has 50"):
        split(tmp_path / "b", tmp_path / "out", fraction=0.5)
