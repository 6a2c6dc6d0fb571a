"""Converts corpora between formats: anything that `packcore.open` reads, into chunks and back.

Tokens go through a few million at a time, whatever the corpus' size, and every id is checked.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from packcore.builder import PackedDatasetBuilder
from packcore.checks import check_choice, check_int
from packcore.dataset import Dataset
from packcore.dataset import open as open_dataset
from packcore.errors import ArgumentError
from packcore.format import dtypes
from packcore.formats.llmc import END_OF_TEXT, MODELS
from packcore.formats.stream import (
    Piece,
    add_separators,
    check_separators,
    iterate_pieces,
    strip_separators,
)
from packcore.formats.writing import (
    Written,
    write_datatrove,
    write_llmc,
    write_megatron,
    write_nanogpt,
)
from packcore.ids import IdRule
from packcore.manifest import check_prefix, chunk_path, manifest_path

__all__ = ["TARGETS", "convert"]

_Side = Literal["before", "after"]
_INDEXED = (np.dtype(np.uint16), np.dtype(np.uint32))
_CHUNKS = tuple(np.dtype(known) for known in dtypes.values())


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a target is told."""

    destination: str
    prefix: str
    dtype: np.dtype[Any]
    size: int
    sep_token: int | None
    vocab_size: int | None
    has_documents: bool
    overwrite: bool


@dataclass(frozen=True, slots=True)
class _Target:
    """A format that can be written."""

    write: Callable[[Iterable[Piece], _Plan], Written]
    dtypes: tuple[np.dtype[Any], ...]
    """What it can store."""
    prefix: str = "train"
    """What its files are called."""
    size: int = 1
    """Tokens a file, if it has several."""
    side: _Side | None = None
    """Where its separators stand, if nothing else tells documents."""
    has_index: bool = False
    """Whether it always says where documents begin."""


def _write_chunks(pieces: Iterable[Piece], plan: _Plan) -> Written:
    builder = PackedDatasetBuilder(
        plan.destination,
        plan.prefix,
        plan.size,
        plan.sep_token or 0,
        plan.dtype,
        plan.vocab_size,
        overwrite=plan.overwrite,
    )
    with builder:
        if plan.has_documents:
            builder.add_documents([], [])  # so that they are recorded, even if there is none
        for tokens, starts in pieces:
            first = int(starts[0]) if len(starts) else len(tokens)
            if first:
                builder.add_array(tokens[:first])
            if len(starts):
                builder.add_documents(tokens[first:], np.diff(starts, append=len(tokens)))
    manifest = builder.close()
    chunks = [chunk_path(plan.destination, plan.prefix, at) for at in range(manifest.num_chunks)]
    files = (manifest_path(plan.destination, plan.prefix), *chunks)
    return Written(files, manifest.num_tokens, manifest.num_documents)


def _write_megatron(pieces: Iterable[Piece], plan: _Plan) -> Written:
    return write_megatron(pieces, plan.destination, plan.dtype, overwrite=plan.overwrite)


def _write_llmc(pieces: Iterable[Piece], plan: _Plan) -> Written:
    return write_llmc(
        pieces,
        plan.destination,
        plan.prefix,
        plan.dtype,
        shard_size=plan.size,
        overwrite=plan.overwrite,
    )


def _write_nanogpt(pieces: Iterable[Piece], plan: _Plan) -> Written:
    where = plan.destination, plan.prefix, plan.dtype
    return write_nanogpt(pieces, *where, overwrite=plan.overwrite)


def _write_datatrove(pieces: Iterable[Piece], plan: _Plan) -> Written:
    where = plan.destination, plan.prefix, plan.dtype
    return write_datatrove(pieces, *where, overwrite=plan.overwrite)


_TARGETS = {
    "litpkds": _Target(_write_chunks, _CHUNKS, size=2**24),
    "megatron": _Target(_write_megatron, _CHUNKS, has_index=True),
    "llmc": _Target(_write_llmc, _INDEXED, "data_train", size=10**8, side="before"),
    "nanogpt": _Target(_write_nanogpt, _INDEXED[:1], side="after"),
    "datatrove": _Target(_write_datatrove, _INDEXED, has_index=True),
}
TARGETS = tuple(_TARGETS)
"""What can be written."""


