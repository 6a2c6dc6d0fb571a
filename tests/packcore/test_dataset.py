import copy
import itertools
import os
import pickle
import random
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from corpora import Row, fast_folder, write_chunk, write_corpus, write_files
from hypothesis import given, settings
from hypothesis import strategies as st

import packcore
from packcore.dataset import Dataset
from packcore.errors import ArgumentError, ArgumentTypeError

DOCUMENTS = [[11, 12, 13], [21, 22, 23, 24, 25, 26, 27, 28, 29], [31], [], [41, 42]]
"""With chunks of 4 tokens: over a boundary, over four chunks, tiny, empty, at the end."""

DOCUMENT_LISTS = st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=1, max_size=6).filter(
    any
)
MMAP = st.booleans()


@pytest.fixture
def corpus(tmp_path):
    row = write_corpus(tmp_path, "train", DOCUMENTS, 4)
    return packcore.open(tmp_path), row


def check_row(dataset, row):
    """Compares everything that a data set tells with plain lists."""
    total = len(row.tokens)
    assert dataset.num_tokens == total
    assert dataset.bounds.tolist() == row.bounds
    ranges = list(itertools.combinations_with_replacement(range(total + 1), 2))
    for start, stop in random.Random(total).sample(ranges, min(80, len(ranges))):
        assert dataset.tokens(start, stop).tolist() == row.tokens[start:stop]
        assert dataset.document_starts(start, stop).tolist() == row.starts_in(start, stop)
        if start < stop:
            documents = dataset.documents_in(start, stop)
            assert list(documents) == row.documents_in(start, stop)
    assert dataset.num_documents == len(row.starts)
    for index in range(len(row.starts)):
        assert dataset.document(index).tolist() == row.document(index)
        assert dataset.document(index - len(row.starts)).tolist() == row.document(index)


@given(
    prefixes=st.lists(DOCUMENT_LISTS, min_size=1, max_size=3),
    chunk_size=st.integers(1, 7),
    mmap=MMAP,
)
def test_a_folder_of_prefixes_is_one_row_with_all_its_documents(prefixes, chunk_size, mmap):
    with fast_folder() as folder:
        row = Row()
        for index, documents in enumerate(prefixes):
            row += write_corpus(folder, f"part{index}", documents, chunk_size)
        check_row(packcore.open(folder, mmap=mmap), row)


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    chunk_size=st.integers(1, 7),
    mmap=MMAP,
)
def test_without_a_manifest_documents_end_with_the_separator(tokens, chunk_size, mmap):
    with fast_folder() as folder:
        paths = write_files(folder, "train", tokens, chunk_size)
        filled = tokens + [0] * (-len(tokens) % chunk_size)
        last = filled[-chunk_size:]
        while len(last) > 1 and last[-2:] == [0, 0]:
            last.pop()  # a run of separators at the very end is fill, but for the first of them
        if last == [0]:
            last = []
        kept = filled[:-chunk_size] + last
        starts = [at for at in range(len(kept)) if at == 0 or kept[at - 1] == 0]
        sizes = [chunk_size] * (len(paths) - 1) + [len(last)]
        check_row(packcore.open(folder, sep_token=0, mmap=mmap), Row(kept, starts, sizes))


def test_a_dataset_tells_its_dtype_and_size(corpus):
    dataset, _ = corpus
    assert dataset.dtype == np.uint16
    assert repr(dataset) == (
        f"Dataset(4 chunks, 15 tokens, uint16, fingerprint {dataset.fingerprint[:12]})"
    )


def test_tokens_are_a_copy_that_may_be_written_to(corpus):
    dataset, row = corpus
    dataset.tokens(0, 2)[:] = 99
    assert dataset.tokens(0, 2).tolist() == row.tokens[:2]


def test_tokens_kept_past_their_chunks_eviction_stay_right(corpus):
    dataset, row = corpus
    dataset._maps.size = 1
    views = [dataset.chunk_tokens(index, 0, 3) for index in (0, 1, 2, 3)]
    assert [view.tolist() for view in views] == [row.tokens[low : low + 3] for low in (0, 4, 8, 12)]


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 16), (16, 16), (15, 16)])
def test_a_range_outside_the_row_is_refused(corpus, start, stop):
    dataset, _ = corpus
    for read in (dataset.tokens, dataset.document_starts):
        with pytest.raises(ArgumentError, match=r"must be in \[0, \d+\]; got -?\d+ \(tokens\)\."):
            read(start, stop)


