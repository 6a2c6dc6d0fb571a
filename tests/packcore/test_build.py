import gzip
import json
import os
import shutil
import sys

import numpy as np
import pytest
from real_text import bytes_of, documents_of, files_of, sources, train_bpe, write_jsonl

import packcore
from packcore.errors import ArgumentError, ArgumentTypeError, FormatError, NoDataError
from packcore.manifest import read_manifest
from packcore.pipeline.inputs import list_inputs
from packcore.pipeline.reading import cut

CHUNK_SIZE = 50_021


def build(inputs, outdir, **options):
    options = {"tokenizer": "bytes", "chunk_size": CHUNK_SIZE, "workers": 0} | options
    return packcore.build(inputs, outdir, **options)


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    return train_bpe(path), str(path)


def test_each_document_is_what_the_tokenizer_gives_and_the_end_mark(tmp_path, bpe):
    tokenizer, path = bpe
    texts = sources()
    manifest = build(write_jsonl(tmp_path / "a.jsonl", texts), tmp_path / "out", tokenizer=path)
    expected = [[*tokenizer.encode(text, add_special_tokens=False).ids, 0] for text in texts]
    assert documents_of(tmp_path / "out") == expected
    assert manifest.num_documents == len(texts)
    assert manifest.num_tokens == sum(map(len, expected))
    assert manifest.num_chunks > 5
    assert (manifest.tokenizer, manifest.sep_token) == (path, 0)
    assert manifest.vocab_size == tokenizer.get_vocab_size()
    assert manifest == read_manifest(tmp_path / "out" / "train.manifest.json")


def test_any_number_of_workers_gives_the_same_bytes(tmp_path, bpe):
    texts = sources()
    inputs = [write_jsonl(tmp_path / "a.jsonl", texts), tmp_path / "b.txt"]
    inputs[1].write_text(texts[0], "utf-8")
    made = []
    for workers in (0, 1, 2, 3):
        folder = tmp_path / f"out{workers}"
        build(inputs, folder, tokenizer=bpe[1], workers=workers)
        made.append(files_of(folder))
    assert made[1:] == made[:1] * 3


@pytest.mark.parametrize("work_bytes", [1, 100, 10**9])
def test_any_cut_of_the_inputs_gives_the_same_bytes(tmp_path, monkeypatch, work_bytes):
    texts = ["", "a", "\n", "\u00e9" * 50, "x" * 300, "", "b"] * 3
    inputs = every_kind(tmp_path, texts)
    build(inputs, tmp_path / "out")
    monkeypatch.setattr("packcore.pipeline.run.cut", cutter(work_bytes))
    build(inputs, tmp_path / "cut")
    assert documents_of(tmp_path / "cut") == bytes_of(texts) * len(inputs)
    assert files_of(tmp_path / "cut") == files_of(tmp_path / "out")


def cutter(work_bytes):
    return lambda *args, **options: cut(*args, **options, work_bytes=work_bytes)


def every_kind(folder, texts):
    """The same documents as each kind of file that this environment can write."""
    plain = write_jsonl(folder / "a.jsonl", texts)
    without_end = folder / "without_end.jsonl"
    without_end.write_bytes(plain.read_bytes().removesuffix(b"\n"))
    packed = folder / "b.jsonl.gz"
    half = len(plain.read_bytes()) // 2
    members = plain.read_bytes()[:half], plain.read_bytes()[half:]
    packed.write_bytes(b"".join(map(gzip.compress, members)))
    blank = folder / "blank.ndjson"
    blank.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n\r\n"))
    return [plain, without_end, packed, blank]


