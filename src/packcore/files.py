"""Writes files whole or not at all.

A file is written under a temporary name in its own folder, fsynced and renamed, so that a
process killed at any moment leaves nothing half written under a final name. Which files there
are and what they are called is for `packcore.manifest`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from packcore.errors import WriteError

__all__ = [
    "check_writable",
    "remove_files",
    "remove_leftovers",
    "staged",
    "sync_folder",
    "write_whole",
]

# A leading dot hides it from glob(prefix + "*"); the random part keeps two threads apart.
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>[0-9]{1,10})\.[0-9a-f]{8}\.tmp", re.DOTALL)

_in_use: set[Path] = set()
"""The temporary files that this process is writing."""

_WAY_OUT = {
    errno.ENOSPC: " Free some space on that disk, or choose a folder on another one.",
    errno.EDQUOT: " Your quota there is used up: free some space, or choose another folder.",
    errno.EFBIG: " Use a smaller chunk_size, or a file system that takes larger files.",
    errno.EACCES: " Choose a folder that you may write to.",
    errno.EPERM: " Choose a folder that you may write to.",
    errno.EROFS: " Choose a folder that can be written to.",
    errno.EMFILE: " Close some files, or raise the limit (ulimit -n).",
}


def write_whole(path: str | os.PathLike[str], *parts: bytes | memoryview) -> None:
    """Writes `parts`, one behind the other, as the file `path`; replaces one that is there.

    Args:
        path: the file's final name.
        *parts: what goes in, contiguous.

    Raises:
        WriteError: the operating system refused. The temporary file is gone and `path` is as
            it was, or whole if it was only the folder that could not be fsynced.
    """
    with staged(path, *parts):
        pass


@contextlib.contextmanager
def staged(path: str | os.PathLike[str], *parts: bytes | memoryview) -> Iterator[None]:
    """Writes like `write_whole`, but gives the file its final name when the block is left.

    Its bytes are on disk when the block is entered. If the block raises, there is no file.

    Raises:
        WriteError: as `write_whole`.
    """
    path = Path(path)
    temporary = _temporary_path(path)
    _in_use.add(temporary)
    try:
        try:
            with open(temporary, "xb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _write_error("write", path, error) from error
        yield
        try:
            temporary.replace(path)
            sync_folder(path.parent)
        except OSError as error:
            raise _write_error("write", path, error) from error
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    finally:
        _in_use.discard(temporary)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Makes the folder of `path` if there is none, and shows that `path` can be written there.

    It is asked before the work starts, by writing and removing an empty temporary file: root
    and network file systems do not go by the permission bits.

    Raises:
        WriteError: the operating system refused.
    """
    path = Path(path)
    temporary = _temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
        temporary.unlink()
    except OSError as error:
        raise _write_error("write", path, error) from error


def remove_files(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Removes files and waits until the disk knows it; missing ones are fine.

    Raises:
        WriteError: the operating system refused; the files before that one are gone.
    """
    folders = set()
    for path in map(Path, paths):
        folders.add(path.parent)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _write_error("remove", path, error) from error
    for folder in folders:
        try:
            sync_folder(folder)
        except OSError as error:
            raise _write_error("remove files of", folder, error) from error


def remove_leftovers(folder: str | os.PathLike[str], is_ours: Callable[[str], bool]) -> None:
    """Removes the temporary files of processes that were killed.

    Args:
        folder: where to look.
        is_ours: says of a final name whether its temporary may go. One that a process still
            writes stays; of this process's number, one that this process does not write goes.
    """
    in_use = {path.name for path in list(_in_use)}
    for path in Path(folder).iterdir():
        match = _TEMPORARY.fullmatch(path.name)
        if not match or not is_ours(match["name"]) or path.name in in_use:
            continue
        if not _is_alive(int(match["pid"])):
            with contextlib.suppress(OSError):  # it is in nobody's way
                path.unlink()


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def _is_alive(pid: int) -> bool:
    # On Windows signal 0 is Ctrl-C; there, a file that is in use cannot be removed anyway.
    if pid == os.getpid() or os.name == "nt":
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes a rename or a removal last through a power cut, where the file system can."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # what FUSE and CIFS say to it
            raise
    finally:
        os.close(descriptor)


def _write_error(verb: str, path: Path, error: OSError) -> WriteError:
    reason = error.strerror or str(error)
    way_out = _WAY_OUT.get(error.errno or 0, "")
    return WriteError(
        f"Could not {verb} {path}: {reason}. Files that were finished earlier are whole.{way_out}",
        path=str(path),
        errno=error.errno,
    )
