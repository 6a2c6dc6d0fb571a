"""Which files a build reads, in which order, and what kind of file each is.

Reading them is for `packcore.pipeline.reading`.
"""

from __future__ import annotations

import glob
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packcore.errors import ArgumentError, ArgumentTypeError, FormatError, NoDataError

__all__ = ["InputFile", "Kind", "Sources", "list_inputs"]

Kind = Literal["jsonl", "text", "parquet", "arrow"]

Sources = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""Files, folders and globs."""

_KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a build's inputs."""

    path: str
    """As it was named."""
    kind: Kind
    compression: str | None
    """"gzip", "zstd" or None."""
    num_bytes: int
    """Its size on disk."""
    modified_ns: int
    """When it was last changed, in nanoseconds since 1970."""


def list_inputs(
    sources: Sources, *, without: str | os.PathLike[str] | None = None
) -> tuple[InputFile, ...]:
    """Lists the files that `sources` name.

    They come in the order of the sources; those of a folder or a glob in the order of their
    paths. A folder is searched through all its subfolders for the endings that are known; hidden
    files and folders are passed over, so is a link back to a folder that it lies in, and so is a
    plain .json, which as a rule describes the others: name it, or call it .jsonl. In a folder that
    Hugging Face `save_to_disk` wrote, the files are those that its state.json names. A file that
    is named twice is listed once.

    Args:
        sources: files, folders and globs, or one of them.
        without: a folder that is not searched: where the corpus goes.

    Raises:
        NoDataError: a source names nothing, or no file of a known kind, or a link leads nowhere.
        ArgumentError: a file's ending is unknown, it is no regular file or may not be read, or a
            folder holds several splits.
        ArgumentTypeError: `sources` are not paths.
        FormatError: the state.json of a data set cannot be read.
    """
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    try:
        named = [os.fspath(source) for source in sources]
    except TypeError:
        message = f"inputs must be paths, globs or a list of them; got {sources!r}."
        raise ArgumentTypeError(message, name="inputs", value=sources) from None
    if not named:
        raise NoDataError("The list of inputs is empty; name at least one file or folder.")
    found: dict[str, InputFile] = {}
    hidden = frozenset() if without is None else frozenset([os.path.realpath(without)])
    for source in named:
        for path in _expand(source, hidden):
            found.setdefault(os.path.realpath(path), _describe(path))
    return tuple(found.values())


def _expand(source: str, hidden: frozenset[str]) -> list[str]:
    if os.path.isdir(source):
        paths = list(_files_in(source, hidden))
        if not paths:
            raise NoDataError(
                f"The folder {source} has no file that ends in {_endings()}.", path=source
            )
        return paths
    if os.path.exists(source):
        return [source]
    if os.path.lexists(source):
        raise _leads_nowhere(source)
    matches = sorted(glob.glob(source, recursive=True))
    if not matches:
        what = "matches the glob" if glob.has_magic(source) else "is at"
        raise NoDataError(f"No input {what} {source}. Check the path.", path=source)
    return [path for match in matches for path in _expand(match, hidden)]


def _files_in(folder: str, hidden: frozenset[str]) -> Iterator[str]:
    """Yields the input files below a folder, in the order of their paths.

    Those below the folders `hidden` are passed over.
    """
    real = os.path.realpath(folder)
    if real in hidden:
        return
    hidden |= {real}  # a link below may lead back here
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except PermissionError as error:
        raise _refused(folder) from error
    if "dataset_dict.json" in names:
        splits = [name for name in names if os.path.isdir(os.path.join(folder, name))]
        raise ArgumentError(
            f"{folder} holds several splits: {', '.join(splits)}. Name the one that you want, as "
            f"in {os.path.join(folder, splits[0] if splits else 'train')}.",
            name="inputs",
            value=folder,
        )
    if "state.json" in names and "dataset_info.json" in names:
        yield from _saved_files(folder)
        return
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            yield from _files_in(path, hidden)
        elif _kind_of(path) is not None and not name.lower().endswith(".json"):
            yield path


def _saved_files(folder: str) -> list[str]:
    """Returns the Arrow files of a `save_to_disk` folder, in the order of its rows."""
    path = os.path.join(folder, "state.json")
    try:
        state = json.loads(Path(path).read_bytes())
        return [os.path.join(folder, file["filename"]) for file in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{path} does not list data files as save_to_disk does: {error!r}. Save it again, or "
            "name its .arrow files.",
            path=path,
        ) from error


def _kind_of(path: str) -> tuple[Kind, str | None] | None:
    root, ending = os.path.splitext(path.lower())
    compression = _COMPRESSIONS.get(ending)
    if compression is not None:
        ending = os.path.splitext(root)[1]
    kind = _KINDS.get(ending)
    if kind is None or (compression is not None and kind not in ("jsonl", "text")):
        return None
    return kind, compression


def _describe(path: str) -> InputFile:
    found = _kind_of(path)
    if found is None:
        raise ArgumentError(
            f"{path} must end in {_endings()}; the first two and .txt also with .gz or .zst "
            "behind. Rename it, or convert it.",
            name="inputs",
            value=path,
        )
    if os.path.islink(path) and not os.path.exists(path):
        raise _leads_nowhere(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise NoDataError(
            f"There is no file {path}, which its data set names.", path=path
        ) from None
    except PermissionError as error:
        raise _refused(path) from error
    if not stat.S_ISREG(status.st_mode):
        raise ArgumentError(
            f"An input must be a file on disk; {path} is a pipe, a device or a socket. Write what "
            "it gives to a file first.",
            name="inputs",
            value=path,
        )
    if not os.access(path, os.R_OK):
        raise _refused(path)
    return InputFile(path, *found, status.st_size, status.st_mtime_ns)


def _leads_nowhere(path: str) -> NoDataError:
    return NoDataError(
        f"An input must lead to a file; the link {path} leads nowhere, or back to itself. Mend it "
        "or remove it.",
        path=path,
    )


def _refused(path: str) -> ArgumentError:
    return ArgumentError(
        f"This user may not read {path}. Change its permissions, or leave it out.",
        name="inputs",
        value=path,
    )


def _endings() -> str:
    return ", ".join(_KINDS)