def write_arrow(path, table, num_rows, new):
    with open(path, "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, num_rows)


def test_every_kind_of_table_and_of_compression_gives_the_same_documents(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    zstd = pytest.importorskip("backports.zstd")
    texts = sources()[-9:]
    table = pyarrow.table({"n": range(len(texts)), "text": texts})
    parquet.write_table(table, tmp_path / "c.parquet", row_group_size=4)
    write_arrow(tmp_path / "d.arrow", table, 4, pyarrow.ipc.new_file)
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "dataset_info.json").write_text("{}")
    parts = [table.slice(0, 5), table.slice(5)]
    names = ["z.arrow", "a.arrow"]  # the order is that of state.json
    for name, part in zip(names, parts, strict=True):
        write_arrow(saved / name, part, 2, pyarrow.ipc.new_stream)
    listed = {"_data_files": [{"filename": name} for name in names]}
    (saved / "state.json").write_text(json.dumps(listed))
    plain = write_jsonl(tmp_path / "a.jsonl", texts).read_bytes()
    (tmp_path / "e.jsonl.zst").write_bytes(zstd.compress(plain[:999]) + zstd.compress(plain[999:]))
    build(tmp_path, tmp_path / "out", workers=1)
    assert documents_of(tmp_path / "out") == bytes_of(texts) * 5
    whole = files_of(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.jsonl", "c.parquet", "d.arrow", "e.jsonl.zst", "out", "saved"
    ]  # fmt: skip
    shutil.rmtree(tmp_path / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packcore.pipeline.run.cut", cutter(5000))
        build(tmp_path, tmp_path / "out")
    assert files_of(tmp_path / "out") == whole


def test_a_text_file_is_one_document_or_one_a_line(tmp_path):
    (tmp_path / "b.txt").write_bytes("One\r\ntwo\u2028\n\n three".encode())
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"four\n\nfive\n"))
    (tmp_path / "c.txt").write_bytes(b"")
    build(tmp_path, tmp_path / "whole")
    whole = ["four\n\nfive\n", "One\r\ntwo\u2028\n\n three", ""]
    assert documents_of(tmp_path / "whole") == bytes_of(whole)
    build(tmp_path / "?.txt*", tmp_path / "lines", text_files="lines")
    lines = ["four", "five", "One", "two\u2028", " three"]
    assert documents_of(tmp_path / "lines") == bytes_of(lines)


