import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from packcore import files, writer
from packcore.builder import PackedDatasetBuilder
from packcore.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    OverwriteError,
    TokenError,
    WriteError,
)
from packcore.format import map_tokens, read_header
from packcore.manifest import documents_path, read_manifest


def build(folder, prefix="web", chunk_size=4, sep_token=0, dtype="uint16", **options):
    return PackedDatasetBuilder(folder, prefix, chunk_size, sep_token, dtype, **options)


def tokens_of(folder):
    paths = sorted(folder.glob("web_*.bin"))
    return [map_tokens(path, read_header(path)).tolist() for path in paths]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


ARGUMENTS = [
    ({"prefix": ""}, ArgumentError, "prefix must be a plain name: not empty"),
    ({"prefix": "a/b"}, ArgumentError, "prefix must be a plain name"),
    ({"prefix": b"web"}, ArgumentTypeError, "prefix must be a string; got b'web' (bytes)."),
    ({"chunk_size": 0}, ArgumentError, "chunk_size must be at least 1; got 0 (tokens)."),
    ({"chunk_size": 4.0}, ArgumentTypeError, "chunk_size must be an integer; got 4.0 (float)."),
    ({"sep_token": -1}, ArgumentError, "sep_token must be in [0, 65535]; got -1."),
    ({"sep_token": 100, "vocab_size": 100}, ArgumentError, "sep_token must be in [0, 99]; got 100"),
    ({"sep_token": None}, ArgumentTypeError, "sep_token must be an integer; got None (NoneType)."),
    ({"dtype": "auto"}, ArgumentError, "vocab_size cannot be None when dtype is 'auto'. Give the"),
    ({"dtype": "uint32"}, ArgumentError, "dtype must be one of uint8, int8, int16, int32, int64,"),
    ({"dtype": None}, ArgumentError, "dtype must be one of uint8, int8, int16, int32, int64,"),
    ({"dtype": "Auto"}, ArgumentError, "dtype must be one of uint8"),
    ({"vocab_size": 0}, ArgumentError, "vocab_size must be at least 1; got 0 (ids)."),
    ({"vocab_size": "1"}, ArgumentTypeError, "vocab_size must be an integer; got '1' (str)."),
    ({"auto_cutoff": 65536}, ArgumentError, "auto_cutoff must be one of 'reference', 'exact'; got"),
    ({"tokenizer": 5}, ArgumentTypeError, "tokenizer must be a string or None; got 5 (int)."),
]


@pytest.mark.parametrize(("options", "error", "message"), ARGUMENTS)
def test_an_argument_that_breaks_a_rule_is_refused_before_anything_is_made(
    tmp_path, options, error, message
):
    with pytest.raises(error) as caught:
        build(tmp_path / "out", **options)
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "out").exists()


