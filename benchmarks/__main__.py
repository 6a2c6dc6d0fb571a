"""`python -m benchmarks`: runs the contests and prints a line for each. Always exits with 0."""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
from pathlib import Path

from benchmarks.harness import FULL, HEAD, QUICK, Limit, run_contest, run_limit

GROUPS = (
    "reading",
    "loading",
    "native",
    "batches",
    "grain_batches",
    "building",
    "tokenizing",
    "megatron",
)
"""Each is a module with `contests`: (sizes, an empty folder) -> contests and limits."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the groups that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--rounds", type=int, help="measured turns a contest")
    options = parser.parse_args(arguments)
    if unknown := set(options.groups) - set(GROUPS):
        listed = ", ".join(sorted(unknown))
        parser.error(f"no such group: {listed}; choose from {', '.join(GROUPS)}")
    sizes = QUICK if options.quick else FULL
    rounds = options.rounds or sizes.rounds
    start = time.perf_counter()
    print(HEAD)
    for name in options.groups or GROUPS:
        with tempfile.TemporaryDirectory(prefix="packcore-bench-") as folder:
            group = importlib.import_module(f"benchmarks.{name}")
            for entry in group.contests(sizes, Path(folder)):
                run = run_limit if isinstance(entry, Limit) else run_contest
                print(run(entry, rounds), flush=True)
    print(f"median of {rounds} turns each, interleaved; {time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
