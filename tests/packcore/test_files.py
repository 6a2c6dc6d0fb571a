import errno
import os
import subprocess
import sys

import pytest

from packcore import files
from packcore.errors import WriteError
from packcore.files import check_writable, remove_files, remove_leftovers, write_whole


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_parts_stand_one_behind_the_other(tmp_path):
    write_whole(tmp_path / "x", b"one", memoryview(b"two"), b"")
    assert (tmp_path / "x").read_bytes() == b"onetwo"
    assert names(tmp_path) == ["x"]


def test_a_file_that_is_there_is_replaced(tmp_path):
    (tmp_path / "x").write_bytes(b"before")
    write_whole(tmp_path / "x", b"after")
    assert (tmp_path / "x").read_bytes() == b"after"


def test_a_relative_name_goes_into_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_writable("x")
    write_whole("x", b"here")
    assert names(tmp_path) == ["x"]
    remove_files(["x", "y"])
    assert names(tmp_path) == []


def test_file_and_folder_are_fsynced_and_the_rename_stands_between(tmp_path, monkeypatch):
    seen = []
    fsync = os.fsync

    def spy(descriptor):
        seen.append((os.path.isdir(f"/dev/fd/{descriptor}"), (tmp_path / "x").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    write_whole(tmp_path / "x", b"1")
    assert seen == [(False, False), (True, True)]


def refuse(number):
    def raising(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    return raising


REFUSALS = {
    errno.ENOSPC: "No space left on device. Files that were finished earlier are whole. Free some",
    errno.EDQUOT: "Your quota there is used up: free some space, or choose another folder.",
    errno.EROFS: "Read-only file system. Files that were finished earlier are whole. Choose a fol",
    errno.EACCES: "Permission denied. Files that were finished earlier are whole. Choose a folder",
    errno.EFBIG: "Use a smaller chunk_size, or a file system that takes larger files.",
    errno.EMFILE: "Close some files, or raise the limit (ulimit -n).",
    errno.EIO: "Files that were finished earlier are whole.",
}


@pytest.mark.parametrize("number", REFUSALS)
def test_what_the_system_refuses_is_told_with_the_way_out(tmp_path, monkeypatch, number):
    (tmp_path / "x").write_bytes(b"before")
    monkeypatch.setattr(os, "fsync", refuse(number))
    with pytest.raises(WriteError) as caught:
        write_whole(tmp_path / "x", b"after")
    assert str(caught.value).startswith(f"Could not write {tmp_path / 'x'}: {os.strerror(number)}.")
    assert REFUSALS[number] in str(caught.value)
    assert (caught.value.path, caught.value.errno) == (str(tmp_path / "x"), number)
    assert (tmp_path / "x").read_bytes() == b"before"
    assert names(tmp_path) == ["x"]


def test_a_folder_that_cannot_be_fsynced_is_no_fault(tmp_path, monkeypatch):
    fsync = os.fsync

    def pick(descriptor):
        if os.path.isdir(f"/dev/fd/{descriptor}"):
            refuse(errno.EINVAL)()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", pick)
    write_whole(tmp_path / "x", b"1")
    assert (tmp_path / "x").read_bytes() == b"1"


def test_an_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupt(_descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "x", b"1")
    assert names(tmp_path) == []


def test_a_folder_is_made_and_tried(tmp_path):
    check_writable(tmp_path / "a" / "b" / "x")
    assert names(tmp_path / "a" / "b") == []


def test_a_folder_that_is_a_file_cannot_be_written_to(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(WriteError, match=r"Could not write .*/a/x: ") as caught:
        check_writable(tmp_path / "a" / "x")
    assert caught.value.errno in (errno.EEXIST, errno.ENOTDIR)


def test_a_file_that_cannot_be_removed_is_named(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(WriteError, match=r"Could not remove .*/x: ") as caught:
        remove_files([tmp_path / "x"])
    assert caught.value.path == str(tmp_path / "x")


@pytest.fixture
def dead_pid():
    """The number of a process that has just ended."""
    run = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    return int(run.stdout)


def test_leftovers_of_dead_processes_go_and_only_ours(tmp_path, dead_pid):
    alive = os.getppid()
    ours = [f".x.{dead_pid}.0123abcd.tmp", f".x.{os.getpid()}.0123abcd.tmp"]
    others = [
        f".x.{alive}.0123abcd.tmp",
        f".xy.{dead_pid}.0123abcd.tmp",
        f"x.{dead_pid}.0123abcd.tmp",
        f".x.{dead_pid}.0123abcd.tmp.bak",
        f".x.{dead_pid}.tmp",
        ".x",
    ]
    for name in ours + others:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path, "x".__eq__)
    assert names(tmp_path) == sorted(others)


def test_a_number_that_no_process_can_have_is_dead():
    assert not files._is_alive(9_999_999_999)


def test_a_process_of_another_user_is_alive(monkeypatch):
    def forbid(_pid, _signal):
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbid)
    assert files._is_alive(os.getppid())
