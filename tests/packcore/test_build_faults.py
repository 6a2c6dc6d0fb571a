import gzip
import json
import os
import signal

import pytest
from real_text import bytes_of, documents_of, write_jsonl

import packcore
from packcore.errors import ArgumentError, FormatError, StateError, WorkerError
from packcore.pipeline import tokenizers
from packcore.pipeline.reading import cut

GOOD = b'{"text": "good"}\n'


def build(inputs, outdir, **options):
    options = {"tokenizer": "bytes", "chunk_size": 50, "workers": 0} | options
    return packcore.build(inputs, outdir, **options)


BROKEN_LINES = [
    (b'{"text": "cut off', "Unterminated string starting at"),
    (b'{"text": 3}', "the text must be a string; got 3"),
    (b'{"text": null}', "the text must be a string; got null"),
    (b'{"body": "x", "id": 1}', "there is no field 'text'; the fields are 'body', 'id'"),
    (b"{}", "there is no field 'text'; the fields are none"),
    (b'["text"]', "a line must hold a JSON object; got a list"),
    (b'{"text": "\xff"}', "'utf-8' codec can't decode byte 0xff"),
    (b'{"text": "\\ud800"}', "'utf-8' codec can't encode character '\\ud800'"),
    (b"[" * 100_000, "maximum recursion depth exceeded"),
]


@pytest.mark.parametrize(("line", "why"), BROKEN_LINES)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_broken_line_fails_the_build_and_is_named(tmp_path, line, why, suffix):
    path = tmp_path / f"a.jsonl{suffix}"
    content = GOOD * 2 + b"\n" + line + b"\n" + GOOD
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(FormatError) as caught:
        build([write_jsonl(tmp_path / "before.jsonl", ["x"]), path], tmp_path / "out")
    assert str(caught.value).startswith(f"{path}:4: {why}")
    assert str(caught.value).endswith('with on_error="skip", which counts them.')
    assert caught.value.path == str(path)
    assert not (tmp_path / "out" / "train.manifest.json").exists()


@pytest.mark.parametrize("work_bytes", [30, 10**6])
def test_broken_lines_are_skipped_counted_and_named(tmp_path, monkeypatch, work_bytes):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(GOOD + line + b"\n\n" for line, _ in BROKEN_LINES) + GOOD)
    monkeypatch.setattr(
        "packcore.pipeline.run.cut", lambda *args, **kw: cut(*args, **kw, work_bytes=work_bytes)
    )
    told = []
    manifest = build(path, tmp_path / "out", on_error="skip", on_skip=told.append)
    assert documents_of(tmp_path / "out") == bytes_of(["good"]) * (len(BROKEN_LINES) + 1)
    assert len(told) == manifest.provenance["num_skipped"] == len(BROKEN_LINES)
    assert told == manifest.provenance["skipped"]
    for number, (message, (_, why)) in enumerate(zip(told, BROKEN_LINES, strict=True)):
        assert message.startswith(f"{path}:{3 * number + 2}: {why}")


def test_the_manifest_names_twenty_skipped_places_and_counts_all(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"x\n" * 100)
    made = build(tmp_path / "a.jsonl", tmp_path / "out", on_error="skip").provenance
    assert (made["num_skipped"], len(made["skipped"])) == (100, 20)


BROKEN_IDS = [
    ([1, 300], "id 300 at index 1 does not fit: ids must be in [0, 299]"),
    ([-1], "id -1 at index 0 does not fit: ids must be in [0, 299]"),
    ([2**63], f"id {2**63} at index 0 does not fit"),
    ([1.5], "the ids must be a flat list of integers; got 1-D float64"),
    ([True], "the ids must be a flat list of integers; got 1-D bool"),
    ([[1], [2]], "the ids must be a flat list of integers; got 2-D int64"),
    ([[1], 2], "the ids must be a flat list of integers: "),
    (["a"], "the ids must be a flat list of integers; got 1-D <U1"),
    ("1 2", "the ids must be a list; got a string"),
]


@pytest.mark.parametrize(("ids", "why"), BROKEN_IDS)
def test_ids_that_are_none_are_named(tmp_path, ids, why):
    path = write_jsonl(tmp_path / "a.jsonl", [[1], [], ids, [2**40]], field="ids")
    options = {"tokenizer": None, "ids_column": "ids", "eod": None, "vocab_size": 300}
    with pytest.raises(FormatError) as caught:
        build(path, tmp_path / "out", **options)
    assert str(caught.value).startswith(f"{path}:3: {why}")
    build(path, tmp_path / "out", on_error="skip", **options)
    assert documents_of(tmp_path / "out") == [[1], []]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_file_that_was_cut_short_gives_its_whole_lines_and_is_named(tmp_path, suffix):
    compress = gzip.compress if suffix == ".gz" else pytest.importorskip("backports.zstd").compress
    lines = [f'{{"text": "{os.urandom(50).hex()}"}}'.encode() for _ in range(6000)]
    path = tmp_path / f"a.jsonl{suffix}"
    content = compress(b"\n".join(lines))
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(FormatError, match="Compressed file ended before the end-of-stream marker"):
        build(path, tmp_path / "out")
    told = []
    after = write_jsonl(tmp_path / "b.jsonl", ["after"])
    build([path, after], tmp_path / "out2", on_error="skip", on_skip=told.append, chunk_size=99999)
    found = documents_of(tmp_path / "out2")
    texts = [json.loads(line)["text"] for line in lines]
    assert 100 < len(found) < 6000
    assert found == bytes_of([*texts[: len(found) - 1], "after"])
    assert len(told) == 1
    assert told[0].startswith(f"{path}: Compressed file ended")


