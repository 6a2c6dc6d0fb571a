"""Packs Python's standard library, reads it back shuffled, stops half-way and resumes.

    python examples/demo.py [--folder demo-data] [--processes 2]

Needs packcore and NumPy. The folder is emptied first, then holds the packed corpus.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import stdlib_corpus
from progress import bar

import packcore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.sharedctypes import Synchronized

FOLDER = Path(__file__).resolve().parent.parent / "demo-data"
CHUNK_SIZE = 1024 * 1024
BLOCK_SIZE = 1024
BATCH_SIZE = 16
SEED = 42
STATE = "state.json"
# Each part is one prefix, written by one process. The split is the same on every machine.
NUM_PARTS = 4


def main() -> None:
    """Runs the demo, or its second half when the demo calls itself."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--processes", type=int, default=min(NUM_PARTS, os.cpu_count() or 1))
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.resume:
        print(resume(options.folder))
        return
    print(f"packcore {packcore.__version__}: Python {platform.python_version()}'s own sources")
    pack(options.folder, options.processes)
    rest = read_back(options.folder)
    stop(options.folder)
    compare(options.folder, rest)


# 1. Pack


def pack(folder: Path, num_processes: int) -> None:
    """Packs the corpus into `folder`, several prefixes at a time."""
    paths = stdlib_corpus.documents()
    num_bytes = sum(path.stat().st_size for path in paths)
    print(
        f"\n1. Pack {len(paths):,} documents, {num_bytes / 1e6:.1f} MB, {num_processes} at a time"
    )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    parts = [(folder, part, paths[part::NUM_PARTS]) for part in range(NUM_PARTS)]
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    done = context.Value("q", 0)
    with hold_interrupts():
        pool = context.Pool(num_processes, _begin, (done,))
    with pool:
        result = pool.starmap_async(pack_part, parts, chunksize=1)
        with bar(num_bytes, "B") as show:
            while not result.ready():
                result.wait(0.1)
                show(done.value)
        num_chunks = sum(result.get())
    corpus = packcore.open(folder)
    took = time.perf_counter() - start
    print(f"   documents  {corpus.num_documents:,}")
    print(f"   tokens     {corpus.num_tokens:,}, an end-of-document id after each document")
    print(f"   chunks     {num_chunks} files of {CHUNK_SIZE:,} tokens in {folder}")
    print(f"   speed      {corpus.num_tokens / took / 1e6:.1f} M tokens/s ({took:.1f} s)")


_done: Synchronized[int]


def _begin(done: Synchronized[int]) -> None:
    global _done  # noqa: PLW0603  # shared memory reaches a process by inheritance only
    _done = done


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Keeps Ctrl-C for this process alone: those started meanwhile inherit that it is blocked."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def pack_part(folder: Path, part: int, paths: list[Path]) -> int:
    """Packs `paths` as one prefix and returns the number of chunk files."""
    with packcore.PackedDatasetBuilder(
        folder,
        f"part{part}",
        CHUNK_SIZE,
        sep_token=stdlib_corpus.END_OF_DOCUMENT,
        vocab_size=stdlib_corpus.VOCAB_SIZE,
    ) as builder:
        for path in paths:
            text = path.read_bytes()
            builder.add_document(stdlib_corpus.encode(text), sep="after")
            with _done.get_lock():
                _done.value += len(text)
    return len(builder.filenames)


# 2. Read back


def loader(folder: Path) -> packcore.Loader:
    """Returns one pass over all blocks, in shuffled order."""
    blocks = packcore.open(folder).blocks(BLOCK_SIZE)
    return packcore.Loader(blocks, BATCH_SIZE, seed=SEED, shuffle="global", epochs=1)


def read_back(folder: Path) -> str:
    """Reads one whole pass; returns the hash of its second half."""
    batches = loader(folder)
    print(f"\n2. Read back, shuffled: {len(batches):,} steps of {BATCH_SIZE} blocks")
    show_block(batches)
    start = time.perf_counter()
    rest, num_tokens = hashlib.sha256(), 0
    for step, batch in enumerate(batches):
        num_tokens += batch.size
        if step >= len(batches) // 2:
            rest.update(np.ascontiguousarray(batch))
    took = time.perf_counter() - start
    print(f"   {num_tokens:,} tokens in {took:.2f} s, the second half hashed")
    return rest.hexdigest()


def show_block(batches: packcore.Loader) -> None:
    """Prints the first block as text, and where it comes from."""
    origin = batches.locate(0)[0]
    print(f"   the first block, from token {origin.offset:,} of {Path(origin.file).name} on:")
    for line in stdlib_corpus.decode(batches.batch_at(0)[0]).splitlines()[1:9]:
        print(f"   | {line[:90]}".rstrip())


# 3. Stop, and 4. resume


def stop(folder: Path) -> None:
    """Begins the same pass, stops half-way and saves the state."""
    batches = loader(folder)
    middle = len(batches) // 2
    for step, _ in enumerate(batches, start=1):
        if step == middle:
            break
    path = folder / STATE
    path.write_text(json.dumps(batches.state_dict()), encoding="utf-8")
    print(f"\n3. Stop after {middle:,} steps: {path.stat().st_size} bytes of state in {path}")


def compare(folder: Path, rest: str) -> None:
    """Resumes in a new process and compares what it reads with the pass without a stop."""
    command = [sys.executable, __file__, "--resume", "--folder", str(folder)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print("\n4. Resume in a new process: SHA-256 of the tokens that were left")
    print(f"   without a stop  {rest}")
    print(f"   resumed         {run.stdout.strip()}")
    if run.stdout.strip() != rest:
        sys.exit("   DIFFERENT: this is a fault in packcore")
    print("   identical")


def resume(folder: Path) -> str:
    """Returns the hash of all tokens after the saved state."""
    batches = loader(folder)
    batches.load_state_dict(json.loads((folder / STATE).read_text(encoding="utf-8")))
    rest = hashlib.sha256()
    for batch in batches:
        rest.update(np.ascontiguousarray(batch))
    return rest.hexdigest()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)
    except (OSError, packcore.errors.PackcoreError) as error:
        sys.exit(f"demo: {error}")