TOO_BIG = "which does not fit: ids must be in [0, 99] (dtype uint16, vocab_size 100). Nothing of"
REFUSED = [
    ("add_document", ({1, 2},), {}, ArgumentTypeError, "ids must be in an order; got a set. Make"),
    ("add_document", ([1],), {"sep": np.array([1, 2])}, ArgumentError, "sep must be None, 'before"),
    (
        "add_documents",
        ([1], [[1], [1, 2]]),
        {},
        ArgumentTypeError,
        "lengths must be a 1-D row of i",
    ),
    ("add_array", ([1] * 9 + [100],), {}, TokenError, f"arr[9] is 100, {TOO_BIG}"),
    ("add_document", ([1] * 9 + [-1],), {}, TokenError, f"ids[9] is -1, {TOO_BIG}"),
    ("add_documents", ([1] * 9 + [2**16], [5, 5]), {}, TokenError, f"flat[9] is 65536, {TOO_BIG}"),
    ("add_document", ([1.5],), {}, ArgumentTypeError, "ids must be integers for a builder of uint"),
    ("add_document", ([[1]],), {}, ArgumentError, "ids must be 1-D; got shape (1, 1)."),
    ("add_array", ("text",), {}, ArgumentTypeError, "arr must be token ids; got text."),
    ("add_document", ([1],), {"sep": "both"}, ArgumentError, "sep must be None, 'before' or 'afte"),
    ("add_documents", ([1], [1]), {"sep": 0}, ArgumentError, "sep must be None, 'before' or 'aft"),
    (
        "add_documents",
        ([1, 2], [1]),
        {},
        ArgumentError,
        "lengths must add up to the ids in flat; g",
    ),
    (
        "add_documents",
        ([1], []),
        {},
        ArgumentError,
        "lengths must add up to the ids in flat; got 0",
    ),
    (
        "add_documents",
        ([1], [2, -1]),
        {},
        ArgumentError,
        "lengths[0] must be in [0, 1], the ids in flat; got 2.",
    ),
    (
        "add_documents",
        ([1], [-1, 2]),
        {},
        ArgumentError,
        "lengths[0] must be in [0, 1], the ids in",
    ),
    (
        "add_documents",
        ([1], [1.0]),
        {},
        ArgumentTypeError,
        "lengths must be a 1-D row of integers;",
    ),
    ("add_documents", ([1], [True]), {}, ArgumentTypeError, "lengths must be a 1-D row of integer"),
    (
        "add_documents",
        ([1], 1),
        {},
        ArgumentTypeError,
        "lengths must be a 1-D row of integers; got",
    ),
    (
        "add_documents",
        ([1], [[1]]),
        {},
        ArgumentTypeError,
        "lengths must be a 1-D row of integers;",
    ),
    (
        "add_documents",
        ([], np.full(4, 2**62)),
        {},
        ArgumentError,
        "lengths[0] must be in [0, 0], the ids in flat; got 4611686018427387904.",
    ),
]


@pytest.mark.parametrize(("method", "arguments", "options", "error", "message"), REFUSED)
def test_nothing_of_a_refused_call_is_written(tmp_path, method, arguments, options, error, message):
    with build(tmp_path, vocab_size=100) as builder:
        builder.add_document([1, 2, 3])
        with pytest.raises(error) as caught:
            getattr(builder, method)(*arguments, **options)
        assert str(caught.value).startswith(message)
        builder.add_document([4, 5])
    assert tokens_of(tmp_path) == [[1, 2, 3, 4], [5, 0, 0, 0]]
    manifest = builder.close()
    assert (manifest.num_tokens, manifest.num_documents) == (5, 2)


def test_a_refused_first_call_does_not_begin_to_record_documents(tmp_path):
    with build(tmp_path) as builder:
        with pytest.raises(TokenError):
            builder.add_document([2**16])
        builder.add_array([1])
    assert builder.close().num_documents is None


CALLS = [
    ("add_array", [1]),
    ("add_document", [1]),
    ("add_documents", [1], [1]),
    ("write_reminder",),
    ("write_remainder",),
    ("__enter__",),
]


@pytest.mark.parametrize(("method", "arguments"), [(call[0], call[1:]) for call in CALLS])
def test_a_closed_builder_takes_nothing_more(tmp_path, method, arguments):
    builder = build(tmp_path)
    builder.close()
    with pytest.raises(ClosedError, match=r"The builder of 'web' is closed\. Build more under ano"):
        getattr(builder, method)(*arguments)


@pytest.mark.parametrize("name", ["manifest.json", "_0000000007.bin", "_0000000000.docs.npy"])
def test_files_of_the_prefix_are_not_overwritten_unasked(tmp_path, name):
    path = tmp_path / (f"web{name}" if name[0] == "_" else f"web.{name}")
    path.write_bytes(b"precious")
    with pytest.raises(OverwriteError) as caught:
        build(tmp_path)
    assert str(caught.value).startswith(f"{path} is there already, and 0 more files of prefix 'web")
    assert "Pass overwrite=True to remove them and build anew, or choose another prefix." in str(
        caught.value
    )
    assert caught.value.path == str(path)
    assert path.read_bytes() == b"precious"


def test_files_of_other_prefixes_are_in_nobodys_way(tmp_path):
    for name in ("web_code_0000000000.bin", "web_code.manifest.json", "web.txt"):
        (tmp_path / name).touch()
    build(tmp_path).close()


