"""A build that is stopped at any moment goes on, and ends with the bytes of one that was not."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
from real_text import documents_of, files_of, sources, train_bpe, write_jsonl

import packcore
from packcore.errors import FormatError, NoDataError, OverwriteError, StateError, WriteError
from packcore.pipeline.reading import cut

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills and limits processes")

TEXTS = ["", "a", "bc" * 40, "", "\u00e9" * 9, "long " * 60, "", "d"] * 3


def build(inputs, outdir, **options):
    options = {"tokenizer": "bytes", "chunk_size": 97, "workers": 0, "eod": None} | options
    return packcore.build(inputs, outdir, **options)


def small_work(*args, **options):
    return cut(*args, **options, work_bytes=60)


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """Two files that take many pieces of work and many chunks, some documents empty."""
    monkeypatch.setattr("packcore.pipeline.run.cut", small_work)
    first = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    second = tmp_path / "b.txt"
    second.write_text("text " * 50)
    return [first, second]


class Stop(Exception):  # noqa: N818 - it is no error
    """What a test stops a build with."""


def stop_after(number):
    """Returns an `on_progress` that stops the build at piece `number`."""
    seen = []

    def on_progress(progress):
        seen.append(progress)
        if len(seen) > number:
            raise Stop

    return on_progress


def test_a_build_stopped_after_any_piece_of_work_goes_on(tmp_path, inputs):
    build(inputs, tmp_path / "whole")
    expected = files_of(tmp_path / "whole")
    for number in range(1000):
        folder = tmp_path / str(number)
        try:
            build(inputs, folder, on_progress=stop_after(number))
        except Stop:
            build(inputs, folder)
            assert files_of(folder) == expected
        else:
            break
    assert number > 20


def test_a_build_stopped_again_and_again_goes_on(tmp_path, inputs):
    build(inputs, tmp_path / "whole")
    num_stops = 0
    while True:
        try:
            build(inputs, tmp_path / "out", on_progress=stop_after(12))
            break
        except Stop:
            num_stops += 1
    assert num_stops > 2
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_what_is_finished_is_not_made_again(tmp_path, inputs):
    whole = []
    build(inputs, tmp_path / "whole", on_progress=whole.append)
    with pytest.raises(Stop):
        build(inputs, tmp_path / "out", on_progress=stop_after(20))
    chunks = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.bin")}
    journaled = (tmp_path / "out" / "train.build.jsonl").read_text().count('"chunk"')
    assert len(chunks) >= journaled > 1
    seen = []
    build(inputs, tmp_path / "out", on_progress=seen.append)
    kept = [path for path, at in chunks.items() if path.stat().st_mtime_ns == at]
    assert len(kept) == journaled
    assert len(seen) < len(whole)


FAULTY = """
import itertools, os, signal, sys, threading
import packcore
from packcore.pipeline import reading, run

folder, mode = sys.argv[1:]
inputs = [folder + "/a.jsonl", folder + "/b.txt"]
real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink")}
cut = reading.cut
run.cut = lambda *args, **options: cut(*args, **options, work_bytes=150)

def build(out):
    options = {"tokenizer": "bytes", "chunk_size": 150, "workers": 0, "eod": None}
    packcore.build(inputs, out, **options)

def fail_at(step, when):
    lock = threading.Lock()
    numbers = itertools.count(1)
    def patched(name):
        def call(*args, **options):
            with lock:  # chunks are written by several threads
                number = next(numbers)
            if number == step and when == "before":
                stop()
            done = real[name](*args, **options)
            if number == step and when == "after":
                stop()
            return done
        return call
    for name in real:
        setattr(os, name, patched(name))

def stop():
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(28, "No space left on device")

def content(out):
    return {name: open(f"{out}/{name}", "rb").read() for name in sorted(os.listdir(out))}

def run_child(out, step, when):
    child = os.fork()
    if not child:
        fail_at(step, when)
        try:
            build(out)
        except packcore.errors.WriteError:
            os._exit(3)
        except OSError:
            os._exit(4)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status)

build(folder + "/whole")
expected = content(folder + "/whole")
step = 0
ends = []
while not ends or ends[-1] != 0:
    step += 1
    for when in ("before", "after"):
        out = f"{folder}/out-{step}-{when}"
        ends.append(run_child(out, step, when))
        left = set(os.listdir(out)) - set(expected) - {"train.build.jsonl"}
        assert all(name.endswith(".tmp") for name in left), left
        again = run_child(out, 0, "never")
        assert again == 0, again
        found = content(out)
        assert found == expected, (step, when, set(found) ^ set(expected))
