"""Real text for builds: the sources of the standard library, and tokenizers trained on them."""

from __future__ import annotations

import functools
import json
import sysconfig
from pathlib import Path

import packcore


@functools.cache
def sources(limit=60_000, num_files=80):
    """Sources of the standard library, non-ASCII ones among them."""
    folder = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_text("utf-8") for path in sorted(folder.glob("*.py"))]
    short = [text for text in texts if len(text) <= limit]
    foreign = [text for text in short if not text.isascii()]
    return [*short[:num_files], *foreign[:10], "", "a", "\u2028 \x00 \U0001f600\r\n"]


def write_jsonl(path, texts, field="text"):
    """One object a line; returns the path."""
    lines = [json.dumps({"id": number, field: text}) for number, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def train_bpe(path, vocab_size=2000):
    """Trains a byte-level BPE on the sources; returns the `tokenizers` object."""
    import tokenizers  # noqa: PLC0415 - only some tests need it

    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|bos|>"],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sources()[:30], trainer)
    tokenizer.save(str(path))
    return tokenizer


def documents_of(folder):
    """The token ids of each document of a corpus, in order."""
    corpus = packcore.open(folder)
    return [corpus.document(index).tolist() for index in range(corpus.num_documents)]


def files_of(folder):
    """name -> content, of everything in a folder."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def bytes_of(texts):
    """What the tokenizer "bytes" makes of texts, as bytes(...) would."""
    return [[*text.encode(), 256] for text in texts]