@pytest.mark.parametrize(("start", "stop"), [(0.0, 2), (0, "2"), (None, 2), (False, 2)])
def test_a_range_that_is_not_of_integers_is_refused(corpus, start, stop):
    dataset, _ = corpus
    with pytest.raises(ArgumentTypeError, match="must be an integer"):
        dataset.tokens(start, stop)


def test_numpy_integers_are_integers(corpus):
    dataset, row = corpus
    assert dataset.tokens(np.uint8(1), np.int64(3)).tolist() == row.tokens[1:3]
    assert dataset.document(np.uint64(1)).tolist() == row.document(1)


@pytest.mark.parametrize("index", [5, -6, 10**12])
def test_a_document_that_is_not_there_is_refused(corpus, index):
    dataset, _ = corpus
    message = rf"index must be in \[-5, 4\]; got {index} \(documents\)\."
    with pytest.raises(ArgumentError, match=message) as info:
        dataset.document(index)
    assert (info.value.name, info.value.value) == ("index", index)


# Documents


def test_a_document_that_goes_on_after_an_empty_start_at_a_chunks_end_is_found(tmp_path):
    with packcore.PackedDatasetBuilder(tmp_path, "a", 4, 0, dtype="uint16") as builder:
        builder.add_document([1, 2, 3, 4])
        builder.add_document([])  # recorded at the end of the first chunk
        builder.add_array([5, 6])  # continues it, in the second
    dataset = packcore.open(tmp_path)
    assert dataset.document(1).tolist() == [5, 6]
    assert dataset.document_starts(0, 6).tolist() == [0, 4]
    assert dataset.document_starts(4, 6).tolist() == [4]
    assert dataset.document_starts(0, 4).tolist() == [0]
    starts, _ = dataset.blocks(6).document_starts(np.array([0]))
    assert starts.tolist() == [0, 4]


def test_empty_documents_at_the_end_of_the_row_are_counted(tmp_path):
    write_corpus(tmp_path, "a", [[1, 2, 3, 4], [], []], 4)
    dataset = packcore.open(tmp_path)
    assert dataset.num_documents == 3
    assert dataset.document(-1).tolist() == []
    assert dataset.document_starts(0, 4).tolist() == [0]


def test_a_separator_inside_a_document_does_not_split_it_when_the_manifest_knows(tmp_path):
    write_corpus(tmp_path, "a", [[1, 0, 2], [0], [3, 0]], 4)
    for sep_token in (None, 0):
        dataset = packcore.open(tmp_path, sep_token=sep_token)
        documents = [dataset.document(index).tolist() for index in range(3)]
        assert documents == [[1, 0, 2], [0], [3, 0]]


def test_the_separator_finds_documents_that_a_manifest_did_not_record(tmp_path):
    row = write_corpus(
        tmp_path, "a", [[1, 2, 0], [3, 0], [4, 4, 4, 4, 0], [0, 0]], 4, recorded=False
    )
    dataset = packcore.open(tmp_path, sep_token=0)
    # The manifest knows which tokens are valid: separators at the end are text, not fill.
    check_row(dataset, Row(row.tokens, [0, 3, 5, 10, 11], row.sizes))


def test_a_chunk_without_a_valid_token_does_not_break_documents(tmp_path):
    with packcore.PackedDatasetBuilder(tmp_path, "a", 4, 0, dtype="uint16") as builder:
        for tokens in ([1, 2], [], [3, 0, 5]):
            builder.add_array(tokens)
            builder.write_reminder()
    dataset = packcore.open(tmp_path, sep_token=0)
    check_row(dataset, Row([1, 2, 3, 0, 5], [0, 4], [2, 0, 3]))


def test_prefixes_with_and_without_recorded_documents_mix(tmp_path):
    first = write_corpus(tmp_path, "a", [[1, 0, 1], [2]], 4)
    write_files(tmp_path / "more", "b", [3, 0, 4, 4, 4], 4)
    source = [tmp_path / "a.manifest.json", *sorted((tmp_path / "more").iterdir())]
    second = Row([3, 0, 4, 4, 4, 0], [0, 2], [4, 2])
    check_row(packcore.open(source, sep_token=0), first + second)


def test_without_a_separator_documents_are_unknown(tmp_path):
    write_files(tmp_path, "a", [1, 0, 2, 0], 4)
    dataset = packcore.open(tmp_path)
    assert dataset.num_documents is None
    assert not dataset.has_documents
    for read in (lambda: dataset.document(0), lambda: dataset.document_starts(0, 1)):
        with pytest.raises(
            ArgumentError, match=r"packcore\.open\(\.\.\., sep_token=\.\.\.\)"
        ) as info:
            read()
        assert info.value.name == "sep_token"


