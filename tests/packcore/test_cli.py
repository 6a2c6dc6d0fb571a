import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types

import pytest
from real_text import bytes_of, documents_of, write_jsonl

import packcore
from packcore.cli import main

pytest.importorskip("click")
pytest.importorskip("tqdm")

from packcore.cli.app import app, run

TEXTS = ["Hello", "w\u00f6rld", "", "x" * 300]


@pytest.fixture
def corpus(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    packcore.build(path, tmp_path / "corpus", tokenizer="bytes", workers=0, chunk_size=64)
    return tmp_path / "corpus"


@pytest.fixture
def call(capsys):
    """Runs a command in this process; returns its status, stdout and stderr."""

    def runner(*words):
        status = run([str(word) for word in words])
        return status, *capsys.readouterr()

    return runner


@pytest.fixture
def loads(call):
    def runner(*words):
        status, out, err = call(*words, "--json")
        assert (status, err) == (0, "")
        return json.loads(out)

    return runner


def test_build_packs_and_says_so(tmp_path, call):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    out = tmp_path / "out"
    found = call("build", path, "-o", out, "-t", "bytes", "--workers", 0, "--prefix", "web")
    line = f"4 documents, 315 tokens in 1 chunks of uint16: {out}, prefix web\n"
    assert found == (0, line, "")
    assert documents_of(out) == bytes_of(TEXTS)


def test_build_has_the_options_of_the_function(tmp_path, loads):
    path = write_jsonl(tmp_path / "a.jsonl", [[1, 2], [3]], field="ids")
    words = ["build", path, "-o", tmp_path / "out", "--workers", 0, "--ids-column", "ids"]
    words += ["--eod", "none", "--bos", "9", "--vocab-size", 70_000, "--chunk-size", 4]
    made = loads(*words)
    assert documents_of(tmp_path / "out") == [[9, 1, 2], [9, 3]]
    assert (made["dtype"], made["chunks"], made["num_tokens"], made["num_documents"]) == (
        "int32", 2, 5, 2,
    )  # fmt: skip
    assert made["provenance"]["bos_token"] == 9
    made = loads(*words, "--dtype", "uint16", "--overwrite")
    assert made["dtype"] == "uint16"


def test_build_tells_of_skipped_lines(tmp_path, call):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\nbad\n')
    words = ["build", path, "-o", tmp_path / "out", "-t", "bytes", "--workers", 0]
    status, out, err = call(*words)
    assert (status, out) == (1, "")
    assert err.startswith(f"packcore: {path}:2: Expecting value")
    assert err.count("\n") == 1
    status, out, err = call(*words, "--on-error", "skip")
    assert (status, err.startswith(f"packcore: skipped {path}:2: Expecting value")) == (0, True)
    assert out.endswith("\n1 broken lines, rows or files were skipped\n")


def test_inspect_says_what_is_in_a_corpus(corpus, call, loads):
    status, out, err = call("inspect", corpus, "--documents", 2)
    assert (status, err) == (0, "")
    assert "tokens      315 of uint16, ids 72 to 256\ndocuments   4\nchunks      5\n" in out
    assert "  tokenizer  bytes (" in out
    assert "document lengths: 1 to 301 tokens, 78.8 on average\n" in out
    rows = re.findall(r"^ +([0-9 to]+?)  +(\d+) (#+)$", out, re.MULTILINE)
    assert rows[0][:2] == ("1", "1")
    assert rows[-1][:2] == ("256 to 511", "1")
    assert out.endswith("document 0:\nHello\ufffd\n\ndocument 1:\nw\u00f6rld\ufffd\n")
    found = loads("inspect", corpus, "--from", 3)
    assert found["documents"] == {"3": "x" * 300 + "\ufffd"}
    assert found["prefixes"]["train"]["provenance"]["eod_token"] == 256
    assert sum(one["count"] for one in found["document_lengths"]["bins"]) == 4


def test_inspect_shows_ids_where_the_tokenizer_is_unknown_and_refuses_another(tmp_path, call):
    with packcore.PackedDatasetBuilder(tmp_path, "web", 9, 0, "uint16") as builder:
        builder.add_document([5, 6])
    assert call("inspect", tmp_path)[1].endswith("document 0:\n[5, 6]\n")
    with packcore.PackedDatasetBuilder(
        tmp_path, "web", 9, 0, "uint16", overwrite=True, tokenizer_hash="abc"
    ) as builder:
        builder.add_document([5, 6])
    status, _, err = call("inspect", tmp_path, "-t", "bytes")
    assert status == 1
    assert "The tokenizer bytes is not the one that the corpus was built with" in err


def test_verify_has_an_exit_status_for_scripts(corpus, call, loads):
    assert call("verify", corpus) == (0, "whole: 5 chunks, 315 tokens, 0 problems\n", "")
    assert loads("verify", corpus)["is_whole"]
    chunk = corpus / "train_0000000002.bin"
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"\x01")
    status, out, err = call("verify", corpus)
    assert (status, err) == (1, "")
    assert out.startswith(f"{chunk} has the SHA-256 ")
    assert out.splitlines()[-1].startswith("NOT whole: 5 chunks, 315 tokens, ")
    status, out, _ = call("verify", corpus, "--json")
    assert status == 1
    assert json.loads(out)["problems"][0]["path"] == str(chunk)


