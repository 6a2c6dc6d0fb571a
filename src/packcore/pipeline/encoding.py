"""Turns a piece of work into token ids: what each process of a build does.

Documents come from `packcore.pipeline.parsing`, ids from a tokenizer. An `Encoder` is made in
each process from a `Recipe`, which is small and pickles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.errors import ArgumentError, PackcoreError, StateError, TokenError
from packcore.ids import IdRule
from packcore.pipeline.parsing import Found, parse
from packcore.pipeline.reading import say_why
from packcore.pipeline.rows import flatten
from packcore.pipeline.tokenizers import Tokenizer, load_tokenizer
from packcore.pipeline.work import Broken, Encoded, Work

__all__ = ["Encoder", "Recipe"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the ids of a document."""

    tokenizer: str | None
    """Its name; None where the inputs hold ids."""
    tokenizer_hash: str | None
    """What the tokenizer's hash must be, in every process."""
    column: str
    """The field or column that holds the text, or the ids."""
    bos_token: int | None
    """Put before each document; None for nothing."""
    eod_token: int | None
    """Put behind each document; None for nothing."""
    dtype: np.dtype[Any]
    """What ids are stored in."""
    vocab_size: int | None
    """Ids must be below it; None admits all that fit `dtype`."""


class Encoder:
    """Makes ids of work.

    Raises:
        StateError: the tokenizer is not the one that the build began with.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._rule = IdRule(recipe.dtype, recipe.vocab_size)
        self._tokenizer: Tokenizer | None = None
        if recipe.tokenizer is not None:
            self._tokenizer = load_tokenizer(recipe.tokenizer)
            if self._tokenizer.hash != recipe.tokenizer_hash:
                raise StateError(
                    f"The tokenizer {recipe.tokenizer} is another one here than where the build "
                    "began. Give each machine the same files.",
                    field="tokenizer_hash",
                    expected=recipe.tokenizer_hash,
                    got=self._tokenizer.hash,
                )

    def __call__(self, work: Work) -> Encoded:
        """Returns the ids of the work's documents, and what none could be made of."""
        found: list[Found] = []
        pieces: list[int] = []
        num_lines = []
        for index, piece in enumerate(work.pieces):
            parsed = parse(piece, self.recipe.column, as_ids=self._tokenizer is None)
            num_lines.append(parsed.num_lines)
            found += parsed.found
            pieces += [index] * len(parsed.found)
        flat, lengths, errors = self._encode([one.value for one in found])
        broken = tuple(Broken(pieces[at], found[at].line, why) for at, why in errors)
        return Encoded(*self._mark(flat, lengths), tuple(num_lines), broken)

    def _encode(
        self, values: list[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], list[tuple[int, str]]]:
        """Returns the documents that are in order, and (index, why) of the other values."""
        good = [at for at, value in enumerate(values) if not isinstance(value, ValueError)]
        documents = [values[at] for at in good]
        if self._tokenizer is None:
            refused = dict(self._misfits(documents))
            flat, lengths = flatten([] if refused else documents, self.recipe.dtype)
        else:
            flat, lengths, refused = self._tokenize(self._tokenizer, documents)
        if refused:
            bad = {good[at]: why for at, why in refused.items()}
            return self._encode(
                [ValueError(bad[at]) if at in bad else value for at, value in enumerate(values)]
            )
        errors = [
            (at, str(value)) for at, value in enumerate(values) if isinstance(value, ValueError)
        ]
        return flat, lengths, errors

    def _misfits(self, rows: list[npt.NDArray[Any]]) -> Iterator[tuple[int, str]]:
        """Yields the documents that have an id which does not fit, and why."""
        for number, row in enumerate(rows):
            try:
                self._rule.check("ids", row)
            except TokenError as error:
                yield (
                    number,
                    (
                        f"id {error.value} at index {error.index} does not fit: ids must be in "
                        f"[{error.low}, {error.high}]"
                    ),
                )

    def _tokenize(
        self, tokenizer: Tokenizer, texts: list[str]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], dict[int, str]]:
        """Returns the ids of texts, or why some of them have none."""
        if not texts:  # a tokenizer need not know what to say to that
            return np.empty(0, self.recipe.dtype), np.empty(0, np.int64), {}
        try:
            flat, lengths = _check(*tokenizer.encode(texts))
            self._rule.check("ids", flat)
        except TokenError:
            refused = dict(self._misfits(np.split(flat, np.cumsum(lengths)[:-1])))
        except (PackcoreError, MemoryError):
            raise
        except Exception as error:
            refused = dict(_find_refused(tokenizer, texts))
            if not refused:
                raise ArgumentError(
                    f"The tokenizer {tokenizer.name} takes each of {len(texts)} texts alone, but "
                    f"fails at all of them together: {_name(error)}.",
                    name="tokenizer",
                    value=tokenizer.name,
                ) from error
        else:
            return flat.astype(self.recipe.dtype), lengths, {}
        nothing = np.empty(0, np.int64)
        return nothing, nothing, refused

    def _mark(
        self, flat: npt.NDArray[Any], lengths: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Puts the marks before and behind each document."""
        begin, end = self.recipe.bos_token, self.recipe.eod_token
        num_marks = (begin is not None) + (end is not None)
        if not num_marks or not len(lengths):
            return flat, lengths
        marked = lengths + num_marks
        stops = np.cumsum(marked)
        out = np.empty(int(stops[-1]), self.recipe.dtype)
        is_id = np.ones(len(out), np.bool_)
        for token, at in ((begin, stops - marked), (end, stops - 1)):
            if token is not None:
                out[at] = token
                is_id[at] = False
        out[is_id] = flat
        return out, marked


def _check(
    flat: npt.NDArray[Any], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    if flat.ndim != 1 or (flat.size and flat.dtype.kind not in "iu"):
        raise ValueError(f"the tokenizer must return integers; got {flat.ndim}-D {flat.dtype}")
    return flat, lengths


def _find_refused(tokenizer: Tokenizer, texts: list[str]) -> Iterator[tuple[int, str]]:
    """Yields the texts that a tokenizer fails at, and what it says."""
    for number, text in enumerate(texts):
        try:
            _check(*tokenizer.encode([text]))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a tokenizer may raise anything
            yield number, f"the tokenizer {tokenizer.name} refused it: {_name(error)}"


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {say_why(error)}"
