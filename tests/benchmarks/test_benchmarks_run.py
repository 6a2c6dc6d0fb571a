import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the reference's technique needs torch")

ROOT = Path(__file__).parent.parent.parent


def run_benchmarks(*arguments):
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_contest_runs_on_tiny_sizes():
    run = run_benchmarks("--quick")
    assert (run.returncode, run.stderr) == (0, "")
    head, names, *contests, end = run.stdout.splitlines()
    assert (head.strip(), names.split()) == (
        "M tokens/s",
        ["packcore", "rival", "ratio", "target", "rival"],
    )
    assert len(contests) >= 4
    assert all({"met", "missed", "-"} & set(line.split()) for line in contests)
    assert end.startswith("median of 2 turns each, interleaved")


def test_an_unknown_group_is_refused_by_name():
    run = run_benchmarks("reeding")
    assert run.returncode == 2
    assert "no such group: reeding; choose from reading, loading, native, batches" in run.stderr