def test_plan_says_what_a_run_will_serve(corpus, call, loads):
    words = ["plan", corpus, "--block-size", 10, "--batch", 4, "--ranks", 2]
    status, out, _ = call(*words, "--epochs", 1)
    assert (status, out.splitlines()[0]) == (
        0,
        "7 steps of 4 x 10 tokens on 2 ranks, 0 steps skipped",
    )
    blocks = packcore.open(corpus).blocks(10)
    expected = packcore.Loader(blocks, 4, seed=0, epochs=1, world_size=2).plan()
    assert out == f"{expected}\n"
    found = loads(*words, "--epochs", 1, "--remainder", "pad")
    assert (found["num_steps"], found["tokens_served"], found["tokens_padded"]) == (8, 310, 10)
    status, _, err = call(*words)
    assert (status, "This run has no end: give --steps or --epochs." in err) == (2, True)


def test_plan_takes_names_and_weights_of_several_corpora(corpus, loads, call):
    words = ["--block-size", 10, "--batch", 4, "--steps", 100]
    found = loads("plan", f"web={corpus}:0.75", f"code={corpus}/train:0.25", *words)
    served = {one["name"]: one["blocks_served"] for one in found["sources"]}
    assert sum(served.values()) == 400
    assert abs(served["web"] - 300) <= 1
    status, _, err = call("plan", corpus, corpus, *words)
    assert (status, f"Two corpora are named {corpus}" in err) == (2, True)
    assert call("plan", f"a={corpus}", f"b={corpus}", *words, "--epochs", 1)[0] == 2


def test_split_and_merge_keep_every_document(corpus, tmp_path, loads, call):
    found = loads("split", corpus, "-o", tmp_path / "sides", "--fraction", 0.5, "--seed", 3)
    assert found["train"]["num_documents"] + found["validation"]["num_documents"] == 4
    sides = [tmp_path / "sides" / name for name in found if found[name]["num_documents"]]
    merged = loads("merge", *sides, "-o", tmp_path / "again")
    assert merged["train"]["num_tokens"] == 315
    assert sorted(documents_of(tmp_path / "again")) == sorted(bytes_of(TEXTS))
    assert call("merge", *sides, "-o", tmp_path / "again")[0] == 1
    status, out, _ = call("merge", *sides, "-o", tmp_path / "again", "--overwrite")
    assert (status, out.startswith(f"{tmp_path}/again, prefix train: 4 documents")) == (0, True)


def test_bench_measures_each_order(corpus, loads, call):
    words = ["bench", corpus, "--block-size", 10, "--batch", 2, "--seconds", 0.01]
    found = loads(*words)
    assert list(found) == ["sequential", "window", "global"]
    assert all(one["tokens_per_second"] > 0 for one in found.values())
    assert call(*words)[1].count("tokens/s") == 3