print(step, sorted(set(ends)))
"""


@pytest.mark.parametrize(("mode", "ends"), [("kill", "[-9, 0]"), ("full", "[0, 3]")])
def test_a_kill_or_a_full_disk_at_any_step_leaves_a_build_that_goes_on(tmp_path, mode, ends):
    write_jsonl(tmp_path / "a.jsonl", TEXTS[:8])
    (tmp_path / "b.txt").write_text("text " * 10)
    command = [sys.executable, "-c", FAULTY, tmp_path, mode]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    num_steps, _, found = run.stdout.strip().partition(" ")
    assert int(num_steps) > 30
    assert found == ends


BUILD = """
import sys, packcore
if __name__ == "__main__":
    folder, out, tokenizer, workers = sys.argv[1:]
    options = {"tokenizer": tokenizer, "workers": int(workers), "chunk_size": 20_011}
    packcore.build(folder, out, **options)
"""


def start(script, *arguments):
    command = [sys.executable, script, *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.parametrize("seed", [1, 2])
def test_kills_at_random_moments_change_nothing(tmp_path, seed):
    pytest.importorskip("tokenizers")
    folder = tmp_path / "in"
    folder.mkdir()
    texts = sources()[:40]
    write_jsonl(folder / "a.jsonl", texts)
    train_bpe(tmp_path / "tokenizer.json")
    script = tmp_path / "build.py"
    script.write_text(BUILD)
    moment = random.Random(seed)
    arguments = (script, folder, tmp_path / "out", tmp_path / "tokenizer.json")
    num_kills = 0
    while True:
        process = start(*arguments, moment.randint(0, 2))
        try:
            _, stderr = process.communicate(timeout=moment.uniform(0.3, 1.5) * (1 + num_kills / 3))
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            num_kills += 1
    assert (process.returncode, stderr) == (0, "")
    packcore.build(folder, tmp_path / "whole", tokenizer=tmp_path / "tokenizer.json",
                   workers=0, chunk_size=20_011)  # fmt: skip
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert len(documents_of(tmp_path / "out")) == len(texts)


def children_of(pid):
    run = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True,
                         check=False)  # fmt: skip
    return [int(one) for one in run.stdout.split()]


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at processes")
@pytest.mark.skipif(shutil.which("ps") is None, reason="looks at processes")
def test_the_workers_of_a_killed_build_end_too(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", ["x" * 1000] * 100_000)
    script = tmp_path / "build.py"
    script.write_text(BUILD)
    process = start(script, tmp_path / "a.jsonl", tmp_path / "out", "bytes", 2)
    deadline = time.monotonic() + 60
    while len(children := children_of(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(children) >= 2
    while any(map(is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, children))


def test_a_limit_of_the_system_on_files_stops_a_build_that_goes_on_without(tmp_path, inputs):
    build(inputs, tmp_path / "whole")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(WriteError) as caught:  # the journal grows to the limit
            build(inputs, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG
    build(inputs, tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def stopped(inputs, folder, **options):
    with pytest.raises(Stop):
        build(inputs, folder, on_progress=stop_after(20), **options)


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"chunk_size": 96}, "chunk_size", "its chunk_size was 97, not 96"),
        ({"eod": "auto"}, "eod_token", "its eod_token was None, not 256"),
        ({"bos": 1}, "bos_token", "its bos_token was None, not 1"),
        ({"text_files": "lines"}, "text_files", "its text_files was 'whole', not 'lines'"),
        ({"dtype": "int32"}, "dtype", "its dtype was 'uint16', not 'int32'"),
        ({"vocab_size": 999}, "vocab_size", "its vocab_size was 257, not 999"),
    ],
)
def test_a_stopped_build_is_not_gone_on_with_by_other_options(
    tmp_path, inputs, options, field, message
):
    stopped(inputs, tmp_path / "out")
    before = files_of(tmp_path / "out")
    with pytest.raises(StateError) as caught:
        build(inputs, tmp_path / "out", **options)
    journal = tmp_path / "out" / "train.build.jsonl"
    assert str(caught.value) == (
        f"{journal} is of a build that was stopped, and {message}. Use what it was begun with to "
        "go on, or overwrite=True to build anew."
    )
    assert caught.value.field == field
    assert files_of(tmp_path / "out") == before
    build(inputs, tmp_path / "out", overwrite=True, **options)
    build(inputs, tmp_path / "whole", **options)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_a_stopped_build_is_not_gone_on_with_from_other_inputs(tmp_path, inputs):
    stopped(inputs, tmp_path / "out")
    with pytest.raises(StateError, match=r"and it had 2 inputs, not 1\."):
        build(inputs[:1], tmp_path / "out")
    with pytest.raises(StateError, match=rf"and its input {inputs[0]} is now {inputs[1]}\."):
        build(inputs[::-1], tmp_path / "out")
    os.utime(inputs[1])
    with pytest.raises(StateError, match=rf"and its input {inputs[1]} has changed since\."):
        build(inputs, tmp_path / "out")


def test_inputs_that_changed_in_secret_are_found(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["x" * 1000])
    with pytest.raises(Stop):
        build(path, tmp_path / "out", on_progress=stop_after(0))
    status = path.stat()
    path.write_bytes(b'{"text": "x"}'.ljust(status.st_size - 1) + b"\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(StateError) as caught:
        build(path, tmp_path / "out")
    assert str(caught.value).startswith("The documents are not the ones that")


def test_a_finished_build_is_not_built_again(tmp_path, inputs):
    manifest = build(inputs, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert build(inputs, tmp_path / "out") == manifest
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before
    with pytest.raises(OverwriteError, match="is there already"):
        build(inputs[:1], tmp_path / "out")
    assert build(inputs[:1], tmp_path / "out", overwrite=True).num_tokens < manifest.num_tokens


def test_files_of_another_builder_are_never_removed_unasked(tmp_path, inputs):
    folder = tmp_path / "out"
    folder.mkdir()
    with packcore.PackedDatasetBuilder(folder, "train", 10, 0, "uint16") as builder:
        builder.add_document(range(25))
    (folder / "train.manifest.json").unlink()
    before = files_of(folder)
    for _ in range(2):
        with pytest.raises(OverwriteError, match="is there already"):
            build(inputs, folder)
        assert files_of(folder) == before


def test_two_builds_of_one_prefix_do_not_meet(tmp_path, inputs):
    def second(_):
        with pytest.raises(OverwriteError) as caught:
            build(inputs, tmp_path / "out")
        assert str(caught.value).startswith("Another process is building this prefix: it holds")
        build(inputs[:1], tmp_path / "out", prefix="other")
        raise Stop

    with pytest.raises(Stop):
        build(inputs, tmp_path / "out", on_progress=second)


def test_a_broken_line_found_late_can_be_skipped_by_the_same_build(tmp_path, inputs):
    third = tmp_path / "c.jsonl"
    third.write_text('{"text": "good"}\nbad\n{"text": "good"}\n')
    with pytest.raises(FormatError, match=r"c\.jsonl:2: "):
        build([*inputs, third], tmp_path / "out")
    assert (tmp_path / "out" / "train.build.jsonl").exists()
    build([*inputs, third], tmp_path / "out", on_error="skip")
    build([*inputs, third], tmp_path / "whole", on_error="skip")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_lines_skipped_before_a_stop_are_counted_once(tmp_path, inputs):
    broken = tmp_path / "0.jsonl"
    broken.write_text("bad\n" * 3 + '{"text": "' + "x" * 500 + '"}\n')
    inputs = [broken, *inputs]
    stopped(inputs, tmp_path / "out", on_error="skip")
    with pytest.raises(StateError) as caught:
        build(inputs, tmp_path / "out")
    assert "is of a build that skipped 3 broken lines: go on with" in str(caught.value)
    manifest = build(inputs, tmp_path / "out", on_error="skip")
    assert manifest.provenance["num_skipped"] == 3
    build(inputs, tmp_path / "whole", on_error="skip")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_a_damaged_journal_and_a_lost_chunk_are_named(tmp_path, inputs):
    stopped(inputs, tmp_path / "out")
    journal = tmp_path / "out" / "train.build.jsonl"
    content = journal.read_bytes()
    lines = content.splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b'{"chunk": 3}\n', *lines[1:]]))
    with pytest.raises(FormatError) as caught:
        build(inputs, tmp_path / "out")
    assert str(caught.value).startswith(f"{journal} is not the journal of a build, at byte")
    assert caught.value.offset == len(lines[0])
    journal.write_bytes(json.dumps({"format": "packcore-build", "version": 2}).encode() + b"\n")
    with pytest.raises(FormatError, match=r"format and version must be 'packcore-build', 1"):
        build(inputs, tmp_path / "out")
    journal.write_bytes(content)
    (tmp_path / "out" / "train_0000000001.bin").unlink()
    with pytest.raises(NoDataError, match="which an earlier run of this build finished"):
        build(inputs, tmp_path / "out")


@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.parametrize(("name", "size"), [("1.bin", 0), ("1.bin", 100), ("0.docs.npy", 3)])
def test_a_finished_chunk_of_another_size_is_named(tmp_path, inputs, name, size, is_finished):
    if is_finished:
        build(inputs, tmp_path / "out")
    else:
        stopped(inputs, tmp_path / "out")
    path = tmp_path / "out" / f"train_000000000{name}"
    whole = path.stat().st_size
    os.truncate(path, size)
    before = files_of(tmp_path / "out")
    with pytest.raises(FormatError) as caught:
        build(inputs, tmp_path / "out")
    assert str(caught.value) == (
        f"{path} must have {whole} bytes, as when an earlier run of this build finished it; got "
        f"{size}. Put it back, or build anew with overwrite=True."
    )
    found = caught.value
    assert (found.path, found.expected, found.got) == (str(path), whole, size)
    assert files_of(tmp_path / "out") == before
    build(inputs, tmp_path / "out", overwrite=True)
    build(inputs, tmp_path / "whole")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_a_lost_chunk_of_a_finished_build_is_named(tmp_path, inputs):
    build(inputs, tmp_path / "out")
    (tmp_path / "out" / "train_0000000001.bin").unlink()
    with pytest.raises(NoDataError, match=r"train_0000000001\.bin, which an earlier run of this"):
        build(inputs, tmp_path / "out")
