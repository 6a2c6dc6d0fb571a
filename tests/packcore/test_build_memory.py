"""A build runs in a fixed amount of memory, whatever the size of its inputs."""

import gzip
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")

LIMIT_BYTES = 560 * 2**20
"""Of each process. Python, NumPy and pyarrow alone take more than half of it."""

INPUT_BYTES = 620 * 2**20

BUILD = """
import resource, sys
if __name__ == "__main__":
    limit, workers, path, out = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    import packcore
    options = {"eod": None, "vocab_size": 2**30, "chunk_size": 10_000}
    packcore.build(path, out, tokenizer="measure:measure", workers=workers, **options)
"""

MEASURE = """
def measure(texts):
    return [[len(text)] for text in texts]
"""

READ_WHOLE = """
import resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
open(sys.argv[2], "rb").read()
"""

LINE = json.dumps({"text": "some words " * 900}).encode() + b"\n"
NUM_LINES = INPUT_BYTES // len(LINE) + 1


def write_plain(path):
    with open(path, "wb") as file:
        file.writelines([LINE] * NUM_LINES)


def write_gzip(path):
    with gzip.open(path, "wb", 1) as file:
        file.writelines([LINE] * NUM_LINES)


def write_parquet(path):
    """One row group, not compressed."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [json.loads(LINE)["text"]] * NUM_LINES
    options = {"row_group_size": NUM_LINES, "compression": "none", "use_dictionary": False}
    parquet.write_table(pyarrow.table({"text": rows}), path, **options)
    assert path.stat().st_size > LIMIT_BYTES


def run(script, *arguments):
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
    return subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        env=os.environ | threads,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "write"),
    [("a.jsonl", write_plain), ("a.jsonl.gz", write_gzip), ("a.parquet", write_parquet)],
)
def test_an_input_larger_than_the_memory_is_built(tmp_path, name, write):
    write(tmp_path / name)
    for script, text in {"build": BUILD, "measure": MEASURE, "read_whole": READ_WHOLE}.items():
        (tmp_path / f"{script}.py").write_text(text)
    done = run(tmp_path / "build.py", LIMIT_BYTES, 2, tmp_path / name, tmp_path / "out")
    assert done.stderr == ""
    manifest = json.loads((tmp_path / "out" / "train.manifest.json").read_text())
    assert manifest["num_tokens"] == NUM_LINES
    assert manifest["chunks"][0]["max_id"] == len(json.loads(LINE)["text"])
    if name == "a.jsonl":
        refused = run(tmp_path / "read_whole.py", LIMIT_BYTES, tmp_path / name)
        assert refused.stderr.splitlines()[-1] == "MemoryError"
    (tmp_path / name).unlink()
