"""packcore convert: the words become the call, and the result a line or JSON."""

import json
from pathlib import Path

import pytest

import packcore

pytest.importorskip("click")
pytest.importorskip("tqdm")

from packcore.cli.app import run

SAMPLES = Path(__file__).parents[1] / "formats"


@pytest.fixture
def call(capsys):
    """Runs a command in this process; returns its status, stdout and stderr."""

    def runner(*words):
        status = run([str(word) for word in words])
        return status, *capsys.readouterr()

    return runner


def test_convert_writes_chunks_and_says_so(tmp_path, call):
    out = tmp_path / "out"
    found = call("convert", SAMPLES / "megatron" / "mm_uint16", out)
    assert found == (0, f"{out}: 4 documents, 11 tokens in 2 files\n", "")
    assert packcore.open(out).document(2).tolist() == [6, 7, 8, 9]


def test_convert_has_the_options_of_the_function(tmp_path, call):
    raw = SAMPLES / "nanogpt" / "train.bin"
    options = ["--source-dtype", "uint16", "--sep-token", 50256, "--strip-sep", "after"]
    more = ["--dtype", "int32", "--prefix", "x", "--chunk-size", 4, "--vocab-size", 65536]
    status, out, err = call("convert", raw, tmp_path, *options, *more, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["num_tokens"], found["num_documents"], len(found["files"])) == (11, 4, 4)
    dataset = packcore.open(tmp_path / "x")
    assert (dataset.dtype.name, dataset.document(3).tolist()) == ("int32", [50000, 65535])


def test_convert_takes_several_sources_and_writes_what_other_programs_read(tmp_path, call):
    pairs = [SAMPLES / "megatron" / f"{name}_uint16" for name in ("mm", "text_document")]
    found = call("convert", *pairs, tmp_path / "both", "--to", "megatron")
    assert found == (0, f"{tmp_path / 'both'}: 8 documents, 22 tokens in 2 files\n", "")
    words = ("--to", "llmc", "--add-sep", "before", "--overwrite")
    found = call("convert", tmp_path / "both", tmp_path / "llmc", *words)
    assert found == (0, f"{tmp_path / 'llmc'}: ? documents, 30 tokens in 1 files\n", "")


def test_convert_tells_what_is_wrong_in_one_line(tmp_path, call):
    status, out, err = call("convert", SAMPLES / "nanogpt" / "train.bin", tmp_path)
    assert (status, out) == (1, "")
    assert err.startswith("packcore: --source-dtype must be named for ")
    assert err.endswith("nanoGPT writes uint16: --source-dtype.\n")
    assert err.count("\n") == 1


def test_errors_name_the_options_of_the_command(tmp_path, call):
    source = SAMPLES / "megatron" / "mm_uint16"
    status, _, err = call("convert", source, tmp_path / "out", "--to", "nanogpt")
    assert (status, "--sep-token must be named" in err) == (1, True)
    status, _, err = call("convert", source, tmp_path, "--to", "nanogpt", "--sep-token", 0)
    assert status == 1
    assert "Put one in with --add-sep after, name another --sep-token, or pass --drop-doc" in err
    words = ("--add-sep", "after", "--drop-documents", "--sep-token", 0)
    status, _, err = call("convert", source, tmp_path, *words)
    assert (status, err.endswith("leave out --drop-documents.\n")) == (1, True)


@pytest.mark.parametrize(
    "words",
    [
        ("inspect",),
        ("plan", "--block-size", 2, "--batch", 1, "--epochs", 1),
        ("bench", "--block-size", 2, "--batch", 1, "--seconds", 0.01),
    ],
)
def test_commands_that_read_raw_tokens_are_told_their_dtype(call, words):
    raw = SAMPLES / "nanogpt" / "train.bin"
    status, out, err = call(words[0], raw, *words[1:])
    assert (status, out, "writes uint16: --source-dtype.\n" in err) == (1, "", True)
    status, out, err = call(words[0], raw, *words[1:], "--source-dtype", "uint16")
    assert (status, err) == (0, "")
    assert out
    assert call("convert", "a", "b", "--to", "tar")[0] == 2
