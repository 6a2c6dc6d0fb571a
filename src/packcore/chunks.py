"""Chunk files on disk: which there are, and what one holds.

`find_chunks` turns a path, a glob or a list into chunks; a `Chunk` knows its own tokens and
where documents begin in it. Joining chunks into one row of tokens is for `packcore.dataset`.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packcore.checks import check_int
from packcore.errors import ArgumentTypeError, FormatError, MismatchError, NoDataError
from packcore.format import VERSION, ChunkHeader, map_tokens, read_header, read_tokens
from packcore.manifest import ChunkEntry, is_file_of, manifest_path, read_documents, read_manifest
from packcore.protocols import Access
from packcore.rawfiles import list_folder, warm_file

__all__ = ["CHUNK_NAME", "Chunk", "files_of_prefix", "find_chunks", "list_sources"]

CHUNK_NAME = re.compile(r"(?P<prefix>.+)_[0-9]{10}\.bin")
"""How the files of a build are named."""
_MANIFEST_SUFFIX = ".manifest.json"
_SIDECAR_SUFFIX = ".docs.npy"
_SAMPLE_BYTES = 4096
"""Of a chunk without a manifest, what its fingerprint reads at each end."""


class _Described(NamedTuple):
    """What a manifest says of a chunk."""

    manifest: str
    header: ChunkHeader
    entry: ChunkEntry


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk file: the tokens that may be served and where documents begin in them."""

    path: str
    """The file."""
    header: ChunkHeader
    """Its header, checked against the file's size."""
    num_tokens: int
    """Valid tokens; the fill after them is never served."""
    entry: ChunkEntry | None
    """What the manifest says of it; None without a manifest."""
    sep_token: int | None = None
    """The id that ends a document, where the manifest does not know the documents."""
    begins_document: bool = True
    """Whether its first token begins a document, where documents are found by `sep_token`."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored dtype."""
        return self.header.dtype

    @property
    def access(self) -> Access:
        """The tokens lie in the file as they are."""
        return "map"

    @property
    def id_range(self) -> tuple[int | float, int | float] | None:
        """The smallest and the largest valid id, if the manifest knows them."""
        if self.entry is None or self.entry.min_id is None or self.entry.max_id is None:
            return None
        return self.entry.min_id, self.entry.max_id

    @property
    def has_documents(self) -> bool:
        """Whether document boundaries are known."""
        return self._recorded is not None or self.sep_token is not None

    @property
    def num_documents(self) -> int | None:
        """Documents that begin in the chunk, if that is known without reading the tokens."""
        return None if self._recorded is None else self._recorded.num_documents

    @property
    def missing_documents(self) -> str:
        """Why document boundaries are unknown."""
        return f"Where documents begin was not recorded for {self.path}."

    @property
    def _recorded(self) -> ChunkEntry | None:
        """The manifest's entry, if documents were recorded in it."""
        return self.entry if self.entry and self.entry.num_documents is not None else None

    def map(self) -> npt.NDArray[Any]:
        """Returns the valid tokens as a read-only map, `(num_tokens,)`, in the stored dtype."""
        return map_tokens(self.path, self.header)[: self.num_tokens]

    def read(self, start: int, out: npt.NDArray[Any]) -> None:
        """Fills `out`, `(n,)` in the stored dtype, with the tokens from `start` on, unmapped."""
        read_tokens(self.path, self.header, start, out)

    def warm(self) -> None:
        """Asks the operating system to read the file into its cache."""
        warm_file(self.path, 0, self.header.file_bytes)

    def document_starts(self) -> npt.NDArray[np.int64]:
        """Returns where documents begin, `(num_documents,)`, int64, in tokens, ascending."""
        if self._recorded is not None:
            return read_documents(self.path, self._recorded).astype(np.int64)
        (ends,) = np.nonzero(self.map() == self.sep_token)
        starts = ends[ends + 1 < self.num_tokens] + 1
        return np.concatenate(([0], starts)) if self._begins_here else starts

    @property
    def _begins_here(self) -> bool:
        return self.begins_document and self.num_tokens > 0

    def digest(self) -> str:
        """Returns a hash of the content.

        With a manifest it is the manifest's, of every byte. Without, it covers the header and
        both ends of the payload: enough to tell data sets apart, not to find a flipped bit.
        """
        if self.entry is not None:
            return f"{self.entry.sha256} {self.num_tokens}"
        count = min(self.num_tokens, _SAMPLE_BYTES // self.header.dtype.itemsize)
        sample = np.empty(count, self.header.dtype)
        digest = hashlib.sha256(self.header.to_bytes())
        for start in (0, self.num_tokens - count):
            self.read(start, sample)
            digest.update(sample.tobytes())
        return f"{digest.hexdigest()} {self.num_tokens}"


def find_chunks(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    sep_token: int | None = None,
) -> tuple[Chunk, ...]:
    """Finds, opens and compares the chunk files that `source` names.

    Args:
        source: a folder (all its manifests in name order, or all its chunk files if it has no
            manifest), a chunk file, a manifest, a prefix as in `corpus/train`, a glob, or a list
            of them in the order wanted. A manifest stands for its chunks; document sidecars
            are passed over; a file that is named twice is opened once.
        sep_token: the id that ends a document, for chunks whose documents were not recorded.

    Raises:
        NoDataError: nothing is there.
        FormatError: a file is not a chunk, or a manifest does not fit its files.
        MismatchError: two files differ in dtype or chunk_size.
        ArgumentError: `sep_token` does not fit the files' dtype.
        ArgumentTypeError: `source` is not a path and not a list of paths.
    """
    named: dict[str, _Described | None] = {}
    paths = [os.path.abspath(path) for path in _expand(source)]
    for path in paths:
        if path.endswith(_MANIFEST_SUFFIX):
            named.update(_described(path))
        elif not path.endswith(_SIDECAR_SUFFIX):
            named.setdefault(path, None)
    if not named:
        raise _nothing_in(source, paths)
    for path in [path for path, described in named.items() if described is None]:
        if named[path] is None:  # else a manifest found for an earlier chunk knows it
            beside = _manifest_beside(path)
            found = dict(_described(beside)) if beside else {}
            if beside and path not in found:
                raise _left_over(path, beside)
            named.update((other, found[other]) for other in found if other in named)
    chunks = tuple(_open(path, described) for path, described in named.items())
    for chunk in chunks[1:]:
        _compare(chunks[0].path, chunks[0].header, chunk)
    if sep_token is None:
        return chunks
    _check_separator(sep_token, chunks[0].header.dtype)
    return tuple(_with_separator(chunks, sep_token))


def _nothing_in(source: object, paths: list[str]) -> NoDataError:
    manifests = [path for path in paths if path.endswith(_MANIFEST_SUFFIX)]
    if not manifests:
        return NoDataError(f"There is no chunk in {source!r}. Name a folder with .bin files in it.")
    return NoDataError(
        f"The corpus is empty: {', '.join(manifests)} lists no chunk. Build it again with "
        "documents in it, or leave it out.",
        path=manifests[0],
    )


def _expand(source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Returns the paths that `source` names: chunk files, manifests, sidecars."""
    if isinstance(source, str | os.PathLike):
        return _expand_path(os.fsdecode(source))
    paths = [found for path in list_sources(source) for found in _expand_path(path)]
    if not paths:
        raise NoDataError("The list of files is empty; name at least one chunk file.")
    return paths


def list_sources(source: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Returns a list of paths as strings.

    Raises:
        ArgumentTypeError: it is no list of paths, or a set, which has no order.
    """
    if isinstance(source, set | frozenset):
        raise ArgumentTypeError(
            "source must be a list, in the order wanted; got a set, whose order differs from run "
            "to run.",
            name="source",
            value=source,
        )
    try:
        return [os.fsdecode(path) for path in source]
    except TypeError:
        raise ArgumentTypeError(
            f"source must be a path, a glob or a list of paths; got {source!r}.",
            name="source",
            value=source,
        ) from None


def _expand_path(path: str) -> list[str]:
    if os.path.isdir(path):
        return _expand_folder(path)
    if os.path.exists(path):
        return [path]
    matches = files_of_prefix(path) or sorted(glob.glob(path, recursive=True))
    if not matches:
        what = "matches the glob" if glob.has_magic(path) else "is at"
        raise NoDataError(f"No file {what} {path}. Check the path.", path=path)
    return matches


def files_of_prefix(path: str) -> list[str]:
    """Returns the manifest of a prefix such as `corpus/train`, else its chunk files, if any."""
    if os.path.exists(path + _MANIFEST_SUFFIX):
        return [path + _MANIFEST_SUFFIX]
    folder, prefix = os.path.split(path)
    if not os.path.isdir(folder or "."):
        return []
    names = sorted(name for name in list_folder(folder or ".") if is_file_of(prefix, name))
    return [os.path.join(folder, name) for name in names if name.endswith(".bin")]


def _expand_folder(folder: str) -> list[str]:
    names = sorted(list_folder(folder))
    manifests = [name for name in names if name.endswith(_MANIFEST_SUFFIX)]
    chunks = [name for name in names if name.endswith(".bin")]
    if manifests:
        prefixes = {name.removesuffix(_MANIFEST_SUFFIX) for name in manifests}
        matches = [match for match in map(CHUNK_NAME.fullmatch, chunks) if match]
        chunks = [match.string for match in matches]
        for match in matches:
            if match["prefix"] not in prefixes:
                path = os.path.join(folder, match.string)
                raise FormatError(
                    f"{path} is in no manifest of its folder: a build stopped before its end. "
                    f"Build {match['prefix']!r} again with overwrite=True, or open the files "
                    "that you want by a list.",
                    path=path,
                )
    elif not chunks:
        raise NoDataError(
            f"The folder {folder} has no chunk file (.bin) and no manifest. Nor has it a file of "
            "another known format; if there are folders in it, name one of them.",
            path=folder,
        )
    # The manifests stand for their chunks; a chunk that none of them knows is refused later.
    return [os.path.join(folder, name) for name in (*manifests, *chunks)]


def _described(path: str) -> Iterator[tuple[str, _Described]]:
    """Yields each chunk's path and what the manifest at `path` says of it."""
    manifest = read_manifest(path)
    header = ChunkHeader(VERSION, manifest.dtype, manifest.chunk_size)
    for entry in manifest.chunks:
        yield os.path.join(os.path.dirname(path), entry.file), _Described(path, header, entry)


def _manifest_beside(path: str) -> str | None:
    match = CHUNK_NAME.fullmatch(os.path.basename(path))
    beside = match and manifest_path(os.path.dirname(path), match["prefix"])
    return beside if beside and os.path.exists(beside) else None


def _left_over(path: str, manifest: str) -> FormatError:
    prefix = os.path.basename(manifest).removesuffix(_MANIFEST_SUFFIX)
    return FormatError(
        f"{path} is not one of the chunks of {manifest}: it is left from another build. Delete "
        f"it, or build {prefix!r} again with overwrite=True.",
        path=path,
    )


def _open(path: str, described: _Described | None) -> Chunk:
    header = read_header(path)
    if described is None:
        return Chunk(path, header, header.chunk_size, None)
    chunk = Chunk(path, header, described.entry.num_tokens, described.entry)
    _compare(described.manifest, described.header, chunk)
    return chunk


def _compare(first: str, header: ChunkHeader, chunk: Chunk) -> None:
    for what in ("dtype", "chunk_size"):
        expected, got = getattr(header, what), getattr(chunk.header, what)
        if expected != got:
            raise MismatchError(
                f"{chunk.path} has {what} {got}, but {first} says {expected}. Open them as two "
                "data sets and mix them with packcore.Mixture, or build them again alike.",
                path=chunk.path,
                expected=expected,
                got=got,
            )


def _check_separator(sep_token: int, dtype: np.dtype[Any]) -> None:
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        check_int(
            "sep_token", sep_token, low=int(limits.min), high=int(limits.max), unit=dtype.name
        )


def _with_separator(chunks: tuple[Chunk, ...], sep_token: int) -> Iterator[Chunk]:
    """Yields the chunks, those without recorded documents told where documents begin.

    The last chunk of a prefix loses the separators at its end, except the first of them: a
    build without a manifest fills its last chunk so, and fill is no text.
    """
    after_end = True
    for chunk, following in itertools.zip_longest(chunks, chunks[1:]):
        if chunk.num_documents is not None:
            yield chunk
            after_end = True
            continue
        tokens = chunk.map()
        is_last = following is None or _prefix(following.path) != _prefix(chunk.path)
        num_tokens = chunk.num_tokens
        if chunk.entry is None and is_last:
            num_tokens = _strip_fill(tokens, sep_token)
        yield dataclasses.replace(
            chunk, num_tokens=num_tokens, sep_token=sep_token, begins_document=after_end
        )
        if is_last or len(tokens):  # a chunk without a valid token changes nothing
            after_end = is_last or bool(tokens[-1] == sep_token)


def _prefix(path: str) -> str:
    match = CHUNK_NAME.fullmatch(os.path.basename(path))
    return os.path.join(os.path.dirname(path), match["prefix"]) if match else path


def _strip_fill(tokens: npt.NDArray[Any], sep_token: int) -> int:
    """Returns how many tokens stand before the fill: 0 if all of them are separators."""
    (others,) = np.nonzero(tokens != sep_token)
    return min(int(others[-1]) + 2, len(tokens)) if len(others) else 0
