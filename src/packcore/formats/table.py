"""Which format a path is of, by its content: the table, and the door in front of it.

What a format's bytes mean is for its own module; that the files of one data set are alike is
checked here, once for all formats.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.checks import check_int
from packcore.chunks import CHUNK_NAME, files_of_prefix, find_chunks, list_sources
from packcore.errors import (
    ArgumentError,
    ArgumentTypeError,
    FormatError,
    MismatchError,
    NoDataError,
)
from packcore.format import describe_head, read_header
from packcore.formats import (
    arrayrecord,
    arrow,
    datatrove,
    fairseq,
    huffman,
    levanter,
    litdata,
    litpkds,
    llmc,
    mds,
    megatron,
    numpyfile,
    olmo,
    raw,
)
from packcore.formats.options import Options
from packcore.formats.reading import read_head
from packcore.protocols import TokenFile
from packcore.rawfiles import file_bytes, list_folder

__all__ = ["Format", "find_files", "list_formats", "register"]

_Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
_SPLITS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation"}
_SPLITS |= {"dev": "validation", "eval": "validation", "test": "test"}
_WORD = re.compile(r"[a-z]+")
_NUMBER = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True)
class Format:
    """A format of token files.

    Examples:
        >>> def find(path, options):
        ...     return path if read_head(path).startswith(b"MYTOKENS") else None
        >>> def open_files(paths, options):
        ...     from packcore.formats import PlainTokens
        ...     for path in paths:
        ...         count = (os.path.getsize(path) - 8) // 2
        ...         yield PlainTokens(path=path, dtype=np.dtype("<u2"), offset=8, num_tokens=count)
        >>> mine = Format("mine", find, open_files)
    """

    name: str
    """For messages."""
    find: Callable[[str, Options], str | None]
    """Given a file or a folder: the path under which `open_files` knows it, or None if it is not
    of this format. Files that belong together, as a .bin and its .idx, have one such path."""
    open_files: Callable[[Sequence[str], Options], Iterable[TokenFile]]
    """Given such paths, in order: their tokens. What breaks the format is a `FormatError`."""


_FORMATS: list[Format] = [
    Format("LITPKDS", litpkds.find, litpkds.open_files),
    Format("Megatron", megatron.find, megatron.open_files),
    Format("fairseq", fairseq.find, fairseq.open_files),
    Format("fairseq Huffman", huffman.find, huffman.open_files),
    Format("llm.c", llmc.find, llmc.open_files),
    Format("datatrove", datatrove.find, datatrove.open_files),
    Format("litdata", litdata.find, litdata.open_files),
    Format("MDS", mds.find, mds.open_files),
    Format("Hugging Face", arrow.find, arrow.open_files),
    Format("levanter", levanter.find, levanter.open_files),
    Format("ArrayRecord", arrayrecord.find, arrayrecord.open_files),
    Format("NumPy", numpyfile.find, numpyfile.open_files),
    Format("OLMo", olmo.find, olmo.open_files),
    Format("raw", raw.find, raw.open_files),
]
"""In the order in which they are asked: those without a magic come last."""


def register(added: Format) -> None:
    """Makes `packcore.open` know a format. It is asked before those that are known already.

    The registration is this process's: in a worker process that was spawned, register again.

    Args:
        added: the format; one of the same name is replaced.

    Raises:
        ArgumentTypeError: it is no `Format`, its name no text, or its functions no functions.
    """
    if not isinstance(added, Format):
        raise ArgumentTypeError(
            f"added must be a packcore.formats.Format; got {added!r}.", name="added", value=added
        )
    for name in ("name", "find", "open_files"):
        value = getattr(added, name)
        if not (isinstance(value, str) if name == "name" else callable(value)):
            kind = "text" if name == "name" else "a function"
            raise ArgumentTypeError(
                f"{name} of a format must be {kind}; got {value!r}.", name=name, value=value
            )
    _FORMATS[:] = [added, *(known for known in _FORMATS if known.name != added.name)]


def list_formats() -> list[str]:
    """Returns the names of the formats that are known, in the order in which they are asked."""
    return [known.name for known in _FORMATS]


def find_files(
    source: _Source, *, sep_token: int | None = None, dtype: npt.DTypeLike | None = None
) -> tuple[TokenFile, ...]:
    """Finds and opens the token files that `source` names, of whatever format.

    Args:
        source: a file, a folder, a prefix, a glob, or a list of paths in the order wanted.
        sep_token: the id that ends a document, where the format does not record documents.
        dtype: of the tokens, where the format does not say it.

    Raises:
        NoDataError: nothing is there.
        FormatError: a file is of no known format, or breaks the rules of its own.
        MismatchError: the files are not all of one format or dtype.
        ArgumentError: the dtype has to be named, or contradicts the files; or `sep_token` does
            not fit it.
        MissingExtraError: an optional package is needed for this format.
    """
    options = Options(None if dtype is None else _check_dtype(dtype), sep_token)
    if isinstance(source, Iterator):  # it is looked at twice
        source = list(source)
    paths, chosen = _list_paths(source)
    found = _sort_out(paths, options, chosen=chosen)
    if found is None:
        files: Sequence[TokenFile] = find_chunks(source, sep_token=sep_token)
    else:
        files = tuple(found[0].open_files(found[1], options))
    if not files:
        raise NoDataError(f"There are no tokens in {source!r}.")
    _check_alike(files, options)
    return tuple(files)


def _list_paths(source: _Source) -> tuple[list[str], bool]:
    """Returns what is there under `source`, and whether each path was named by the user."""
    if not isinstance(source, str | os.PathLike):
        return [found for path in list_sources(source) for found in _list_path(path)], True
    path = os.fsdecode(source)
    if os.path.exists(path):
        return [path], True
    if os.path.isfile(path + ".idx"):
        return [path + ".idx"], True
    return sorted(glob.glob(path, recursive=True), key=_natural), False


def _list_path(path: str) -> list[str]:
    """Returns a path of a list, or the files of the prefix that it is."""
    if os.path.exists(path):
        return [path]
    return [path + ".idx"] if os.path.isfile(path + ".idx") else files_of_prefix(path) or [path]


def _natural(path: str) -> list[list[str | int]]:
    """Sorts train.bin before train2.bin before train10.bin."""
    return [
        [int(part) if index % 2 else part for index, part in enumerate(_NUMBER.split(field))]
        for field in path.split(".")
    ]


def _sort_out(
    paths: list[str], options: Options, *, chosen: bool
) -> tuple[Format, list[str]] | None:
    """Returns the one format that all paths are of, and the paths under which it knows them.

    None for LITPKDS, and for what is not there: `find_chunks` finds files by prefix as well and
    says what is missing.
    """
    claims: dict[str, Format] = {}
    expanded: list[str] = []  # what the user did not name one by one
    for path in paths:
        found = dict(_claims(path, options))
        is_folder = os.path.isdir(path)
        if not found and chosen and (not is_folder or len(paths) > 1):
            raise _unknown(path)
        if not chosen or (is_folder and os.path.abspath(path) not in found):
            expanded += found
        claims.update(found)
    formats = list(dict.fromkeys(claims.values()))
    if options.dtype is None:
        _check_chunk_names(claims)
    if len(formats) > 1:
        raise _mixed(claims)
    if not formats:
        if paths and not os.path.isdir(paths[0]):
            raise _unknown(paths[0])
        return None
    if formats[0].name == "LITPKDS":
        return None
    _check_splits(expanded)
    return formats[0], list(claims)


def _claims(path: str, options: Options) -> Iterable[tuple[str, Format]]:
    """Yields the path and format of a file, or of a folder, or of all files in a folder."""
    claim = _claim(path, options)
    if claim is not None:
        yield claim
    elif os.path.isdir(path):
        for name in sorted(list_folder(path), key=_natural):
            inside = os.path.join(path, name)
            if not name.startswith(".") and os.path.isfile(inside):
                claim = _claim(inside, options)
                if claim is not None:
                    yield claim


def _claim(path: str, options: Options) -> tuple[str, Format] | None:
    for known in _FORMATS:
        found = known.find(path, options)
        if found is not None:
            return os.path.abspath(found), known
    return None


def _unknown(path: str) -> FormatError:
    known = ", ".join(list_formats())
    size = file_bytes(path)
    head = read_head(path)
    return FormatError(
        f"{path} is of no known format: {describe_head(head, size)}. Known are: {known}. Name raw "
        "tokens .bin or .npy and say their dtype, or register a format of your own.",
        path=path,
        offset=0,
        expected=list_formats(),
        got=head,
    )


def _mixed(claims: dict[str, Format]) -> MismatchError:
    first = {known.name: path for path, known in reversed(claims.items())}
    listed = "; ".join(f"{path} is {name}" for name, path in sorted(first.items()))
    return MismatchError(
        f"The files must be of one format: {listed}. Open them as several data sets and mix them "
        "with packcore.Mixture.",
        expected=min(first),
        got=max(first),
    )


def _check_chunk_names(claims: dict[str, Format]) -> None:
    """Says what is wrong with a file that is named as a chunk and has lost its header."""
    for path, known in claims.items():
        if known.name == "raw" and CHUNK_NAME.fullmatch(os.path.basename(path)):
            read_header(path)


def _check_splits(paths: Iterable[str]) -> None:
    """Refuses a folder or a glob that has training and validation files in it."""
    found: dict[str, str] = {}
    for path in paths:
        words = _WORD.findall(os.path.basename(path).lower())
        found.update({_SPLITS[word]: path for word in words if word in _SPLITS})
    if len(found) > 1:
        listed = ", ".join(sorted(found.values()))
        raise MismatchError(
            f"These are files of several splits: {listed}. Name one split, such as by a glob with "
            "its name in it.",
            expected="files of one split",
            got=sorted(found),
        )


def _check_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        wanted = None
    if wanted is None or wanted.kind not in "iuf" or wanted != wanted.newbyteorder("<"):
        raise ArgumentError(
            f"dtype must be a little-endian integer dtype such as 'uint16'; got {dtype!r}.",
            name="dtype",
            value=dtype,
        )
    return wanted.newbyteorder("<")


def _check_alike(files: Sequence[TokenFile], options: Options) -> None:
    first = files[0]
    for file in files:
        if file.dtype != first.dtype:
            raise MismatchError(
                f"{file.path} has dtype {file.dtype}, but {first.path} has {first.dtype}. Open "
                "them as two data sets and mix them with packcore.Mixture.",
                path=file.path,
                expected=first.dtype,
                got=file.dtype,
            )
    if options.dtype is not None and options.dtype != first.dtype:
        raise ArgumentError(
            f"dtype must be {first.dtype}, which {first.path} says of itself, or be left out; got "
            f"{options.dtype}.",
            name="dtype",
            value=options.dtype,
        )
    if options.sep_token is not None and first.dtype.kind in "iu":
        info = np.iinfo(first.dtype)
        low, high = int(info.min), int(info.max)
        check_int("sep_token", options.sep_token, low=low, high=high, unit=first.dtype.name)