def test_a_second_builder_of_the_same_prefix_at_the_same_time_overwrites_nothing(tmp_path):
    first, second = build(tmp_path), build(tmp_path)
    first.add_array([1])
    first.write_reminder()
    second.add_array([2])
    with pytest.raises(OverwriteError, match="another one builds the same prefix in the same fold"):
        second.write_reminder()
    first.close()
    assert tokens_of(tmp_path) == [[1, 0, 0, 0]]


def add_and_raise(builder):
    with builder:
        builder.add_document([1, 2, 3, 4, 5, 6])
        raise ZeroDivisionError


def test_an_exception_in_the_block_leaves_whole_chunks_and_no_manifest(tmp_path):
    builder = build(tmp_path)
    with pytest.raises(ZeroDivisionError):
        add_and_raise(builder)
    assert names(tmp_path) == ["web_0000000000.bin", "web_0000000000.docs.npy"]
    assert tokens_of(tmp_path) == [[1, 2, 3, 4]]
    with pytest.raises(ClosedError, match=r"stopped at an error and takes nothing more; its finis"):
        builder.add_array([7])
    with pytest.raises(OverwriteError, match=r"the whole chunks of one that was stopped, which ca"):
        build(tmp_path)
    build(tmp_path, overwrite=True).close()
    assert names(tmp_path) == ["web.manifest.json"]