def test_without_a_separator_the_fill_of_unrecorded_files_is_kept(tmp_path):
    # Nothing tells it from text.
    write_files(tmp_path, "a", [1, 2], 4)
    assert packcore.open(tmp_path).tokens(0, 4).tolist() == [1, 2, 0, 0]


def test_only_the_last_chunk_of_a_prefix_is_taken_to_have_fill(tmp_path):
    write_files(tmp_path, "a", [1, 0, 0, 0, 2, 0, 0, 0], 4)
    write_files(tmp_path, "b", [3, 0, 0, 0], 4)
    dataset = packcore.open(tmp_path, sep_token=0)
    assert dataset.tokens(0, 8).tolist() == [1, 0, 0, 0, 2, 0, 3, 0]
    assert dataset.document_starts(0, 8).tolist() == [0, 2, 3, 4, 6]


def test_a_file_of_fill_alone_has_nothing_to_serve(tmp_path):
    write_files(tmp_path, "a", [0, 0, 0], 3)
    dataset = packcore.open(tmp_path, sep_token=0)
    assert (dataset.num_tokens, dataset.num_documents, len(dataset.blocks(1))) == (0, 0, 0)
    assert dataset.tokens(0, 0).tolist() == []
    assert dataset.document_starts(0, 0).tolist() == []
    assert len(dataset.fingerprint) == 64
    with pytest.raises(ArgumentError, match="index must be"):
        dataset.document(0)


def test_the_separator_is_found_in_floats(tmp_path):
    write_files(tmp_path, "a", [1.5, 0.0, 2.5, 0.0], 4, dtype="float32")
    dataset = packcore.open(tmp_path, sep_token=0)
    assert dataset.document(1).tolist() == [2.5, 0.0]


def test_what_holds_for_all_chunks_is_asked_of_them_once(tmp_path, monkeypatch):
    write_corpus(tmp_path, "a", [[1, 2, 3]] * 30, 4)
    dataset = packcore.open(tmp_path)
    blocks = dataset.blocks(5)
    asked = []
    known = packcore.chunks.Chunk.has_documents
    monkeypatch.setattr(
        packcore.chunks.Chunk,
        "has_documents",
        property(lambda chunk: asked.append(chunk) or known.fget(chunk)),
    )
    for _ in range(3):
        blocks.document_starts(np.arange(len(blocks)))  # all but a few run over chunks' ends
        dataset.document_starts(0, 90)
        dataset.document(7)
    assert len(asked) == len(dataset.chunks)


# Two ways to read


@settings(max_examples=30)
@given(documents=DOCUMENT_LISTS, chunk_size=st.integers(1, 5))
def test_reading_without_maps_gives_the_same(documents, chunk_size):
    with fast_folder() as folder:
        write_corpus(folder, "a", documents, chunk_size)
        mapped, unmapped = packcore.open(folder), packcore.open(folder, mmap=False)
        total = mapped.num_tokens
        assert (mapped.tokens(0, total) == unmapped.tokens(0, total)).all()
        assert mapped.fingerprint == unmapped.fingerprint
        for block_size in range(1, total + 2):
            blocks = [dataset.blocks(block_size, stride=1) for dataset in (mapped, unmapped)]
            ids = np.arange(len(blocks[0]))[::-1]
            assert (blocks[0].gather(ids) == blocks[1].gather(ids)).all()


def test_reading_without_maps_keeps_no_file_open(tmp_path):
    write_files(tmp_path, "a", list(range(40)), 4)
    dataset = packcore.open(tmp_path, mmap=False)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    dataset.blocks(3).gather(np.arange(13))
    assert len(dataset._maps) == 0
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before


# The fingerprint


def test_a_moved_and_renamed_corpus_keeps_its_fingerprint(tmp_path):
    write_corpus(tmp_path / "here", "a", DOCUMENTS, 4)
    write_corpus(tmp_path / "there" / "deep", "another", DOCUMENTS, 4)
    here, there = packcore.open(tmp_path / "here"), packcore.open(tmp_path / "there" / "deep")
    assert here.fingerprint == there.fingerprint
    assert here.blocks(3).fingerprint == there.blocks(3).fingerprint


def test_moved_files_without_a_manifest_keep_their_fingerprint(tmp_path):
    write_files(tmp_path / "here", "a", list(range(10)), 4)
    write_files(tmp_path / "there", "b", list(range(10)), 4)
    here, there = packcore.open(tmp_path / "here"), packcore.open(tmp_path / "there")
    assert here.fingerprint == there.fingerprint