@pytest.mark.parametrize("command", [None, *sorted(app.commands)])
def test_help_teaches_by_example(command, call):
    status, out, err = call(*[command] if command else [], "--help")
    assert (status, err) == (0, "")
    assert f"packcore {command or 'build'}" in out.partition("Options:")[0].partition("\n")[2]
    if command:
        assert "--json" in out


def test_every_example_of_the_help_names_options_that_there_are(call):
    for command in app.commands:
        out = call(command, "--help")[1]
        options = set(re.findall(r"--[a-z-]+", out.partition("Options:")[2]))
        used = set(re.findall(r"--[a-z-]+", out.partition("Options:")[0]))
        assert used <= options, command


_BUILD = ["build", "CORPUS/../a.jsonl", "-o", "CORPUS", "-t", "bytes", "--workers", 0]
MISTAKES = [
    (["verify", "nowhere"], 1, "packcore: There is no manifest at nowhere."),
    (["inspect", "nowhere"], 1, "packcore: No file is at nowhere."),
    (["build", "nowhere", "-o", "x", "-t", "bytes"], 1, "packcore: No input is at nowhere."),
    (["build", "nowhere", "-o", "x", "-t", "gpt2"], 1, "packcore: No input is at nowhere."),
    (["merge", "nowhere", "-o", "x"], 1, "packcore: There is no manifest at nowhere."),
    (["bench", "/dev/null"], 1, "packcore: /dev/null"),
    (["split", "x", "-o", "y", "--fraction", "2"], 2, "Usage: packcore split"),
    (["bild"], 2, "Usage: packcore"),
    (["bench", "CORPUS", "--seconds", "0"], 2, "Usage: packcore bench"),
    (["bench", "CORPUS", "--seconds", "-1"], 2, "Usage: packcore bench"),
    (["bench", "CORPUS", "--seconds", "nan"], 2, "Usage: packcore bench"),
    (["bench", "CORPUS", "--seconds", "inf"], 2, "Usage: packcore bench"),
    (["inspect", "CORPUS", "--documents", "-1"], 2, "Usage: packcore inspect"),
    (["inspect", "CORPUS", "--from", "-5"], 2, "Usage: packcore inspect"),
    ([*_BUILD, "--eod", "--5"], 1, "packcore: eod must be a token of bytes, or an id; got '--5'."),
    ([*_BUILD, "--bos", "\u00b2"], 1, "packcore: bos must be a token of bytes, or an id; got"),
    ([*_BUILD, "--eod", "9" * 5000], 1, "packcore: eod must be a token of bytes, or an id; got"),
    ([*_BUILD, "--chunk-size", 4 * 10**18], 1, "packcore: A chunk is filled in memory; chunk_size"),
    ([*_BUILD, "--chunk-size", 2**63], 1, "packcore: chunk_size must be "),
    (_BUILD, 1, "packcore: CORPUS/train.manifest.json is there already"),
    (
        ["plan", "CORPUS", "a=CORPUS", "--block-size", 999, "--batch", 1, "--steps", 1],
        1,
        "packcore: No corpus has a block of 999 tokens. Use a smaller --block-size.",
    ),
    (
        ["bench", "CORPUS", "--block-size", 999],
        1,
        "packcore: source must have at least one block; got Blocks(0 blocks of 999 uint16 tokens)",
    ),
]


@pytest.mark.parametrize(("words", "status", "message"), MISTAKES)
def test_a_mistake_is_told_without_a_traceback(words, status, message, call, corpus):
    found, out, err = call(*[str(word).replace("CORPUS", str(corpus)) for word in words])
    assert (found, out) == (status, "")
    assert err.startswith(message.replace("CORPUS", str(corpus)))
    assert "Traceback" not in err
    if status == 1:
        assert err.count("\n") == 1