@pytest.mark.parametrize("method", ["add_array", "add_document", "add_documents"])
def test_a_call_that_was_interrupted_ends_the_build(tmp_path, monkeypatch, method):
    builder = build(tmp_path)
    builder.add_document([1, 2, 3, 4])

    def interrupt(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(builder._writer, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        getattr(builder, method)([5], *([[1]] if method == "add_documents" else []))
    with pytest.raises(ClosedError, match=r"Build again with overwrite=True, or under another pr"):
        builder.close()
    assert names(tmp_path) == []


class FullDisk:
    """Lets some fsyncs of files through, and then says that the disk is full."""

    def __init__(self, monkeypatch, num_files):
        self.left = num_files
        self.fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, descriptor):
        if not os.path.isdir(f"/dev/fd/{descriptor}"):
            if not self.left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.left -= 1
        self.fsync(descriptor)


def add_until_it_fails(builder):
    for i in range(100):
        builder.add_array([i] * 4)


@pytest.mark.parametrize("num_files", [0, 1, 5])
def test_a_full_disk_is_told_and_earlier_chunks_are_whole(tmp_path, monkeypatch, num_files):
    FullDisk(monkeypatch, num_files)
    with pytest.raises(WriteError) as caught, build(tmp_path) as builder:
        add_until_it_fails(builder)
    num_chunks = len(tokens_of(tmp_path))
    assert num_chunks <= num_files  # those of later chunks may have been among them
    path = tmp_path / f"web_{num_chunks:010d}.bin"
    assert str(caught.value) == (
        f"Could not write {path}: No space left on device. Files that were finished earlier are "
        "whole. Free some space on that disk, or choose a folder on another one."
    )
    assert (caught.value.path, caught.value.errno) == (str(path), errno.ENOSPC)
    assert tokens_of(tmp_path) == [[i] * 4 for i in range(num_chunks)]
    assert names(tmp_path) == [f"web_{i:010d}.bin" for i in range(num_chunks)]
    with pytest.raises(ClosedError, match="stopped at an error") as after:
        builder.add_array([1])
    assert after.value.__cause__ is caught.value


@pytest.mark.parametrize(
    "call",
    [PackedDatasetBuilder.close, PackedDatasetBuilder.write_reminder, lambda b: b.filenames],
)
def test_a_chunk_that_failed_behind_the_scenes_is_told_at_the_next_chance(
    tmp_path, monkeypatch, call
):
    builder = build(tmp_path)
    FullDisk(monkeypatch, 0)
    builder.add_array([1, 2, 3, 4, 5])
    message = r"Could not write .*web_0000000000\.bin: No space left"
    with pytest.raises(WriteError, match=message):
        call(builder)
    with pytest.raises(WriteError, match=message):
        builder.close()
    assert names(tmp_path) == []


def test_chunks_are_written_side_by_side_and_get_their_names_in_order(tmp_path, monkeypatch):
    written, first_may_go_on = threading.Semaphore(0), threading.Event()

    @contextlib.contextmanager
    def staged(path, *parts):
        with files.staged(path, *parts):
            written.release()
            if path.endswith("_0000000000.bin"):
                first_may_go_on.wait()
            yield

    monkeypatch.setattr(writer, "staged", staged)
    with build(tmp_path) as builder:
        for i in range(1, 5):
            builder.add_array([i] * 4)
        builder.add_array([5])
        assert all(written.acquire(timeout=60) for _ in range(4))
        assert tokens_of(tmp_path) == []
        first_may_go_on.set()
    assert tokens_of(tmp_path) == [[1] * 4, [2] * 4, [3] * 4, [4] * 4, [5, 0, 0, 0]]


def test_a_chunk_that_fails_takes_those_behind_it_along(tmp_path, monkeypatch):
    def refuse_the_second(path, *arguments):
        if "_0000000001.bin" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return open(path, *arguments)

    monkeypatch.setattr(files, "open", refuse_the_second, raising=False)
    builder = build(tmp_path)
    with (
        pytest.raises(WriteError, match=r"Could not write .*web_0000000001\.bin") as caught,
        builder,
    ):
        add_until_it_fails(builder)
    with pytest.raises(WriteError) as again:
        builder.close()
    assert again.value is caught.value
    assert names(tmp_path) == ["web_0000000000.bin"]


@pytest.fixture
def slow_disk(monkeypatch):
    """Holds every fsync of a file up until the returned event is set."""
    go_on, fsync = threading.Event(), os.fsync

    def wait(descriptor):
        go_on.wait()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", wait)
    yield go_on
    go_on.set()


def test_a_builder_that_was_left_half_way_does_not_write_into_the_next_one(tmp_path, slow_disk):
    first = build(tmp_path)
    first.add_array([7] * 13)
    threading.Timer(0.1, slow_disk.set).start()
    with build(tmp_path, overwrite=True) as second:
        second.add_array([9])
    assert names(tmp_path) == ["web.manifest.json", "web_0000000000.bin"]
    assert tokens_of(tmp_path) == [[9, 0, 0, 0]]
    del first


def test_a_second_builder_leaves_what_the_first_is_writing_alone(tmp_path, slow_disk):
    first = build(tmp_path)
    first.add_array([7] * 5)
    while not names(tmp_path):
        time.sleep(0.001)
    build(tmp_path)
    slow_disk.set()
    first.close()
    assert tokens_of(tmp_path) == [[7] * 4, [7, 0, 0, 0]]


UNCLOSED = """
import resource, sys
from packcore.builder import PackedDatasetBuilder
builder = PackedDatasetBuilder(sys.argv[1], "web", 1000, 0, "uint16")
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
builder.add_array([1] * 2001)
"""


def test_a_chunk_that_failed_is_told_even_if_the_builder_is_never_closed(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", UNCLOSED, tmp_path], capture_output=True, text=True, check=False
    )
    assert "web_0000000000.bin: File too large" in run.stderr
    assert names(tmp_path) == []


CLOSED_AT_EXIT = """
import atexit, sys
from packcore.builder import PackedDatasetBuilder
builder = PackedDatasetBuilder(sys.argv[1], "web", 4, 0, "uint16")
builder.add_array([1] * 6)
atexit.register(builder.close)
"""


def test_a_builder_may_be_closed_at_the_interpreters_end(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", CLOSED_AT_EXIT, tmp_path], capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
    assert tokens_of(tmp_path) == [[1] * 4, [1, 1, 0, 0]]


FORKED = """
import os, sys, threading
from packcore.builder import PackedDatasetBuilder
from packcore.errors import ClosedError

go_on, fsync = threading.Event(), os.fsync
os.fsync = lambda descriptor: (go_on.wait(), fsync(descriptor))
with PackedDatasetBuilder(sys.argv[1], "web", 4, 0, "uint16") as builder:
    builder.add_array([1] * 6)
    child = os.fork()
    if not child:
        try:
            builder.add_array([2] * 6)
        except ClosedError as error:
            print(error, flush=True)
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    go_on.set()
"""


def test_a_fork_cannot_write_through_the_builder_and_does_no_harm(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", FORKED, tmp_path],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert run.stdout.startswith("The builder of 'web' belongs to process ")
    assert tokens_of(tmp_path) == [[1] * 4, [1, 1, 0, 0]]


def test_a_manifest_that_cannot_be_written_leaves_the_chunks_and_is_told_again(
    tmp_path, monkeypatch
):
    FullDisk(monkeypatch, 1)
    builder = build(tmp_path)
    builder.add_array([1])
    for _ in range(2):
        with pytest.raises(WriteError, match=r"Could not write .*web\.manifest\.json: No space"):
            builder.close()
    assert names(tmp_path) == ["web_0000000000.bin"]


LIMITED = """
import resource, sys
from packcore.builder import PackedDatasetBuilder
from packcore.errors import WriteError
builder = PackedDatasetBuilder(sys.argv[1], "web", 1000, 0, "uint16")
builder.add_array([1] * 2000)
assert len(builder.filenames) == 1
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
try:
    builder.close()
except WriteError as error:
    print(error)
"""


def test_a_write_that_the_system_cuts_short_leaves_no_half_file(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path], capture_output=True, text=True, check=True
    )
    path = tmp_path / "web_0000000001.bin"
    assert run.stdout.startswith(
        f"Could not write {path}: File too large. Files that were finished"
    )
    assert "Use a smaller chunk_size" in run.stdout
    assert tokens_of(tmp_path) == [[1] * 1000]
    assert names(tmp_path) == ["web_0000000000.bin"]


@pytest.fixture
def nobody():
    """A folder of mine, and no right to write into it: root becomes somebody else for a while."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        else:
            folder.chmod(0o555)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            folder.chmod(0o755)


def test_a_folder_that_may_not_be_written_to_is_told_at_once(nobody):
    with pytest.raises(WriteError) as caught:
        build(nobody)
    assert str(caught.value).startswith(f"Could not write {nobody / 'web_0000000000.bin'}: Permiss")
    assert "Choose a folder that you may write to." in str(caught.value)
    assert caught.value.errno == errno.EACCES
    with pytest.raises(WriteError, match="Permission denied"):
        build(nobody / "inside")


def test_a_folder_that_becomes_read_only_leaves_earlier_chunks_whole(tmp_path, monkeypatch):
    builder = build(tmp_path)
    builder.add_array([1, 2, 3, 4, 5])
    assert len(builder.filenames) == 1

    def forbid(*_args, **_kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(files, "open", forbid, raising=False)
    with pytest.raises(WriteError, match=r"Read-only file system\. Files that were finished ear"):
        builder.close()
    assert tokens_of(tmp_path) == [[1, 2, 3, 4]]


# Kills itself at the nth thing that it does to the folder, for n = 0, 1, ... until it lives.
KILLED_AT = """
import io, os, signal, sys
from packcore import files, writer
from packcore.builder import PackedDatasetBuilder

class Torn(io.FileIO):
    def writelines(self, parts):
        for part in map(memoryview, parts):
            part = part.cast("B")
            self.write(part[:len(part) // 2])
            sys.audit("write")
            self.write(part[len(part) // 2:])

def build_and_die(folder, steps):
    def step(event, args):
        nonlocal steps
        if event in ("fsync", "write") or (event in ("open", "os.rename", "os.remove") and
                str(args[0]).startswith(folder)):
            if not steps:
                os.kill(os.getpid(), signal.SIGKILL)
            steps -= 1
    fsync = os.fsync
    os.fsync = lambda descriptor: (sys.audit("fsync"), fsync(descriptor))
    files.open = Torn
    sys.addaudithook(step)
    with PackedDatasetBuilder(folder, "web", 4, 0, "uint16") as builder:
        for i in range(1, 5):
            builder.add_document([i] * 3)

steps = 0
while True:
    folder = os.path.join(sys.argv[1], str(steps))
    child = os.fork()
    if not child:
        build_and_die(folder, steps)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
    steps += 1
print(steps)
"""
WHOLE = {
    "web_0000000000.bin": ([1, 1, 1, 2], [0, 3]),
    "web_0000000001.bin": ([2, 2, 3, 3], [2]),
    "web_0000000002.bin": ([3, 4, 4, 4], [1]),
}


def check_what_a_kill_left(folder):
    chunks = sorted(folder.glob("web_*.bin"))
    assert [chunk.name for chunk in chunks] == list(WHOLE)[: len(chunks)]
    for chunk in chunks:
        tokens, starts = WHOLE[chunk.name]
        assert map_tokens(chunk, read_header(chunk)).tolist() == tokens
        assert np.load(documents_path(chunk)).tolist() == starts
    if (folder / "web.manifest.json").exists():
        assert read_manifest(folder / "web.manifest.json").num_tokens == 12


def check_that_it_can_go_on(folder):
    if any(name.startswith("web") for name in names(folder)):
        with pytest.raises(OverwriteError, match=r"Pass overwrite=True to remove them and build"):
            build(folder)
    with build(folder, overwrite=True) as builder:
        builder.add_array([1])
    assert names(folder) == ["web.manifest.json", "web_0000000000.bin"]


def test_a_kill_at_any_step_leaves_no_half_file_and_a_way_on(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", KILLED_AT, tmp_path], capture_output=True, text=True, check=True
    )
    num_steps = int(run.stdout)
    assert num_steps >= 3 * 2 * 5  # open, write, fsync, rename, fsync of the folder: each file
    left = [names(tmp_path / str(steps)) for steps in range(1, num_steps)]
    assert any(name.endswith(".tmp") for folder in left for name in folder)
    for steps in range(1, num_steps + 1):
        check_what_a_kill_left(tmp_path / str(steps))
        check_that_it_can_go_on(tmp_path / str(steps))


ENDLESS = """
import sys, numpy as np
from packcore.builder import PackedDatasetBuilder
with PackedDatasetBuilder(sys.argv[1], "web", 200_000, 0, "uint16") as builder:
    print("ready", flush=True)
    for i in range(1, 60_000):
        builder.add_documents(np.full(150_000, i), np.full(1500, 100))
"""


def stop_at_random(folder, signal_number):
    """Lets a build run for a moment and stops it; returns how it ended."""
    run = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    run.stdout.readline()
    time.sleep(random.uniform(0, 0.1))
    run.send_signal(signal_number)
    _, said = run.communicate()
    return run.returncode, said.decode()


def check_whole_chunks(folder):
    stream = np.repeat(np.arange(1, 60_000, dtype=np.uint16), 1500)
    chunks = sorted(folder.glob("web_*.bin"))
    for index, chunk in enumerate(chunks):
        tokens = map_tokens(chunk, read_header(chunk))
        first = index * 2000
        np.testing.assert_array_equal(tokens[::100], stream[first : first + 2000])
        assert np.load(documents_path(chunk)).tolist() == list(range(0, 200_000, 100))
    assert not (folder / "web.manifest.json").exists()


@pytest.mark.parametrize("attempt", range(3))
def test_a_kill_at_a_random_moment_leaves_no_half_file(tmp_path, attempt):
    code, _ = stop_at_random(tmp_path / str(attempt), signal.SIGKILL)
    assert code == -signal.SIGKILL
    check_whole_chunks(tmp_path / str(attempt))


@pytest.mark.parametrize("attempt", range(2))
def test_ctrl_c_leaves_whole_chunks_and_nothing_else(tmp_path, attempt):
    folder = tmp_path / str(attempt)
    code, said = stop_at_random(folder, signal.SIGINT)
    assert code == -signal.SIGINT
    assert said.strip().endswith("KeyboardInterrupt")
    check_whole_chunks(folder)
    assert not list(folder.glob(".*"))
