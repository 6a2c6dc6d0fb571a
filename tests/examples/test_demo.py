import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
DEMO = EXAMPLES / "demo.py"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return __import__


def test_the_demo_resumes_in_a_new_process_with_the_same_tokens(tmp_path):
    command = [sys.executable, DEMO, "--folder", tmp_path / "corpus"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    without_stop, resumed, last = run.stdout.splitlines()[-3:]
    assert last == "   identical"
    assert without_stop.split()[-1] == resumed.split()[-1]
    assert len(resumed.split()[-1]) == 64


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to a process group")
def test_ctrl_c_ends_the_demo_with_one_line(tmp_path):
    command = [sys.executable, "-u", DEMO, "--folder", tmp_path / "corpus"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        while "1. Pack" not in run.stdout.readline():
            pass
        os.killpg(run.pid, signal.SIGINT)
        assert run.stderr.read() == "\nstopped\n"
        run.stdout.read()
    assert run.returncode == 130


def test_a_folder_that_can_not_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    command = [sys.executable, DEMO, "--folder", tmp_path / "file" / "corpus"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("demo: ")
    assert str(tmp_path / "file") in run.stderr


def test_decode_gives_the_text_back_and_marks_where_a_document_ends(example):
    corpus = example("stdlib_corpus")
    ids = corpus.encode("naïve".encode())
    assert ids.dtype == np.uint16
    row = np.concatenate([ids, [corpus.END_OF_DOCUMENT], ids])
    assert corpus.decode(row) == "naïve<|end of document|>naïve"


def test_every_document_of_the_corpus_has_text(example):
    paths = example("stdlib_corpus").documents()
    assert len(paths) > 100
    assert paths == sorted(paths)
    assert all(path.stat().st_size for path in paths)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("is_terminal", [True, False])
def test_without_tqdm_a_plain_bar_moves_on_a_terminal_only(example, monkeypatch, is_terminal):
    progress = example("progress")
    screen = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(progress, "tqdm", None)
    monkeypatch.setattr(sys, "stderr", screen)
    with progress.bar(4_000_000, "B") as show:
        show(1_000_000)
    quarter = f"\r  [{'#' * 10}{'.' * 30}] 1.0 M B"
    assert screen.getvalue() == (quarter + "\r\x1b[K" if is_terminal else "")