def test_files_that_cannot_be_read_are_named(tmp_path):
    pytest.importorskip("pyarrow")
    content = {
        "a.jsonl.gz": b"no gzip",
        "b.parquet": b"no parquet",
        "c.arrow": b"no arrow",
        "d.txt": b"\xff",
        "e.txt.gz": gzip.compress(b"text")[:-1],
    }
    for name, one in content.items():
        (tmp_path / name).write_bytes(one)
    told = []
    build(tmp_path, tmp_path / "out", on_error="skip", on_skip=told.append)
    assert [message.partition(": ")[0] for message in told] == [
        str(tmp_path / name) for name in content
    ]


def test_rows_of_a_table_are_named_by_their_number(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = ["a", "b", None, "c"] * 2
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=3)
    told = []
    build(path, tmp_path / "out", on_error="skip", on_skip=told.append)
    assert documents_of(tmp_path / "out") == bytes_of(["a", "b", "c"] * 2)
    why = "the text must be a string; got null"
    assert told == [f"{path}, row 2: {why}", f"{path}, row 6: {why}"]
    with pytest.raises(FormatError) as caught:
        build(path, tmp_path / "out2", column="body")
    assert f"there is no column 'body'; {path} has text" in str(caught.value)


IDS_WITH_NULLS = [[1, 2], [3, None, None], [], None, [4], [None], [5, 6]] * 2


@pytest.mark.parametrize("kind", ["list", "large_list", "fixed", "stream"])
@pytest.mark.parametrize("work_bytes", [30, 10**6])
def test_a_row_of_ids_with_a_null_is_named_and_the_others_are_kept(
    tmp_path, monkeypatch, kind, work_bytes
):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(
        "packcore.pipeline.run.cut", lambda *args, **kw: cut(*args, **kw, work_bytes=work_bytes)
    )
    make = pyarrow.large_list if kind == "large_list" else pyarrow.list_
    rows, form = IDS_WITH_NULLS, make(pyarrow.int32())
    if kind == "fixed":
        rows = [[1, 2], [3, None], None, [None, None], [4, 5]] * 2
        form = pyarrow.list_(pyarrow.int32(), 2)
    table = pyarrow.table({"ids": pyarrow.array(rows, form)})
    path = tmp_path / ("a.arrow" if kind == "stream" else "a.parquet")
    if kind == "stream":
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    else:
        parquet.write_table(table, path, row_group_size=4)
    told = []
    options = {"tokenizer": None, "ids_column": "ids", "eod": None, "vocab_size": 300}
    build(path, tmp_path / "out", on_error="skip", on_skip=told.append, **options)
    good = [row for row in rows if row is not None and None not in row]
    assert documents_of(tmp_path / "out") == good
    expected = []
    for number, row in enumerate(rows):
        if row is None:
            expected.append(f"{path}, row {number}: the ids must be a list; got null")
        elif None in row:
            what = f"a flat list of integers; got null at index {row.index(None)}"
            expected.append(f"{path}, row {number}: the ids must be {what}")
    assert told == expected


def test_a_line_or_text_that_is_too_long_is_named(tmp_path, monkeypatch):
    for module in ("reading", "parsing"):
        monkeypatch.setattr(f"packcore.pipeline.{module}.MAX_DOCUMENT_BYTES", 99)
    monkeypatch.setattr(
        "packcore.pipeline.run.cut", lambda *args, **kw: cut(*args, **kw, work_bytes=20)
    )
    long = write_jsonl(tmp_path / "a.jsonl", ["good", "x" * 200, "good"])
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(long.read_bytes()))
    (tmp_path / "c.txt").write_bytes(b"x" * 100)
    told = []
    build(tmp_path, tmp_path / "out", on_error="skip", on_skip=told.append)
    assert documents_of(tmp_path / "out") == bytes_of(["good"] * 3)
    whole = "a text file of more than 99 bytes is one document; take each line for one"
    assert told == [
        f"{tmp_path}/a.jsonl:2: a line is longer than 99 bytes",
        f"{tmp_path}/b.jsonl.gz: a line is longer than 99 bytes",
        f"{tmp_path}/c.txt: " + whole,
    ]