def test_errors_name_the_options_of_the_command(corpus, tmp_path, call):
    bad = tmp_path / "bad.jsonl"
    bad.write_text("bad\n")
    options = ["-t", "bytes", "--workers", 0]
    err = call("build", bad, "-o", tmp_path / "out", *options)[2]
    assert err.endswith("or leave such lines out with --on-error skip, which counts them.\n")
    err = call("build", bad, "-o", corpus, *options)[2]
    assert "Pass --overwrite to remove them and build anew, or choose another prefix." in err
    err = call("bench", corpus, "--block-size", 999)[2]
    assert err.endswith(" Use a smaller --block-size.\n")
    err = call("build", bad, "-o", tmp_path / "out", "--ids-column", "ids")[2]
    assert err.startswith("packcore: eod must be an id or 'none' where the inputs hold ids;")


def test_an_error_of_the_system_names_the_file_and_the_way_out(corpus, call, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "some.bin")

    monkeypatch.setattr("packcore.corpora.verify", refuse)
    assert call("verify", corpus) == (
        1,
        "",
        "packcore: some.bin: Permission denied. Change its permissions, or name another.\n",
    )


def test_ctrl_c_while_the_command_is_loaded_is_told_in_one_line(capsys, monkeypatch):
    class Loading(types.ModuleType):
        @property
        def run(self):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "packcore.cli.app", Loading("packcore.cli.app"))
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    assert capsys.readouterr() == ("", "packcore: stopped\n")


def start(*words, **options):
    command = [sys.executable, "-c", "from packcore.cli import main; main()", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes | options)


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_ctrl_c_ends_a_build_in_one_line_and_the_same_command_goes_on(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", ["x" * 1000] * 60_000)
    words = ["build", tmp_path / "a.jsonl", "-o", tmp_path / "out", "-t", "bytes"]
    words += ["--workers", 2, "--chunk-size", 1_000_000]
    process = start(*words, start_new_session=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list((tmp_path / "out").glob("*2.bin")):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    assert (out, err.strip()) == ("", "packcore: stopped")
    assert process.returncode == 130
    process = start(*words)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out.startswith("60,000 documents, 60,060,000 tokens in 61 chunks")


def test_a_missing_package_is_told_with_the_pip_line(capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("packcore.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "click", None)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == (
        "packcore: The command needs the package click. Install it with: "
        'pip install "packcore[cli]"\n'
    )


def test_a_pipe_that_closes_is_no_error(corpus):
    process = start("inspect", corpus, "--json", stdout=subprocess.PIPE)
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait()


def test_the_progress_is_shown_on_a_terminal_only(tmp_path):
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    write_jsonl(tmp_path / "a.jsonl", ["x" * 1000] * 3000)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    words = ["build", tmp_path / "a.jsonl", "-o", tmp_path / "out", "-t", "bytes", "--workers", 0]
    process = start(*words, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            block = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        shown += block
    os.close(ours)
    process.communicate()
    lines = re.split(r"[\r\n]+", shown.decode())
    number = r"[0-9,.]+[kMGT]?"
    form = rf" *\d+% \[\d\d:\d\d<.+\], {number} documents, {number} tokens, {number} tokens/s *"
    assert [line for line in lines if re.fullmatch(form, line)]
    assert max(map(len, lines)) <= 80


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["b"], {"build", "bench"}),
        (["build", "--on-error", ""], {"fail", "skip"}),
        (["split", "--frac"], {"--fraction"}),
    ],
)
def test_bash_completes_commands_options_and_choices(tmp_path, words, expected):
    python = shlex.join([sys.executable, "-c", "from packcore.cli import main; main()"])
    command = tmp_path / "packcore"
    command.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    command.chmod(0o755)
    script = f"""
        eval "$(_PACKCORE_COMPLETE=bash_source packcore)"
        COMP_WORDS=({shlex.join(["packcore", *words])}) COMP_CWORD={len(words)}
        _packcore_completion packcore
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    found = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (set(found.stdout.split()), found.stderr) == (expected, "")
