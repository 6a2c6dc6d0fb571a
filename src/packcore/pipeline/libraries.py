"""Tokenizers of other packages, each imported when it is asked for.

They run in one thread: a build has a process for each core.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
import os
import types
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import ArgumentError
from packcore.extras import import_extra
from packcore.pipeline.rows import flatten

__all__ = ["HuggingFaceTokenizer", "SentencePieceTokenizer", "TiktokenTokenizer"]

_EOD_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
"""How well-known vocabularies spell the id that ends a document, where no config says it."""


class HuggingFaceTokenizer:
    """A tokenizer.json of the `tokenizers` package.

    Truncation and padding that the file asks for are turned off: no token is lost. The id that
    ends a document is what tokenizer_config.json or special_tokens_map.json beside it calls
    `eos_token`; without them, the one well-known spelling that the vocabulary has.
    """

    def __init__(self, name: str, path: str, content_hash: str) -> None:
        package = import_extra("tokenizers", extra="tokenizers", needed_for=f"The tokenizer {name}")
        self.name = name
        self.hash = content_hash
        self._tokenizer = package.Tokenizer.from_file(path)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size: int | None = max(ids.values(), default=-1) + 1
        self.eod_token: int | None = self._find_eod(Path(path).parent)

    def _find_eod(self, folder: Path) -> int | None:
        for file in ("tokenizer_config.json", "special_tokens_map.json"):
            path = folder / file
            token = json.loads(path.read_bytes()).get("eos_token") if path.is_file() else None
            if token is not None:
                return self.token_id(token["content"] if isinstance(token, dict) else token)
        known = [found for name in _EOD_NAMES if (found := self.token_id(name)) is not None]
        return known[0] if len(known) == 1 else None

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Returns the ids of texts."""
        # "fast" does without the offsets of each token in the text.
        found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        rows = [one.ids for one in found]
        lengths = np.array([len(row) for row in rows], np.int64)
        ids = itertools.chain.from_iterable(rows)
        return np.fromiter(ids, np.uint32, int(lengths.sum())), lengths

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """Returns the text of ids, special tokens spelt out."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False))

    def token_id(self, token: str) -> int | None:
        """Returns the id of a token by its spelling."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found


class SentencePieceTokenizer:
    """A model file of SentencePiece."""

    def __init__(self, name: str, path: str, content_hash: str) -> None:
        package = import_extra(
            "sentencepiece", extra="sentencepiece", needed_for=f"The tokenizer {name}"
        )
        self.name = name
        self.hash = content_hash
        self._model = package.SentencePieceProcessor(model_file=path)
        self.vocab_size: int | None = self._model.vocab_size()
        end = self._model.eos_id()
        self.eod_token: int | None = None if end < 0 else end

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Returns the ids of texts."""
        return flatten(self._model.encode(texts, out_type=int, num_threads=1), np.int32)

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """Returns the text of ids."""
        return str(self._model.decode(ids.tolist()))

    def token_id(self, token: str) -> int | None:
        """Returns the id of a piece."""
        found: int = self._model.piece_to_id(token)
        return None if found == self._model.unk_id() else found


class TiktokenTokenizer:
    """An encoding of tiktoken, by name or from a file that is named as the encoding.

    By name, tiktoken looks for the file in TIKTOKEN_CACHE_DIR, and otherwise downloads it.
    """

    def __init__(self, name: str) -> None:
        package = import_extra("tiktoken", extra="tiktoken", needed_for=f"The tokenizer {name}")
        self.name = name
        by_name = name.startswith("tiktoken:") and not name.endswith(".tiktoken")
        asked = name.removeprefix("tiktoken:")
        self._encoding = package.get_encoding(asked) if by_name else _read_encoding(asked)
        self.hash = _hash_encoding(self._encoding)
        self.vocab_size: int | None = self._encoding.n_vocab
        self.eod_token: int | None = self.token_id("<|endoftext|>")

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Returns the ids of texts; what is spelt like a special token is plain text."""
        rows = self._encoding.encode_ordinary_batch(texts, num_threads=1)
        return flatten(rows, np.uint32)

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """Returns the text of ids, special tokens spelt out."""
        return str(self._encoding.decode(ids.tolist()))

    def token_id(self, token: str) -> int | None:
        """Returns the id of a special token, or of a token of the vocabulary."""
        try:
            found: int = self._encoding.encode_single_token(token)
        except KeyError:
            return None
        return found


def _read_encoding(path: str) -> Any:
    """Makes an encoding of a .tiktoken file, which holds the ranks of its tokens and no more.

    How text is split, and the special tokens, come from the constructor that tiktoken registers
    for the file's name; it is called with a loader that reads this file. The constructor knows
    the file's hash, and refuses another one.
    """
    tiktoken = import_extra("tiktoken", extra="tiktoken", needed_for=f"The tokenizer {path}")
    load = import_extra(
        "tiktoken.load", extra="tiktoken", needed_for=f"The tokenizer {path}"
    ).load_tiktoken_bpe
    registry = import_extra(
        "tiktoken.registry", extra="tiktoken", needed_for=f"The tokenizer {path}"
    )
    name = os.path.basename(path).removesuffix(".tiktoken")
    known = registry.list_encoding_names()
    if name not in known:
        raise ArgumentError(
            f"{path} must be named as an encoding that tiktoken knows: {', '.join(sorted(known))}. "
            "For another one, use a function: tokenizer='module:function'.",
            name="tokenizer",
            value=path,
        )

    def load_this(_url: str, expected_hash: str | None = None) -> Any:
        return load(path, expected_hash)

    constructor = registry.ENCODING_CONSTRUCTORS[name]
    names = {**constructor.__globals__, "load_tiktoken_bpe": load_this}
    return tiktoken.Encoding(**types.FunctionType(constructor.__code__, names)())


def _hash_encoding(encoding: Any) -> str:
    """Returns a hash of what decides the ids: tokens, special tokens and how text is split."""
    ranks = sorted(encoding._mergeable_ranks.items(), key=operator.itemgetter(1))  # noqa: SLF001
    special = sorted(encoding._special_tokens.items())  # noqa: SLF001 - there is no public name
    content = repr((encoding._pat_str, special, ranks))  # noqa: SLF001
    return hashlib.sha256(content.encode()).hexdigest()