def fussy(texts):
    """A tokenizer that fails at some texts."""
    for text in texts:
        if "bad" in text:
            raise LookupError("a bad word")
    return [[len(text) if "huge" not in text else 10**6] for text in texts]


fussy.vocab_size = 100


def shrinking(texts):
    """A tokenizer that returns too little."""
    return [[1]] * (len(texts) - 1)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))


@pytest.mark.usefixtures("here")
def test_texts_that_a_tokenizer_refuses_are_named(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "a bad one", "huge", "four"])
    told = []
    options = {"tokenizer": "test_build_faults:fussy", "eod": None}
    build(path, tmp_path / "out", on_error="skip", on_skip=told.append, **options)
    assert documents_of(tmp_path / "out") == [[3], [4]]
    assert told == [
        f"{path}:2: the tokenizer test_build_faults:fussy refused it: LookupError: a bad word",
        f"{path}:3: id 1000000 at index 0 does not fit: ids must be in [0, 99]",
    ]


@pytest.mark.usefixtures("here")
def test_a_tokenizer_that_loses_texts_is_refused(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    options = {"tokenizer": "test_build_faults:shrinking", "eod": None, "vocab_size": 9}
    with pytest.raises(ArgumentError, match="must return the ids of each text; got 1 lists for 2"):
        build(path, tmp_path / "out", **options)


@pytest.mark.parametrize("workers", [0, 1])
def test_another_tokenizer_in_a_process_than_where_the_build_began_is_refused(
    tmp_path, monkeypatch, workers
):
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    monkeypatch.setattr(tokenizers.BytesTokenizer, "hash", "another")
    if workers:  # the process has the real one
        with pytest.raises(StateError) as caught:
            build(path, tmp_path / "out", workers=workers)
        assert str(caught.value).startswith("The tokenizer bytes is another one here than where")
        assert (caught.value.field, caught.value.expected) == ("tokenizer_hash", "another")
    else:
        build(path, tmp_path / "out")


def raising(texts):
    """A tokenizer that takes nothing, not even no texts."""
    raise RuntimeError("boom", len(texts))


def numbering(texts):
    """A tokenizer that returns no lists."""
    return len(texts)


def lonely(texts):
    """A tokenizer that takes one text at a time."""
    (_,) = texts
    return [[1]]


BAD_FUNCTIONS = [
    (
        "raising",
        FormatError,
        "/a.jsonl:1: the tokenizer {} refused it: RuntimeError: ('boom', 1). Mend",
    ),
    ("numbering", ArgumentError, "{} must return a list of ids for each text; got 2 (int)."),
    ("lonely", ArgumentError, "{} takes each of 2 texts alone, but fails at all of them together"),
]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("name", "kind", "message"), BAD_FUNCTIONS)
def test_a_function_that_is_no_tokenizer_is_named(tmp_path, name, kind, message, workers):
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    name = f"test_build_faults:{name}"
    options = {"tokenizer": name, "eod": None, "vocab_size": 9, "workers": workers}
    with pytest.raises(kind) as caught:
        build(path, tmp_path / "out", **options)
    assert message.format(name) in str(caught.value)


@pytest.mark.usefixtures("here")
def test_a_tokenizer_is_not_asked_where_there_is_no_text(tmp_path):
    (tmp_path / "a.jsonl").write_text("bad\n")
    options = {"tokenizer": "test_build_faults:raising", "eod": None, "vocab_size": 9}
    assert build(tmp_path / "a.jsonl", tmp_path / "out", on_error="skip", **options).num_tokens == 0


@pytest.mark.parametrize("chunk_size", [4 * 10**18, 2**63 - 1])
def test_a_chunk_that_fits_no_memory_is_refused_before_anything_is_made(tmp_path, chunk_size):
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(ArgumentError) as caught:
        build(path, tmp_path / "out", chunk_size=chunk_size)
    assert str(caught.value) == (
        f"A chunk is filled in memory; chunk_size {chunk_size} (tokens) of uint16 takes "
        f"{2 * chunk_size} bytes, more than there are. Use a smaller chunk_size."
    )
    assert (caught.value.name, caught.value.value) == ("chunk_size", chunk_size)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    path = write_jsonl(tmp_path / "tokenizer.json", ["one"])
    monkeypatch.setattr(tokenizers, "_hash_file", refuse)
    with pytest.raises(ArgumentError) as caught:
        tokenizers.load_tokenizer(path)
    assert str(caught.value) == (
        f"This user may not read the tokenizer {path}. Change its permissions."
    )


def dying(texts):
    """A tokenizer that kills its process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return texts


@pytest.mark.usefixtures("here")
def test_a_process_that_is_killed_is_told(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    options = {"tokenizer": "test_build_faults:dying", "eod": None, "vocab_size": 9}
    with pytest.raises(WorkerError) as caught:
        build(path, tmp_path / "out", workers=1, **options)
    assert str(caught.value).startswith("A worker process died, killed by the operating system")
