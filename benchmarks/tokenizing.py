"""From text to a corpus on disk, beside the tokenizer alone at the same number of processes."""

from __future__ import annotations

import json
import os
import sysconfig
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

import packcore
from benchmarks.building import fresh
from benchmarks.harness import QUICK, Contest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Sizes

NUM_WORKERS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
BATCH_BYTES = 2**20
VOCAB_SIZE = 8000


def read_sources(num_bytes: int) -> list[str]:
    """Returns sources of the standard library, over and over, of about `num_bytes` together."""
    folder = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_text("utf-8") for path in sorted(folder.glob("*.py"))]
    found: list[str] = []
    size = 0
    while size < num_bytes:
        for number, text in enumerate(texts):
            # Each round differs, or the tokenizer's cache of words would do all of it.
            found.append(f"# {len(found)} {number}\n{text}")
            size += len(text)
            if size >= num_bytes:
                break
    return found


def train(texts: list[str], path: Path) -> str:
    """Trains a byte-level BPE, and returns its file."""
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return str(path)


_tokenizer: Any = None


def start_rival(path: str) -> None:
    """Loads the tokenizer in a process of the rival's."""
    global _tokenizer  # noqa: PLW0603 - a pool gives its processes no other place
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _tokenizer = tokenizers.Tokenizer.from_file(path)


def count_tokens(method: str, texts: list[str]) -> int:
    """Tokenizes and counts; the ids stay where they are made."""
    found = getattr(_tokenizer, method)(texts, add_special_tokens=False)
    return sum(len(one) for one in found)


def batches(texts: list[str]) -> Iterator[list[str]]:
    """Yields texts in batches of about a mebibyte."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def contests(sizes: Sizes, folder: Path) -> Iterator[Contest]:
    """Both start their processes, and both are done when all text is tokenized."""
    texts = read_sources(10**5 if sizes is QUICK else 10**7)
    tokenizer = train(texts[:100], folder / "tokenizer.json")
    path = folder / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")

    def ours(workers: int) -> int:
        out = fresh(folder / "ours")
        options: dict[str, Any] = {"tokenizer": tokenizer, "eod": None, "workers": workers}
        return packcore.build(path, out, **options).num_tokens

    def theirs(method: str, workers: int) -> int:
        context = get_context("spawn")
        with ProcessPoolExecutor(workers, context, start_rival, (tokenizer,)) as pool:
            return sum(pool.map(partial(count_tokens, method), batches(texts)))

    for workers in sorted({1, NUM_WORKERS}):
        for method, target in (("encode_batch", 0.9), ("encode_batch_fast", None)):
            yield Contest(
                f"text to corpus, {workers} processes",
                partial(ours, workers),
                partial(theirs, method, workers),
                target=target,
                rival=f"tokenizers.{method} alone",
            )