def convert(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Dataset,
    destination: str | os.PathLike[str],
    *,
    to: str = "litpkds",
    sep_token: int | None = None,
    source_dtype: npt.DTypeLike | None = None,
    dtype: npt.DTypeLike | None = None,
    prefix: str | None = None,
    chunk_size: int | None = None,
    vocab_size: int | None = None,
    add_sep: _Side | None = None,
    strip_sep: _Side | None = None,
    drop_documents: bool = False,
    overwrite: bool = False,
    on_tokens: Callable[[int], None] | None = None,
) -> Written:
    """Writes a corpus in another format, document boundaries included.

    Tokens stay as they are unless separators are put in or taken out. Megatron and datatrove keep
    documents in an index. llm.c and nanoGPT have none: there, separators have to tell exactly the
    documents that the source has, and it is an error if they do not.

    Args:
        source: what `packcore.open` takes, or a data set.
        destination: a folder; for Megatron the files' path without a suffix.
        to: one of "litpkds", "megatron", "llmc", "nanogpt", "datatrove".
        sep_token: the separator, where one is needed: to find the documents of a source that does
            not record them, to put it in or take it out, to fill the last chunk (0 if it is left
            out). For llm.c it is the model's end-of-text id by default.
        source_dtype: of the source's tokens, where only the user knows it.
        dtype: of the tokens that are written; the source's by default, or the one of its size
            that the format has. nanoGPT has uint16 alone.
        prefix: what the files' names begin with: "train" by default, "data_train" for llm.c.
        chunk_size: tokens a file, for LITPKDS (2**24 by default) and llm.c (10**8).
        vocab_size: ids must be below it; for LITPKDS it is recorded as well.
        add_sep: put `sep_token` before or after each document, as a token of it.
        strip_sep: take each document's first ("before") or last ("after") token off; it has to
            be `sep_token`.
        drop_documents: write the tokens alone, without where documents begin.
        overwrite: replace files that are there.
        on_tokens: called with the number of tokens that were written so far.

    Returns:
        The files, and how many tokens and documents went into them.

    Raises:
        ArgumentError: an argument breaks its rule, documents are unknown but needed, or would be
            lost.
        TokenError: an id does not fit.
        OverwriteError: a file is there already.
        WriteError: the operating system refused.
        PackcoreError: the source cannot be opened; see `packcore.open`.

    Examples:
        >>> folder = getfixture("tmp_path")
        >>> with PackedDatasetBuilder(folder, "web", 4, sep_token=0, vocab_size=100) as builder:
        ...     builder.add_documents([11, 12, 21, 22, 23], [2, 3])
        >>> written = convert(folder / "web", folder / "out", to="megatron")
        >>> written.num_tokens, written.num_documents
        (5, 2)
        >>> open_dataset(folder / "out").document(1)
        array([21, 22, 23], dtype=uint16)
    """
    target = _TARGETS[check_choice("to", to, TARGETS)]
    if not isinstance(source, Dataset):
        source = open_dataset(source, sep_token=sep_token, dtype=source_dtype)
    has_documents = source.has_documents and not drop_documents
    plan = _Plan(
        os.fspath(destination),
        target.prefix if prefix is None else check_prefix(prefix),
        _choose_dtype(target.dtypes, source.dtype, dtype),
        check_int("chunk_size", chunk_size or target.size, low=1, unit="tokens"),
        None if sep_token is None else check_int("sep_token", sep_token, low=-(2**63)),
        None if vocab_size is None else check_int("vocab_size", vocab_size, low=1, unit="ids"),
        has_documents,
        overwrite,
    )
    if to == "llmc" and sep_token is None:
        plan = replace(plan, sep_token=_end_of_text(plan.dtype))
    if target.has_index and not drop_documents:
        source.check_documents()
    pieces = _change(source, plan, add_sep=add_sep, strip_sep=strip_sep)
    if target.side and has_documents:
        pieces = check_separators(pieces, _need(plan.sep_token), target.side, to)
    with _no_empty_folder(plan.destination):
        return target.write(_check_ids(pieces, plan, on_tokens), plan)


@contextlib.contextmanager
def _no_empty_folder(destination: str) -> Iterator[None]:
    """Removes the folders that were made for what could not be written, if nothing is in them."""
    path = Path(os.path.abspath(destination))
    made = [folder for folder in (path, *path.parents) if not os.path.exists(folder)]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in made:
                if os.path.exists(folder):  # of Megatron the first is no folder
                    folder.rmdir()
        raise


def _change(
    row: Dataset, plan: _Plan, *, add_sep: _Side | None, strip_sep: _Side | None
) -> Iterator[Piece]:
    """Returns the tokens, with separators put in or taken out."""
    pieces = iterate_pieces(row)
    if not plan.has_documents:
        pieces = (Piece(tokens, starts[:0]) for tokens, starts in pieces)
    changes = (("strip_sep", strip_separators, strip_sep), ("add_sep", add_separators, add_sep))
    for name, change, side in changes:
        if side is not None:
            check_choice(name, side, ("before", "after"))
            if not plan.has_documents:
                row.check_documents()
                raise ArgumentError(f"{name} needs documents; leave out drop_documents.", name=name)
            pieces = change(pieces, _need(plan.sep_token), side)
    return pieces


def _need(sep_token: int | None) -> int:
    if sep_token is None:
        raise ArgumentError(
            "sep_token must be named: it tells documents apart where no index does.",
            name="sep_token",
        )
    return sep_token


def _end_of_text(dtype: np.dtype[Any]) -> int:
    """Returns the id that llm.c's readers expect with a dtype."""
    return next(END_OF_TEXT[magic] for magic, (_, known) in MODELS.items() if known == dtype)


def _choose_dtype(
    known: tuple[np.dtype[Any], ...], stored: np.dtype[Any], wanted: npt.DTypeLike | None
) -> np.dtype[Any]:
    """Returns what to store in: the user's choice, the source's, or the one of its size.

    Each id is checked when it is written.
    """
    if wanted is None:
        if stored in known:
            return stored
        sizes = {dtype.itemsize: dtype for dtype in known if dtype.kind != "f"}
        return sizes[max(min(sizes), min(max(sizes), stored.itemsize))]
    for dtype in known:
        with contextlib.suppress(TypeError):
            if np.dtype(wanted) == dtype:
                return dtype
    names = ", ".join(dtype.name for dtype in known)
    raise ArgumentError(
        f"dtype must be one of {names}; got {wanted!r}.", name="dtype", value=wanted
    )


def _check_ids(
    pieces: Iterable[Piece], plan: _Plan, on_tokens: Callable[[int], None] | None
) -> Iterator[Piece]:
    """Yields the pieces, every id of them shown to fit the dtype that is stored."""
    rule = IdRule(plan.dtype, plan.vocab_size)
    num_tokens = 0
    for tokens, starts in pieces:
        yield Piece(rule.check("tokens", tokens), starts)
        num_tokens += len(tokens)
        if on_tokens:
            on_tokens(num_tokens)
