"""The journal of a build: what is finished, so that the same build can go on after a kill.

`{prefix}.build.jsonl` lies beside the chunks while a build is not finished. Its first line says
what is built from what; each further line is a full chunk that is on disk, and a place in the
inputs from which the rest can be made. A line is written after its chunk is on disk, and is on
disk itself before the next chunk is begun. A line that was cut short by a kill counts for nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
from dataclasses import dataclass
from typing import IO, Any, Self

from packcore.errors import FormatError, OverwriteError, StateError, WriteError
from packcore.files import remove_files, sync_folder
from packcore.manifest import ChunkEntry
from packcore.pipeline.work import Cursor

__all__ = ["Journal", "Mark"]

_FORMAT = "packcore-build"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the inputs, and what of the corpus comes before it."""

    cursor: Cursor = Cursor()  # noqa: RUF009 - frozen
    num_tokens: int = 0
    num_documents: int = 0
    num_skipped: int = 0
    """Lines, rows and files that were skipped because they are broken."""
    skipped: tuple[str, ...] = ()
    """The first of them: where and why."""


class Journal:
    """The journal of one prefix, open and locked; no second process can build the prefix.

    Args:
        folder: where the corpus is.
        prefix: of the corpus.

    Attributes:
        header: what is built from what; None for a build that is new.
        entries: the chunks that are finished.
        mark: from where the rest is made.

    Raises:
        OverwriteError: another process builds this prefix.
        FormatError: this is no journal, or one of another version.
        WriteError: the operating system refused.
    """

    def __init__(self, folder: str, prefix: str) -> None:
        self.path = os.path.join(folder, f"{prefix}.build.jsonl")
        self.header: dict[str, Any] | None = None
        self.entries: list[ChunkEntry] = []
        self.mark = Mark()
        self._file = _open_locked(self.path)
        try:
            self._load()
        except BaseException:
            self._file.close()
            raise

    def _load(self) -> None:
        at = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise FormatError(
                    f"{self.path} is not the journal of a build, at byte {at}: {error}. Remove it "
                    "and build anew with overwrite=True.",
                    path=self.path,
                    offset=at,
                ) from error
            at += len(line)
        self._file.seek(at)
        self._file.truncate()

    def _take(self, record: dict[str, Any]) -> None:
        if self.header is None:
            got = record["format"], record["version"]
            if got != (_FORMAT, _VERSION):
                raise ValueError(f"format and version must be {_FORMAT!r}, {_VERSION}; got {got}")
            self.header = record
            return
        mark = record["mark"]
        cursor, skipped = Cursor(**mark.pop("cursor")), tuple(mark.pop("skipped"))
        self.mark = Mark(cursor=cursor, skipped=skipped, **mark)
        self.entries.append(ChunkEntry(**record["chunk"]))

    def begin(self, content: dict[str, Any]) -> None:
        """Writes the first line of a new journal.

        Raises:
            WriteError: the operating system refused.
        """
        self.header = {"format": _FORMAT, "version": _VERSION, **content}
        self._write(self.header)
        try:
            sync_folder(os.path.dirname(self.path) or ".")
        except OSError as error:
            raise _refused(self.path, error) from error

    def check(self, content: dict[str, Any]) -> None:
        """Shows that the journal is of a build of `content`.

        Raises:
            StateError: it is not; the first field that differs is named.
        """
        header = self.header or {}
        for field, expected in content.items():
            got = header.get(field)
            if got != expected:
                what = _difference(field, got, expected)
                raise StateError(
                    f"{self.path} is of a build that was stopped, and {what}. Use what it was "
                    "begun with to go on, or overwrite=True to build anew.",
                    field=field,
                    expected=got,
                    got=expected,
                )

    def add(self, entry: ChunkEntry, mark: Mark) -> None:
        """Records a full chunk that is on disk, and a mark that is not behind its end.

        Raises:
            WriteError: the operating system refused.
        """
        record = {"chunk": dataclasses.asdict(entry), "mark": dataclasses.asdict(mark)}
        self._write(record)
        self.entries.append(entry)
        self.mark = mark

    def _write(self, record: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _refused(self.path, error) from error

    def clear(self) -> None:
        """Forgets everything: the build begins anew.

        Raises:
            WriteError: the operating system refused.
        """
        self.header, self.entries, self.mark = None, [], Mark()
        try:
            self._file.seek(0)
            self._file.truncate()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _refused(self.path, error) from error

    def remove(self) -> None:
        """Removes the file: the build is finished, or has not begun.

        Raises:
            WriteError: the operating system refused.
        """
        remove_files([self.path])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # what could not be written was told already
            self._file.close()  # and with it the lock


def _difference(field: str, got: Any, expected: Any) -> str:
    """Says how a build differs from the one that was stopped."""
    if field != "inputs" or not isinstance(got, list):
        return f"its {field} was {got!r}, not {expected!r}"
    for old, new in zip(got, expected, strict=False):
        if old[0] != new[0]:
            return f"its input {old[0]} is now {new[0]}"
        if old != new:
            return f"its input {old[0]} has changed since"
    return f"it had {len(got)} inputs, not {len(expected)}"


def _open_locked(path: str) -> IO[bytes]:
    """Opens the journal, made if there is none, and locks it."""
    while True:
        try:
            file = open(path, "a+b")  # noqa: SIM115 - the caller closes it
        except OSError as error:
            raise _refused(path, error) from error
        try:
            _lock(file, path)
            if _is_at(file, path):
                file.seek(0)
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # another build has just finished and removed it


def _lock(file: IO[bytes], path: str) -> None:
    """Locks a file as long as it is open; the system frees the lock of a process that is killed."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OverwriteError(
            f"Another process is building this prefix: it holds {path}. Wait for it, or choose "
            "another prefix or folder.",
            path=path,
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS):  # no locks there
            raise


def _is_at(file: IO[bytes], path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _refused(path: str, error: OSError) -> WriteError:
    return WriteError(
        f"Could not write {path}: {error.strerror or error}. What is finished is kept; see to the "
        "disk, and the same build goes on.",
        path=path,
        errno=error.errno,
    )
