"""The manifest of a prefix: which chunk files belong together and what is in them.

It says what the files are called and reads and writes `{prefix}.manifest.json` and the
document sidecars. Making the tokens is for `packcore.builder`, serving them for
`packcore.dataset`.

| file                           | what                                                       |
| ------------------------------ | ---------------------------------------------------------- |
| `{prefix}.manifest.json`       | one a prefix, written last                                 |
| `{prefix}_0000000000.bin`      | a chunk, LITPKDS version 1                                 |
| `{prefix}_0000000000.docs.npy` | where each document that begins in the chunk does, in tokens |
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
import operator
import os
import re
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from packcore.checks import check_int
from packcore.errors import ArgumentError, ArgumentTypeError, FormatError, NoDataError
from packcore.files import write_whole
from packcore.format import code
from packcore.rawfiles import opened

__all__ = [
    "ChunkEntry",
    "Manifest",
    "check_prefix",
    "chunk_path",
    "documents_path",
    "encode_documents",
    "is_file_of",
    "list_files",
    "manifest_path",
    "read_documents",
    "read_manifest",
    "write_manifest",
]

_FORMAT = "packcore-manifest"
_VERSION = 1

_NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '<u(?P<itemsize>[48])', 'fortran_order': False, "
    rb"'shape': \((?P<count>[0-9]{1,18}),\), \} *\n",
    re.DOTALL,
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TOTALS = ("num_chunks", "num_tokens", "num_documents", "fingerprint")
_OPTIONAL = ("provenance",)
"""Fields that a manifest may lack: packcore 0.1.0 wrote none, and reads a file that has them."""
_Record = TypeVar("_Record", "ChunkEntry", "Manifest")


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """What the manifest says of one chunk file.

    Raises:
        ArgumentError: a value breaks its rule.
        ArgumentTypeError: a value is of a wrong type.
    """

    file: str
    """The file's name, in the manifest's folder."""
    num_tokens: int
    """Valid tokens; the fill after them is never served."""
    num_documents: int | None
    """Documents that begin in the chunk; None if nobody recorded where documents begin."""
    sha256: str
    """Of the whole file, in hexadecimal: what `sha256sum` prints."""
    min_id: int | float | None
    """The smallest valid token; None if there is none, or if it is not finite."""
    max_id: int | float | None
    """The largest valid token; None if there is none, or if it is not finite."""
    documents_sha256: str | None = None
    """Of the sidecar, if there is one."""

    def __post_init__(self) -> None:
        _check_name("file", self.file)
        check_int("num_tokens", self.num_tokens, low=0)
        if self.num_documents is not None:
            check_int("num_documents", self.num_documents, low=0)
        _check_sha256("sha256", self.sha256)
        if self.documents_sha256 is not None:
            _check_sha256("documents_sha256", self.documents_sha256)
        _check_id("min_id", self.min_id)
        _check_id("max_id", self.max_id)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Which chunk files a prefix has, in order, and what they have in common.

    Raises:
        ArgumentError: a value breaks its rule, or the chunks contradict it or each other.
        ArgumentTypeError: a value is of a wrong type.

    Examples:
        >>> entry = ChunkEntry("web_0000000000.bin", 900, 3, "0" * 64, 0, 31999)
        >>> web = Manifest("web", np.dtype("uint16"), 1024, 1, (entry,), vocab_size=32000)
        >>> web.num_tokens, web.num_documents, web.fingerprint[:8]
        (900, 3, '5a52f469')
    """

    prefix: str
    """What the files' names begin with."""
    dtype: np.dtype[Any]
    """The tokens' dtype on disk."""
    chunk_size: int
    """Tokens a chunk file, fill included."""
    sep_token: int
    """The id that fills the tail of a chunk, and stands between documents if it was asked for."""
    chunks: tuple[ChunkEntry, ...]
    """The chunk files, in the order of their tokens."""
    vocab_size: int | None = None
    """Ids are below it; None if nobody said."""
    tokenizer: str | None = None
    """The tokenizer's name, as the builder was told."""
    tokenizer_hash: str | None = None
    """The tokenizer's hash, as the builder was told."""
    provenance: dict[str, Any] | None = None
    """How the corpus was made, as the builder was told: a JSON object; None if nobody said."""

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        if not isinstance(self.dtype, np.dtype):
            raise _wrong_type("dtype", self.dtype, "a NumPy dtype")
        code(self.dtype)
        check_int("chunk_size", self.chunk_size, low=1, unit="tokens")
        check_int("sep_token", self.sep_token, low=-(2**63))
        if self.vocab_size is not None:
            check_int("vocab_size", self.vocab_size, low=1, unit="ids")
        for name in ("tokenizer", "tokenizer_hash"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise _wrong_type(name, value, "a string or None")
        if not isinstance(self.provenance, dict | None):
            raise _wrong_type("provenance", self.provenance, "a dict or None")
        _check_chunks(self.chunks, self.chunk_size)

    @property
    def num_chunks(self) -> int:
        """Chunk files."""
        return len(self.chunks)

    @property
    def num_tokens(self) -> int:
        """Valid tokens of all chunks."""
        return sum(entry.num_tokens for entry in self.chunks)

    @property
    def num_documents(self) -> int | None:
        """Documents of all chunks; None if nobody recorded where documents begin."""
        counts = [entry.num_documents for entry in self.chunks if entry.num_documents is not None]
        return sum(counts) if len(counts) == len(self.chunks) else None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hexadecimal.

        It covers the dtype and each chunk's bytes, valid tokens and documents, but no name of a
        file: a corpus that was moved or renamed keeps it.
        """
        digest = hashlib.sha256(f"{_FORMAT} {self.dtype.name}\n".encode())
        for entry in self.chunks:
            documents = (entry.num_documents, entry.documents_sha256)
            digest.update(f"{entry.sha256} {entry.num_tokens} {documents}\n".encode())
        return digest.hexdigest()


def check_prefix(prefix: object) -> str:
    r"""Returns `prefix` if files can be named by it.

    Raises:
        ArgumentTypeError: it is not a string.
        ArgumentError: it is empty, begins with a dot, or has a path separator in it.

    Examples:
        >>> check_prefix("web/code")
        Traceback (most recent call last):
        packcore.errors.ArgumentError: prefix must be a plain name: not empty, no leading dot,
        no / or \ in it; got 'web/code'.
    """
    return _check_name("prefix", prefix)


def manifest_path(folder: str | os.PathLike[str], prefix: str) -> str:
    """Returns where the manifest of `prefix` is.

    Examples:
        >>> manifest_path("corpus", "web")
        'corpus/web.manifest.json'
    """
    return os.path.join(folder, f"{prefix}.manifest.json")


def chunk_path(folder: str | os.PathLike[str], prefix: str, chunk_index: int) -> str:
    """Returns where chunk `chunk_index` of `prefix` is, counted from 0.

    Examples:
        >>> chunk_path("corpus", "web", 7)
        'corpus/web_0000000007.bin'
    """
    return os.path.join(folder, f"{prefix}_{chunk_index:010d}.bin")


def documents_path(chunk_path: str | os.PathLike[str]) -> str:
    """Returns where the document sidecar of a chunk file is.

    Examples:
        >>> documents_path("corpus/web_0000000007.bin")
        'corpus/web_0000000007.docs.npy'
    """
    return os.fspath(chunk_path).removesuffix(".bin") + ".docs.npy"


def is_file_of(prefix: str, name: str) -> bool:
    """Says whether a file is named as the manifest, a chunk or a sidecar of exactly `prefix`.

    Examples:
        >>> is_file_of("web", "web_0000000000.bin"), is_file_of("web", "web_code_0000000000.bin")
        (True, False)
    """
    rest = name.removeprefix(prefix)
    pattern = r"\.manifest\.json|_[0-9]{10}\.(bin|docs\.npy)"
    return rest != name and re.fullmatch(pattern, rest) is not None


def list_files(folder: str | os.PathLike[str], prefix: str) -> list[str]:
    """Returns the paths of the files of exactly `prefix` in `folder`, the manifest first.

    Empty if there is none, or no folder.
    """
    try:
        names = sorted(
            path.name for path in Path(folder).iterdir() if is_file_of(prefix, path.name)
        )
    except FileNotFoundError:
        return []
    return [os.path.join(folder, name) for name in names]


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Reads a manifest and checks every field. The chunk files are not looked at.

    Raises:
        NoDataError: there is no such file, or it is a folder.
        FormatError: it is not a manifest of version 1, a field is missing or of a wrong type,
            or the totals or the fingerprint are not what the chunks add up to.
    """
    path = os.fspath(path)
    record = _read_json(path)
    for field, expected in (("format", _FORMAT), ("version", _VERSION)):
        _check_field(path, field, record.get(field), expected)
    chunks = record.get("chunks")
    if not isinstance(chunks, list):
        raise _format_error(path, "chunks", "a list", chunks)
    entries = tuple(
        _build(path, f"chunks[{index}].", ChunkEntry, chunk) for index, chunk in enumerate(chunks)
    )
    dtype = _parse_dtype(path, record.get("dtype"))
    manifest = _build(path, "", Manifest, {**record, "dtype": dtype, "chunks": entries})
    for field in _TOTALS:
        _check_field(path, field, record.get(field), getattr(manifest, field))
    return manifest


def write_manifest(folder: str | os.PathLike[str], manifest: Manifest) -> str:
    """Writes `{prefix}.manifest.json`, whole or not at all; replaces one that is there.

    Returns:
        The file's path.

    Raises:
        WriteError: the operating system refused.
    """
    record: dict[str, Any] = {"format": _FORMAT, "version": _VERSION}
    for field in dataclasses.fields(Manifest):
        if field.name not in ("chunks", *_OPTIONAL):
            record[field.name] = getattr(manifest, field.name)
    record["dtype"] = manifest.dtype.name
    record.update({field: getattr(manifest, field) for field in _TOTALS})
    record.update({name: getattr(manifest, name) for name in _OPTIONAL if getattr(manifest, name)})
    record["chunks"] = [dataclasses.asdict(entry) for entry in manifest.chunks]
    text = json.dumps(record, indent=1, default=operator.index, allow_nan=False) + "\n"
    path = manifest_path(folder, manifest.prefix)
    write_whole(path, text.encode())
    return path


def encode_documents(starts: npt.NDArray[np.integer[Any]], chunk_size: int) -> bytes:
    """Returns the bytes of a document sidecar.

    Args:
        starts: `(num_documents,)`, any integer dtype: where documents begin in the chunk.
        chunk_size: tokens of the chunk; the sidecar is uint32, or uint64 above 2**32 - 1.
    """
    buffer = io.BytesIO()
    np.save(buffer, starts.astype("<u4" if chunk_size < 2**32 else "<u8"), allow_pickle=False)
    return buffer.getvalue()


def read_documents(chunk_path: str | os.PathLike[str], entry: ChunkEntry) -> npt.NDArray[Any]:
    """Reads where documents begin in a chunk, from the sidecar beside it.

    A document that runs over from the chunk before has no start here. Two equal starts are an
    empty document; one at the chunk's last valid token's end is an empty one too.

    Args:
        chunk_path: the chunk file.
        entry: what the manifest says of it.

    Returns:
        `(num_documents,)`, uint32 or uint64, read-only, ascending, each in [0, num_tokens].

    Raises:
        NoDataError: there is no sidecar, or the manifest says that none was written.
        FormatError: the sidecar is foreign, damaged, or not the one that the manifest means.
    """
    path = documents_path(chunk_path)
    if entry.num_documents is None:
        raise NoDataError(
            f"{os.fspath(chunk_path)} was built without recording documents. Find them by their "
            "separator, or build again with add_document.",
            path=path,
        )
    starts = _read_npy(path)
    if len(starts) != entry.num_documents:
        raise _format_error(path, "the number of documents", entry.num_documents, len(starts))
    if np.any(starts[1:] < starts[:-1]):
        index = int(np.argmax(starts[1:] < starts[:-1])) + 1
        rule = f"at least {starts[index - 1]}, the start before it"
        raise _format_error(path, f"start {index}", rule, int(starts[index]))
    if len(starts) and starts[-1] > entry.num_tokens:
        rule = f"at most {entry.num_tokens}, the chunk's valid tokens"
        raise _format_error(path, f"start {len(starts) - 1}", rule, int(starts[-1]))
    return starts


def _read(path: str, missing: str) -> bytes:
    """Returns the bytes of a file; `missing` is what to say if there is none."""
    if os.path.isdir(path) or not os.path.exists(path):
        raise NoDataError(missing, path=path)
    with opened(path) as file:
        return file.read()


def _read_npy(path: str) -> npt.NDArray[Any]:
    """Reads what `encode_documents` wrote, and nothing else that np.load would make sense of."""
    content = _read(
        path,
        f"There is no file {path}; the manifest says that there is one. Copy it as well, or build "
        "again.",
    )
    match = _NPY_HEADER.match(content)
    if match is None:
        rule = "that of a .npy file of 1-D uint32 or uint64"
        raise _format_error(path, "the header", rule, content[:128])
    size = match.end() + int(match["count"]) * int(match["itemsize"])
    if size != len(content):
        raise _format_error(path, "the file's size", f"{size} bytes", len(content))
    return np.frombuffer(content, f"<u{match['itemsize'].decode()}", offset=match.end())


def _read_json(path: str) -> dict[str, Any]:
    content = _read(path, f"There is no manifest {path}.")
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number too long
        raise FormatError(f"{path} is not a manifest: {error}.", path=path) from error
    if not isinstance(record, dict):
        raise _format_error(path, "content", "a JSON object", type(record).__name__)
    return record


def _build(path: str, where: str, kind: type[_Record], record: object) -> _Record:
    """Makes a `ChunkEntry` or a `Manifest` of a JSON object, every field of it given."""
    if not isinstance(record, dict):
        raise _format_error(path, where.rstrip("."), "a JSON object", record)
    names = [field.name for field in dataclasses.fields(kind)]
    for name in names:
        if name not in record and name not in _OPTIONAL:
            raise FormatError(
                f"{path}: the field {where}{name} is missing. Build it again.", path=path
            )
    try:
        return kind(**{name: record[name] for name in names if name in record})
    except (ArgumentError, ArgumentTypeError) as error:
        raise FormatError(
            f"{path}: {where}{error} Build it again.", path=path, got=error.value
        ) from None


def _parse_dtype(path: str, name: object) -> np.dtype[Any]:
    try:
        code(name if isinstance(name, str) else None)
    except ArgumentError as error:
        raise FormatError(f"{path}: {error}", path=path, got=name) from None
    return np.dtype(str(name)).newbyteorder("<")


def _check_field(path: str, field: str, got: object, expected: object) -> None:
    if got != expected or type(got) is not type(expected):
        raise _format_error(path, field, repr(expected), got)


def _format_error(path: str, what: str, expected: object, got: object) -> FormatError:
    return FormatError(
        f"{path}: {what} must be {expected}; got {reprlib.repr(got)}. Copy or build it again.",
        path=path,
        expected=expected,
        got=got,
    )


def _wrong_type(name: str, value: object, expected: str) -> ArgumentTypeError:
    message = f"{name} must be {expected}; got {value!r} ({type(value).__name__})."
    return ArgumentTypeError(message, name=name, value=value)


def _check_name(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong_type(name, value, "a string")
    if not value or value.startswith(".") or any(char in value for char in "/\\\0"):
        raise ArgumentError(
            f"{name} must be a plain name: not empty, no leading dot, no / or \\ in it; got "
            f"{value!r}.",
            name=name,
            value=value,
        )
    return value


def _check_sha256(name: str, value: object) -> None:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ArgumentError(
            f"{name} must be 64 hexadecimal digits; got {value!r}.", name=name, value=value
        )


def _check_id(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer):
        raise _wrong_type(name, value, "a number or None")
    if not math.isfinite(value):
        raise ArgumentError(f"{name} must be finite; got {value}.", name=name, value=value)


def _check_chunks(chunks: object, chunk_size: int) -> None:
    if not isinstance(chunks, tuple) or not all(isinstance(entry, ChunkEntry) for entry in chunks):
        raise _wrong_type("chunks", chunks, "a tuple of ChunkEntry")
    for index, entry in enumerate(chunks):
        name = f"chunks[{index}].num_tokens"
        check_int(name, entry.num_tokens, low=0, high=chunk_size, unit="tokens")
    if len({entry.file for entry in chunks}) < len(chunks):
        raise ArgumentError("chunks must be different files.", name="chunks", value=chunks)
    if len({entry.num_documents is None for entry in chunks}) > 1:
        raise ArgumentError(
            "num_documents must be None for all chunks or for none.", name="chunks", value=chunks
        )
