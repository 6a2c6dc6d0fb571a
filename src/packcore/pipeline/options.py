"""What decides the bytes of a build: checked, made definite, and written down.

A build that goes on must have the same; a finished corpus has them in its manifest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.builder import choose_dtype
from packcore.checks import check_choice, check_int
from packcore.errors import ArgumentError, ArgumentTypeError
from packcore.ids import IdRule
from packcore.manifest import Manifest
from packcore.pipeline.encoding import Recipe
from packcore.pipeline.inputs import InputFile
from packcore.pipeline.journal import Mark
from packcore.pipeline.tokenizers import Tokenizer, load_tokenizer

__all__ = ["BuildOptions", "make_options"]


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What decides the bytes of a build."""

    files: tuple[InputFile, ...]
    """The inputs, in order."""
    recipe: Recipe
    """How a document becomes ids."""
    chunk_size: int
    """Tokens a chunk file."""
    is_ids: bool
    """Whether the inputs hold ids, and no text."""
    lines_of_text: bool
    """Whether each line of a text file is a document."""

    @property
    def sep_token(self) -> int:
        """The id that fills the last chunk."""
        return self.recipe.eod_token or 0

    @property
    def header(self) -> dict[str, Any]:
        """What a build that goes on must have in common with its beginning."""
        recipe = self.recipe
        return {
            "tokenizer": recipe.tokenizer,
            "tokenizer_hash": recipe.tokenizer_hash,
            **self._described,
            "chunk_size": self.chunk_size,
            "dtype": recipe.dtype.name,
            "vocab_size": recipe.vocab_size,
            "inputs": [[file.path, file.num_bytes, file.modified_ns] for file in self.files],
        }

    @property
    def _described(self) -> dict[str, Any]:
        """The options that have no place of their own in a manifest."""
        return {
            "ids_column" if self.is_ids else "column": self.recipe.column,
            "text_files": "lines" if self.lines_of_text else "whole",
            "bos_token": self.recipe.bos_token,
            "eod_token": self.recipe.eod_token,
        }

    def provenance(self, mark: Mark) -> dict[str, Any]:
        """Returns what the manifest says of the build's origin.

        Args:
            mark: the end of the build.
        """
        return {
            **self._described,
            "inputs": self._summarize_inputs(),
            "num_skipped": mark.num_skipped,
            "skipped": list(mark.skipped),
        }

    def _summarize_inputs(self) -> dict[str, Any]:
        """Returns a summary that stays the same when the inputs are moved."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.num_bytes} ".encode())
            digest.update(os.fsencode(os.path.basename(file.path)) + b"\n")
        return {
            "num_files": len(self.files),
            "num_bytes": sum(file.num_bytes for file in self.files),
            "names_sha256": digest.hexdigest(),
        }

    def is_of(self, manifest: Manifest) -> bool:
        """Says whether a finished corpus was built from the same, by all that its manifest says.

        Inputs are compared by their names and sizes.
        """
        recipe, found = self.recipe, manifest.provenance or {}
        wanted = {**self._described, "inputs": self._summarize_inputs()}
        return {key: found.get(key) for key in wanted} == wanted and (
            manifest.tokenizer_hash,
            manifest.dtype,
            manifest.vocab_size,
            manifest.chunk_size,
        ) == (recipe.tokenizer_hash, recipe.dtype, recipe.vocab_size, self.chunk_size)


def make_options(
    files: Sequence[InputFile],
    *,
    tokenizer: str | os.PathLike[str] | None,
    chunk_size: int,
    column: str,
    ids_column: str | None,
    text_files: str,
    eod: int | str | None,
    bos: int | str | None,
    vocab_size: int | None,
    dtype: npt.DTypeLike,
) -> BuildOptions:
    """Checks the arguments of `packcore.build`, and looks up what they leave open.

    Raises:
        ArgumentError: an argument breaks its rule, or they contradict each other.
        ArgumentTypeError: an argument is of a wrong type.
        NoDataError: there is no such tokenizer file.
        MissingExtraError: the package that the tokenizer needs is not installed.
    """
    check_choice("text_files", text_files, ("whole", "lines"))
    chosen = _choose_tokenizer(tokenizer, ids_column, files)
    begin, end = _find_mark("bos", bos, chosen), _find_mark("eod", eod, chosen)
    if vocab_size is not None:
        vocab_size = check_int("vocab_size", vocab_size, low=1, unit="ids")
    elif chosen is not None and chosen.vocab_size is not None:
        vocab_size = max(chosen.vocab_size, 1 + max(begin or 0, end or 0))
    stored = choose_dtype(dtype, vocab_size)
    rule = IdRule(stored, vocab_size)
    for name, token in (("bos", begin), ("eod", end)):
        if token is not None:
            rule.check_one(name, token)
    recipe = Recipe(
        tokenizer=chosen.name if chosen else None,
        tokenizer_hash=chosen.hash if chosen else None,
        column=_check_column(column if ids_column is None else ids_column),
        bos_token=begin,
        eod_token=end,
        dtype=stored,
        vocab_size=vocab_size,
    )
    return BuildOptions(
        tuple(files),
        recipe,
        _check_chunk_size(chunk_size, stored),
        chosen is None,
        text_files == "lines",
    )


def _check_chunk_size(value: object, dtype: np.dtype[Any]) -> int:
    chunk_size = check_int("chunk_size", value, low=1, unit="tokens")
    try:
        np.empty(chunk_size, dtype)  # costs nothing while nobody writes to it
    except (MemoryError, ValueError):
        raise ArgumentError(
            f"A chunk is filled in memory; chunk_size {chunk_size} (tokens) of {dtype.name} takes "
            f"{chunk_size * dtype.itemsize} bytes, more than there are. Use a smaller chunk_size.",
            name="chunk_size",
            value=value,
        ) from None
    return chunk_size


def _choose_tokenizer(
    tokenizer: str | os.PathLike[str] | None, ids_column: str | None, files: Sequence[InputFile]
) -> Tokenizer | None:
    if (tokenizer is None) == (ids_column is None):
        given = "neither" if tokenizer is None else "both"
        raise ArgumentError(
            f"Exactly one of tokenizer and ids_column must be given; got {given}. Text needs a "
            'tokenizer, such as tokenizer="bytes"; ids_column is for inputs that hold ids.',
            name="tokenizer",
            value=tokenizer,
        )
    if tokenizer is not None:
        return load_tokenizer(tokenizer)
    for file in files:
        if file.kind == "text":
            raise ArgumentError(
                f"With ids_column no input can be a text file; got {file.path}. Leave it out, or "
                "give a tokenizer.",
                name="ids_column",
                value=ids_column,
            )
    return None


def _find_mark(name: str, value: int | str | None, tokenizer: Tokenizer | None) -> int | None:
    """Returns the id of a mark that was given as an id, a spelling or "auto"."""
    if value is None or not isinstance(value, str):
        return None if value is None else check_int(name, value, low=0)
    found = None
    if tokenizer is not None:
        is_auto = value == "auto" and name == "eod"
        found = tokenizer.eod_token if is_auto else tokenizer.token_id(value)
    if found is None:
        raise ArgumentError(_describe_unknown(name, value, tokenizer), name=name, value=value)
    return found


def _describe_unknown(name: str, value: str, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return (
            f"{name} must be an id or None where the inputs hold ids; got {value!r}. None puts "
            "nothing behind documents that end in a mark already."
        )
    if value == "auto":
        return (
            f"The tokenizer {tokenizer.name} does not say which id ends a document. Name it, as an "
            f"id or by its spelling, with {name}; None puts nothing behind a document."
        )
    return f"{name} must be a token of {tokenizer.name}, or an id; got {value!r}."


def _check_column(column: object) -> str:
    if not isinstance(column, str):
        message = f"column must be a string; got {column!r}."
        raise ArgumentTypeError(message, name="column", value=column)
    return column
