"""Programs that parse no absl flags can use mp_prefetch all the same."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grain", reason="it defines the flag")
flags = pytest.importorskip("absl.flags", reason="Grain brings it")

FLAG = "grain_enable_multiprocess_worker_profiling"

PROGRAM = f"""
import sys
from absl import flags
import packcore, packcore_grain

def flag():
    try:
        return flags.FLAGS.{FLAG}
    except flags.UnparsedFlagAccessError:
        return "unparsed"

seen = [flag()]
packcore_grain.BlockSource(packcore.open(sys.argv[1]).blocks(8))
seen.append(flag())
flags.FLAGS(["program", "--{FLAG}"])
print(*seen, flag())
"""


def test_a_dataset_lets_grain_read_its_flag_and_a_later_parse_still_sets_it(corpus):
    if FLAG not in flags.FLAGS:
        pytest.skip("this Grain has no such flag")
    folder = str(Path(corpus.chunks[0].path).parent)
    command = [sys.executable, "-c", PROGRAM, folder]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["unparsed", "False", "True"]
