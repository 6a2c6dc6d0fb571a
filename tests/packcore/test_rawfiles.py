import os

import pytest

from packcore.rawfiles import _READ_BYTES, warm_file

linux = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux tells what is cached")


class Reads:
    """Stands in for os: says that bytes below `cached` are there, counts probes."""

    O_RDONLY, RWF_NOWAIT = os.O_RDONLY, 8

    def __init__(self, cached):
        self.cached, self.probes = cached, []

    def open(self, *arguments):
        return os.open(*arguments)

    def close(self, descriptor):
        os.close(descriptor)

    def preadv(self, _descriptor, _buffers, offset, _flags):
        self.probes.append(offset)
        if offset >= self.cached:
            raise BlockingIOError("not there")
        return 1


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "chunk.bin"
    path.write_bytes(bytes(3 * _READ_BYTES + 5))
    return str(path)


def reads_of(monkeypatch, file, cached, start=0, stop=None):
    """Returns where reading began and how many bytes were read; None if nothing was."""
    import packcore.rawfiles as module  # noqa: PLC0415

    stand_in = Reads(cached)
    monkeypatch.setattr(module, "os", stand_in)
    seen = []
    real_open = open

    class Spy:
        def __init__(self, path, *_, **__):
            self.raw = real_open(path, "rb", buffering=0)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.raw.close()

        def seek(self, offset):
            self.first = offset
            self.raw.seek(offset)

        def tell(self):
            return self.raw.tell()

        def readinto(self, buffer):
            count = self.raw.readinto(buffer)
            seen.append((self.first, count))
            return count

    monkeypatch.setattr(module, "open", Spy, raising=False)
    warm_file(file, start, os.path.getsize(file) if stop is None else stop)
    return (seen[0][0], sum(count for _, count in seen)) if seen else None


def test_a_file_that_is_cached_is_not_read(monkeypatch, file):
    assert reads_of(monkeypatch, file, cached=2**40) is None


def test_a_file_that_is_not_cached_is_read_from_front_to_back(monkeypatch, file):
    assert reads_of(monkeypatch, file, cached=0) == (0, 3 * _READ_BYTES + 5)


def test_reading_begins_at_the_first_part_that_is_missing(monkeypatch, file):
    first, count = reads_of(monkeypatch, file, cached=_READ_BYTES + 1)
    assert first == _READ_BYTES
    assert count == 2 * _READ_BYTES + 5


def test_only_the_span_that_was_asked_for_is_looked_at(monkeypatch, file):
    assert reads_of(monkeypatch, file, cached=0, start=100, stop=200) == (100, _READ_BYTES)
    assert reads_of(monkeypatch, file, cached=0, start=100, stop=100) is None


def test_a_system_that_cannot_tell_reads_nothing(monkeypatch, file):
    import packcore.rawfiles as module  # noqa: PLC0415

    monkeypatch.setattr(module, "os", object())
    warm_file(file, 0, 10)


@linux
def test_a_real_file_is_warmed(file):
    warm_file(file, 0, os.path.getsize(file))
    descriptor = os.open(file, os.O_RDONLY)
    try:
        assert os.preadv(descriptor, [bytearray(1)], 2 * _READ_BYTES, os.RWF_NOWAIT) == 1
    finally:
        os.close(descriptor)