def test_files_come_in_the_order_of_the_sources_and_of_their_paths_and_only_once(tmp_path):
    for name in ("b/2.txt", "b/10.txt", "a.txt", "b/.hidden.txt", "b/notes.md", "b/info.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    sources = [tmp_path / "b" / "2.txt", tmp_path, tmp_path / "*.txt"]
    build(sources, tmp_path / "out")
    assert documents_of(tmp_path / "out") == bytes_of(["b/2.txt", "a.txt", "b/10.txt"])
    (tmp_path / "out" / "more.txt").touch()  # where the corpus goes is no input
    build(sources, tmp_path / "out", overwrite=True)
    assert documents_of(tmp_path / "out") == bytes_of(["b/2.txt", "a.txt", "b/10.txt"])


def test_another_field_and_marks_of_choice(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["hi", ""], field="body")
    build(path, tmp_path / "out", column="body", bos=7, eod="\n")
    assert documents_of(tmp_path / "out") == [[7, 104, 105, 10], [7, 10]]
    build(path, tmp_path / "none", column="body", eod=None)
    assert documents_of(tmp_path / "none") == [[104, 105], []]


def test_ids_are_packed_as_they_are(tmp_path):
    rows = [[5, 6], [], [70_000], list(range(999))]
    path = write_jsonl(tmp_path / "a.jsonl", rows, field="ids")
    options = {"tokenizer": None, "ids_column": "ids", "eod": 3, "vocab_size": 70_001}
    manifest = build(path, tmp_path / "out", **options)
    assert documents_of(tmp_path / "out") == [[*row, 3] for row in rows]
    assert (manifest.dtype, manifest.tokenizer, manifest.vocab_size) == (np.int32, None, 70_001)


@pytest.mark.parametrize("kind", ["list_", "large_list", "fixed"])
def test_ids_of_a_table_are_packed_as_they_are(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    value = pyarrow.int32()
    types = {"fixed": pyarrow.list_(value, 3)}
    column = types[kind] if kind in types else getattr(pyarrow, kind)(value)
    rows = [[1, 2, 3], [4, 5, 6], [7, 8, 9]] * 20
    table = pyarrow.table({"ids": pyarrow.array(rows, column)})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=11)
    options = {"tokenizer": None, "ids_column": "ids", "eod": None, "dtype": "uint16"}
    build(tmp_path / "a.parquet", tmp_path / "out", **options)
    assert documents_of(tmp_path / "out") == rows


def test_the_manifest_says_how_the_corpus_was_made(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["hi"])
    made = build(path, tmp_path / "out", bos=1).provenance
    digest = made["inputs"].pop("names_sha256")
    assert made == {
        "column": "text",
        "text_files": "whole",
        "bos_token": 1,
        "eod_token": 256,
        "inputs": {"num_files": 1, "num_bytes": path.stat().st_size},
        "num_skipped": 0,
        "skipped": [],
    }
    moved = tmp_path / "moved" / "a.jsonl"
    moved.parent.mkdir()
    path.rename(moved)
    assert build(moved, tmp_path / "out2").provenance["inputs"]["names_sha256"] == digest


def test_progress_ends_at_the_end(tmp_path):
    texts = ["x" * 1000] * 3000
    seen = []
    inputs = [write_jsonl(tmp_path / "a.jsonl", texts), write_jsonl(tmp_path / "b.jsonl", ["y"])]
    manifest = build(inputs, tmp_path / "out", on_progress=seen.append)
    done = [one.done_bytes for one in seen]
    assert len(done) > 2
    assert done == sorted(done)
    assert seen[-1].total_bytes == done[-1] == sum(path.stat().st_size for path in inputs)
    assert (seen[-1].num_documents, seen[-1].num_tokens) == (3001, manifest.num_tokens)


def test_inputs_without_a_document_give_a_manifest_without_a_chunk(tmp_path):
    (tmp_path / "a.jsonl").touch()
    assert build(tmp_path / "a.jsonl", tmp_path / "out").num_chunks == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": None}, "Exactly one of tokenizer and ids_column must be given; got neither"),
        ({"ids_column": "ids"}, "Exactly one of tokenizer and ids_column must be given; got both"),
        ({"tokenizer": "gpt2"}, "tokenizer must be 'bytes', a tokenizer.json, a .model,"),
        ({"tokenizer": "json:no_such"}, "tokenizer 'json:no_such' must name a function"),
        ({"chunk_size": 0}, "chunk_size must be at least 1; got 0 (tokens)."),
        ({"eod": "<eos>"}, "eod must be a token of bytes, or an id; got '<eos>'."),
        ({"eod": -1}, "eod must be at least 0; got -1."),
        ({"eod": 300, "vocab_size": 300}, "eod must be in [0, 299]; got 300."),
        ({"bos": 70_000, "dtype": "uint16"}, "bos must be in [0, 65535]; got 70000."),
        ({"dtype": "uint64"}, "dtype must be one of"),
        ({"vocab_size": 0}, "vocab_size must be at least 1; got 0 (ids)."),
        ({"prefix": "a/b"}, "prefix must be a plain name"),
        ({"on_error": "ignore"}, "on_error must be one of 'fail', 'skip'; got 'ignore'."),
        ({"text_files": "words"}, "text_files must be one of 'whole', 'lines'; got 'words'."),
        ({"workers": -1}, "workers must be at least 0; got -1."),
    ],
)
def test_an_argument_that_breaks_its_rule_is_refused_before_anything_is_made(
    tmp_path, options, message
):
    path = write_jsonl(tmp_path / "a.jsonl", ["hi"])
    with pytest.raises(ArgumentError) as caught:
        build(path, tmp_path / "out", **options)
    assert str(caught.value).startswith(message)
    assert caught.value.name
    assert not (tmp_path / "out").exists()