@pytest.mark.parametrize("with_manifest", [True, False])
def test_other_data_has_another_fingerprint(tmp_path, with_manifest):
    variants = {
        "same": ([1, 2, 3, 4, 5, 6], 4, "uint16"),
        "a token": ([1, 2, 3, 4, 5, 7], 4, "uint16"),
        "order": ([1, 2, 3, 4, 6, 5], 4, "uint16"),
        "shorter": ([1, 2, 3, 4, 5], 4, "uint16"),
        "chunk_size": ([1, 2, 3, 4, 5, 6], 3, "uint16"),
        "dtype": ([1, 2, 3, 4, 5, 6], 4, "int16"),
    }
    found = {}
    for name, (tokens, chunk_size, dtype) in variants.items():
        folder = tmp_path / name
        if with_manifest:
            write_corpus(folder, "a", [tokens], chunk_size, dtype=dtype)
        else:
            write_files(folder, "a", tokens, chunk_size, dtype=dtype)
        found[name] = packcore.open(folder).fingerprint
    assert len(set(found.values())) == len(variants)


def test_the_order_of_the_files_is_part_of_the_fingerprint(tmp_path):
    paths = write_files(tmp_path, "a", list(range(8)), 4)
    assert packcore.open(paths).fingerprint != packcore.open(paths[::-1]).fingerprint


def test_other_cuts_of_the_same_data_have_other_fingerprints(corpus):
    dataset, _ = corpus
    cuts = [
        dataset.blocks(3),
        dataset.blocks(4),
        dataset.blocks(3, stride=2),
        dataset.blocks(3, within_chunks=True),
        dataset.blocks(3)[1:],
        dataset.blocks(3)[:-1],
        dataset.blocks(3)[::2],
    ]
    assert len({cut.fingerprint for cut in cuts}) == len(cuts)


# Where and how it is kept


def test_a_relative_path_holds_after_the_working_directory_changes(tmp_path, monkeypatch):
    row = write_corpus(tmp_path / "corpus", "a", DOCUMENTS, 4)
    monkeypatch.chdir(tmp_path)
    for source in ("corpus", "corpus/a", "corpus/*.json", ["corpus/a.manifest.json"]):
        monkeypatch.chdir(tmp_path)
        dataset = packcore.open(source)
        monkeypatch.chdir("/")
        check_row(dataset, row)


def test_a_pickled_dataset_holds_paths_and_no_tokens(tmp_path):
    write_corpus(tmp_path, "a", [list(range(1000)) * 100], 50_000)
    dataset = packcore.open(tmp_path)
    blocks = dataset.blocks(100)
    blocks.gather(np.arange(100))
    dataset.document_starts(0, 10)
    assert len(pickle.dumps(blocks)) < 2500
    again = pickle.loads(pickle.dumps(blocks))
    assert again.fingerprint == blocks.fingerprint
    assert again.dataset.mmap
    assert (again.gather([-1, 0]) == blocks.gather([-1, 0])).all()


def test_a_pickled_dataset_of_many_chunks_stays_small(tmp_path):
    write_corpus(tmp_path, "a", [list(range(300))], 1)
    assert len(pickle.dumps(packcore.open(tmp_path))) < 400 * 300


def test_a_copy_or_pickle_keeps_how_it_reads(tmp_path):
    write_files(tmp_path, "a", [1, 2, 0, 3, 3, 3, 0, 0], 4)
    dataset = packcore.open(tmp_path, sep_token=0, mmap=False)
    for again in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert not again.mmap
        assert again.document_starts(0, again.num_tokens).tolist() == [0, 3]


SPAWNED = """
    import multiprocessing, sys
    import packcore

    def read(blocks):
        return blocks.gather([0, -1]).tolist(), blocks.dataset.num_documents

    if __name__ == "__main__":
        blocks = packcore.open(sys.argv[1]).blocks(4)
        here = read(blocks)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(read, (blocks,)) == here
        print(here)
"""


def test_a_spawned_process_reads_the_same(tmp_path):
    write_corpus(tmp_path / "corpus", "a", DOCUMENTS, 4)
    script = tmp_path / "spawned.py"
    script.write_text(textwrap.dedent(SPAWNED))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "corpus")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (
        "([[11, 12, 13, 21], [26, 27, 28, 29]], 5)\n",
        "",
        0,
    )


