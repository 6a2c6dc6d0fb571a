"""What turns text into ids: the protocol, the choice by name, and what needs no package.

| name                  | tokenizer                                                             |
| --------------------- | --------------------------------------------------------------------- |
| `bytes`               | UTF-8 bytes as ids 0 to 255; 256 ends a document                      |
| `tokenizer.json`      | Hugging Face `tokenizers`: the file, or a folder that has one         |
| `m.model`             | SentencePiece                                                         |
| `tiktoken:cl100k_base` | tiktoken, by name                                                    |
| `cl100k_base.tiktoken` | tiktoken, from a file that is named as the encoding                  |
| `module:function`     | any function of a list of texts that returns a list of ids for each   |

Those that need a package are in `packcore.pipeline.libraries`.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from packcore.errors import ArgumentError, ArgumentTypeError, NoDataError, PackcoreError
from packcore.pipeline.rows import flatten

__all__ = ["BytesTokenizer", "FunctionTokenizer", "Tokenizer", "load_tokenizer"]


class Tokenizer(Protocol):
    """What a build asks of a tokenizer."""

    @property
    def name(self) -> str:
        """As it was asked for."""

    @property
    def hash(self) -> str:
        """SHA-256 of what decides the ids, in hexadecimal."""

    @property
    def vocab_size(self) -> int | None:
        """Ids are below it; None if nobody knows."""

    @property
    def eod_token(self) -> int | None:
        """The id that ends a document, if the tokenizer names one."""

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Returns the ids of texts, one behind the other, and how many each has.

        No mark is put before or behind a text.
        """

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """Returns the text of ids, marks spelt out where the tokenizer can."""

    def token_id(self, token: str) -> int | None:
        """Returns the id of a token by its spelling; None if there is no such token."""


class BytesTokenizer:
    """UTF-8 bytes as ids.

    Examples:
        >>> flat, lengths = BytesTokenizer().encode(["hé", ""])
        >>> flat.tolist(), lengths.tolist()
        ([104, 195, 169], [3, 0])
    """

    name = "bytes"
    hash = hashlib.sha256(b"packcore bytes 1").hexdigest()
    vocab_size: int | None = 257
    eod_token: int = 256

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Returns the bytes of texts."""
        encoded = [text.encode() for text in texts]
        lengths = np.array([len(one) for one in encoded], np.int64)
        return np.frombuffer(b"".join(encoded), np.uint8), lengths

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """Returns the text; 256 and what is no UTF-8 becomes U+FFFD."""
        replaced = np.where(ids < self.eod_token, ids, 0xFF)  # 0xFF is nowhere in UTF-8
        return replaced.astype(np.uint8).tobytes().decode(errors="replace")

    def token_id(self, token: str) -> int | None:
        """Returns a single byte's id."""
        encoded = token.encode()
        return encoded[0] if len(encoded) == 1 else None


class FunctionTokenizer:
    """A function of the user's: texts -> the ids of each.

    It may have the attributes `vocab_size`, `eod_token` and `decode`. The hash is that of the
    file that it is defined in.
    """

    def __init__(self, name: str) -> None:
        module_name, _, function_name = name.partition(":")
        try:
            found: Any = importlib.import_module(module_name)
            for part in function_name.split("."):
                found = getattr(found, part)
            source = inspect.getsourcefile(inspect.unwrap(found))
        except (ImportError, AttributeError, TypeError) as error:
            raise ArgumentError(
                f"tokenizer {name!r} must name a function that can be imported: {error}.",
                name="tokenizer",
                value=name,
            ) from error
        self.name = name
        self.hash = _hash_file(source) if source else hashlib.sha256(name.encode()).hexdigest()
        self.vocab_size: int | None = getattr(found, "vocab_size", None)
        self.eod_token: int | None = getattr(found, "eod_token", None)
        self._function: Callable[[list[str]], Iterable[Sequence[int]]] = found

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Calls the function.

        Raises:
            ArgumentError: it did not return one list of ids for each text.
        """
        found = self._function(texts)
        if not isinstance(found, Iterable):
            raise ArgumentError(
                f"{self.name} must return a list of ids for each text; got {found!r:.50} "
                f"({type(found).__name__}).",
                name="tokenizer",
                value=self.name,
            )
        rows = [np.asarray(row) for row in found]
        if len(rows) != len(texts):
            raise ArgumentError(
                f"{self.name} must return the ids of each text; got {len(rows)} lists for "
                f"{len(texts)} texts.",
                name="tokenizer",
                value=self.name,
            )
        return flatten(rows)

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """Calls the function's `decode`; without one, returns the ids."""
        decode = getattr(self._function, "decode", None)
        return str(decode(ids.tolist()) if decode else ids.tolist())

    def token_id(self, token: str) -> int | None:
        """Returns None: a function knows no spelling."""
        del token
        return None


def load_tokenizer(name: str | os.PathLike[str]) -> Tokenizer:
    """Loads a tokenizer by its name; see the table above.

    Raises:
        ArgumentError: the name means nothing, or the file is not what its ending says, or may not
            be read.
        ArgumentTypeError: it is not a name.
        NoDataError: there is no such file.
        MissingExtraError: the package that it needs is not installed.
    """
    if not isinstance(name, str | os.PathLike):
        message = f"tokenizer must be a name or a path; got {name!r}."
        raise ArgumentTypeError(message, name="tokenizer", value=name)
    name = os.fspath(name)
    if name == "bytes":
        return BytesTokenizer()
    try:
        return _load_other(name)
    except (PackcoreError, MemoryError, KeyboardInterrupt):
        raise
    except PermissionError as error:
        raise ArgumentError(
            f"This user may not read the tokenizer {name}. Change its permissions.",
            name="tokenizer",
            value=name,
        ) from error
    except Exception as error:
        raise ArgumentError(
            f"The tokenizer {name} cannot be loaded: {error}.", name="tokenizer", value=name
        ) from error


def _load_other(name: str) -> Tokenizer:
    # They import their package; most builds need one of them.
    from packcore.pipeline import libraries  # noqa: PLC0415

    if name.startswith("tiktoken:"):
        return libraries.TiktokenTokenizer(name)
    path = os.path.join(name, "tokenizer.json") if os.path.isdir(name) else name
    if path.endswith((".json", ".model", ".tiktoken")):
        if not os.path.isfile(path):
            raise NoDataError(f"There is no tokenizer file {path}.", path=path)
        if path.endswith(".json"):
            return libraries.HuggingFaceTokenizer(name, path, _hash_file(path))
        if path.endswith(".model"):
            return libraries.SentencePieceTokenizer(name, path, _hash_file(path))
        return libraries.TiktokenTokenizer(name)
    if ":" in name and not os.path.exists(name):
        return FunctionTokenizer(name)
    raise ArgumentError(
        "tokenizer must be 'bytes', a tokenizer.json, a .model, 'tiktoken:NAME', a .tiktoken file "
        f"or 'module:function'; got {name!r}.",
        name="tokenizer",
        value=name,
    )


def _hash_file(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