def test_ids_cannot_come_from_text_files_or_end_in_a_mark_that_nobody_named(tmp_path):
    (tmp_path / "a.txt").write_text("hi")
    with pytest.raises(ArgumentError, match="With ids_column no input can be a text file; got"):
        build(tmp_path / "a.txt", tmp_path / "out", tokenizer=None, ids_column="ids")
    path = write_jsonl(tmp_path / "a.jsonl", [[1]], field="ids")
    with pytest.raises(ArgumentError, match="eod must be an id or None where the inputs hold ids"):
        build(path, tmp_path / "out", tokenizer=None, ids_column="ids")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda _: [], NoDataError, "The list of inputs is empty"),
        (lambda _: 3, ArgumentTypeError, "inputs must be paths, globs or a list of them"),
        (lambda folder: folder / "gone.jsonl", NoDataError, "No input is at {folder}/gone.jsonl."),
        (lambda folder: folder / "*.zst", NoDataError, "No input matches the glob {folder}/*.zst."),
        (lambda folder: folder / "empty", NoDataError, "The folder {folder}/empty has no file"),
        (lambda folder: folder / "a.csv", ArgumentError, "{folder}/a.csv must end in .jsonl,"),
        (lambda folder: folder / "a.parquet.gz", ArgumentError, "{folder}/a.parquet.gz must end"),
        (lambda folder: folder / "splits", ArgumentError, "{folder}/splits holds several splits"),
    ],
)
def test_inputs_that_name_nothing_are_refused(tmp_path, make, error, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.csv").touch()
    (tmp_path / "a.parquet.gz").touch()
    (tmp_path / "splits" / "test").mkdir(parents=True)
    (tmp_path / "splits" / "dataset_dict.json").write_text("{}")
    with pytest.raises(error) as caught:
        build(make(tmp_path), tmp_path / "out")
    assert str(caught.value).startswith(message.format(folder=tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes links and pipes")
def test_a_link_that_leads_nowhere_and_a_pipe_are_refused(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    nowhere, loop, pipe = (folder / name for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
    nowhere.symlink_to(tmp_path / "nowhere")
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    for path in (nowhere, loop):
        for source in (path, folder, str(folder / "*.jsonl")):
            with pytest.raises(NoDataError) as caught:
                build(source, tmp_path / "out")
            assert str(caught.value) == (
                f"An input must lead to a file; the link {path} leads nowhere, or back to itself. "
                "Mend it or remove it."
            )
            assert caught.value.path == str(path)
        path.unlink()
    for source in (pipe, folder):
        with pytest.raises(ArgumentError, match=r"must be a file on disk; .*c\.jsonl is a pipe"):
            build(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_back_to_a_folder_above_are_passed_over(tmp_path):
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "b.jsonl", ["b"])
    for name in ("a", "c"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "in", target_is_directory=True)
    assert [file.path for file in list_inputs(tmp_path / "in")] == [str(tmp_path / "in/b.jsonl")]


@pytest.mark.skipif(sys.platform != "linux", reason="names files with any bytes")
def test_a_name_that_is_no_utf8_is_a_name(tmp_path):
    path = tmp_path / os.fsdecode(b"n\xff.jsonl")
    write_jsonl(path, ["one"])
    assert build(path, tmp_path / "out").num_documents == 1
    assert build(tmp_path, tmp_path / "out").num_documents == 1
    path.write_text("bad")
    with pytest.raises(FormatError, match=r"n\udcff\.jsonl:1: "):
        build(path, tmp_path / "out2")


def test_inputs_that_may_not_be_read_are_named_before_anything_is_made(tmp_path, monkeypatch):
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *_: False)  # root may read all
        with pytest.raises(ArgumentError) as caught:
            build(path, tmp_path / "out")
    assert str(caught.value) == (
        f"This user may not read {path}. Change its permissions, or leave it out."
    )

    def refuse(_):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "in").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refuse)
        with pytest.raises(ArgumentError, match=r"This user may not read .*in\."):
            build(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("outdir", [None, 5, b"out"])
def test_an_outdir_must_be_a_path(tmp_path, outdir):
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(ArgumentTypeError) as caught:
        build(path, outdir)
    assert str(caught.value) == f"outdir must be the path of a folder; got {outdir!r}."
    assert (caught.value.name, caught.value.value) == ("outdir", outdir)
    with pytest.raises(ArgumentError, match=r"outdir must have no NUL character; got 'a\\x00b'\."):
        build(path, "a\0b")