def test_nothing_is_read_of_the_payload_until_it_is_asked_for(tmp_path):
    row = write_corpus(tmp_path, "a", DOCUMENTS, 4)
    dataset = packcore.open(tmp_path)
    blocks = dataset.blocks(4)
    assert (len(blocks), blocks.num_dropped_tokens, dataset.num_documents) == (3, 3, 5)
    assert len(dataset._maps) == 0
    assert len(dataset._starts) == 0
    check_row(dataset, row)


def test_a_dataset_lets_go_of_its_maps_when_it_goes(tmp_path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    write_files(tmp_path, "a", list(range(40)), 4)
    before = len(os.listdir("/proc/self/fd"))
    dataset = packcore.open(tmp_path)
    dataset.tokens(0, 40)
    dataset.num_documents  # noqa: B018 - what it caches must not hold on to the maps
    del dataset
    assert len(os.listdir("/proc/self/fd")) == before


MANY_SETS = """
    import resource, sys
    import numpy as np
    import packcore

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    sources = [packcore.open(folder).blocks(2) for folder in sys.argv[1:]]
    for _ in range(2):
        for blocks in sources:
            assert blocks.gather(np.arange(100)).reshape(-1).tolist() == list(range(200))
    mixture = packcore.Mixture({str(number): (one, 1) for number, one in enumerate(sources)})
    runs = [
        iter(packcore.Loader(mixture, 16, seed=1, shuffle=shuffle, prefetch=prefetch))
        for shuffle in ("global", "window")
        for prefetch in (0, 2)
    ]
    runs += [
        iter(packcore.Loader(blocks[:30], 4, seed=seed, prefetch=0))
        for blocks in sources
        for seed in range(3)
    ]
    for _ in range(60):
        for batch in map(next, runs):
            assert (batch[:, 0] + 1 == batch[:, 1]).all()
"""


def test_many_data_sets_stay_below_the_limit_on_open_files_together(tmp_path):
    pytest.importorskip("resource")
    folders = [tmp_path / str(number) for number in range(6)]
    for folder in folders:
        write_files(folder, "a", list(range(200)), 2)
    subprocess.run([sys.executable, "-c", textwrap.dedent(MANY_SETS), *folders], check=True)


class Lying:
    """A chunk that holds something else than it says."""

    path, access, id_range, has_documents, num_documents = "lying", "map", None, False, None
    missing_documents = "It knows none."

    def __init__(self, tokens):
        self.tokens, self.num_tokens, self.dtype = tokens, 8, np.dtype("int32")

    def map(self):
        return self.tokens


@pytest.mark.parametrize(
    "tokens", [np.zeros(7, np.int32), np.zeros(8, np.int64), np.zeros((8, 1), np.int32)]
)
def test_a_chunk_that_holds_something_else_than_it_says_is_told(tokens):
    blocks = Dataset([Lying(tokens)]).blocks(4)
    for read in (lambda: blocks[0], lambda: blocks.gather([1])):
        with pytest.raises(packcore.errors.FormatError) as caught:
            read()
        assert str(caught.value).startswith("lying must hold 8 tokens of int32, as its reader says")


def test_a_file_that_shrinks_after_opening_is_told_by_name(tmp_path):
    paths = write_files(tmp_path, "a", list(range(8)), 4)
    for mmap in (True, False):
        dataset = packcore.open(tmp_path, mmap=mmap)
        whole = Path(paths[1]).read_bytes()
        os.truncate(paths[1], len(whole) - 1)
        with pytest.raises(packcore.errors.FormatError, match="is truncated") as info:
            dataset.tokens(0, 8)
        assert info.value.path == paths[1]
        Path(paths[1]).write_bytes(whole)


def test_a_file_that_is_gone_after_opening_is_told_by_name(tmp_path):
    paths = write_files(tmp_path, "a", list(range(8)), 4)
    dataset = packcore.open(tmp_path)
    Path(paths[1]).unlink()
    with pytest.raises(FileNotFoundError, match=r"a_0000000001\.bin"):
        dataset.tokens(0, 8)


def test_the_largest_and_smallest_id_are_those_of_all_manifests(tmp_path):
    write_corpus(tmp_path, "a", [[5, 6]], 4)
    write_corpus(tmp_path, "b", [[4], [900]], 4)
    assert packcore.open(tmp_path).id_range == (4, 900)


def test_one_chunk_without_a_manifest_leaves_the_ids_unknown(tmp_path):
    write_corpus(tmp_path, "a", [[5, 6]], 4)
    path = write_chunk(tmp_path / "b_0000000000.bin", [1, 2, 3, 4])
    shutil.copy(path, tmp_path / "loose.bin")
    assert packcore.open([tmp_path / "a.manifest.json", tmp_path / "loose.bin"]).id_range is None
