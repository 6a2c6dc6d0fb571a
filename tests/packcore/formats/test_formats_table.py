"""Which format a path is of: by content, one for all files, and formats of the user's own."""

import errno
import itertools
import json
import os
import pickle
import shutil
import struct

import numpy as np
import pytest
from samples import DOCUMENTS, SAMPLES, copy_of, documents_of

import packcore
from packcore import formats
from packcore.errors import (
    ArgumentError,
    ArgumentTypeError,
    FormatError,
    MismatchError,
    NoDataError,
)
from packcore.formats import table


@pytest.fixture
def registered(monkeypatch):
    """What a test registers goes when it ends."""
    monkeypatch.setattr(table, "_FORMATS", list(table._FORMATS))


def test_every_format_is_listed_in_the_order_of_asking():
    assert formats.list_formats()[-14:] == [
        *(
            "LITPKDS",
            "Megatron",
            "fairseq",
            "fairseq Huffman",
            "llm.c",
            "datatrove",
            "litdata",
            "MDS",
        ),
        *("Hugging Face", "levanter", "ArrayRecord", "NumPy", "OLMo", "raw"),
    ]


@pytest.mark.usefixtures("registered")
def test_a_format_of_one_s_own_takes_a_few_lines(tmp_path):
    def find(path, options):  # noqa: ARG001 - every format's signature
        return path if formats.read_head(path).startswith(b"MYTOKENS") else None

    def open_files(paths, options):  # noqa: ARG001 - as above
        for path in paths:
            count = int.from_bytes(formats.read_head(path)[8:16], "little")
            yield formats.PlainTokens(
                path=path,
                dtype=np.dtype("<u2"),
                offset=16,
                num_tokens=count,
                documents=formats.Separators(0),
            )

    formats.register(formats.Format("mine", find, open_files))
    for number, tokens in enumerate([[1, 2, 0, 3, 0], [4, 0, 5]]):
        content = b"MYTOKENS" + struct.pack("<Q", len(tokens)) + np.array(tokens, "<u2").tobytes()
        (tmp_path / f"{number}.tok").write_bytes(content)
    assert documents_of(tmp_path) == [[1, 2, 0], [3, 0], [4, 0], [5]]
    assert formats.list_formats()[0] == "mine"
    loader = packcore.Loader(packcore.open(tmp_path).blocks(2), 2, seed=1, epochs=1)
    served = np.concatenate([np.array(batch) for batch in loader])
    assert sorted(served.tolist()) == [[0, 3], [0, 4], [0, 5], [1, 2]]
    (tmp_path / "0.tok").write_bytes(b"MYTOKENS" + struct.pack("<Q", 99))
    with pytest.raises(FormatError, match="is truncated"):
        packcore.open(tmp_path).tokens(0, 99)


@pytest.mark.usefixtures("registered")
def test_a_format_of_the_same_name_is_replaced():
    mine = formats.Format("raw", lambda path, options: None, lambda paths, options: [])  # noqa: ARG005
    formats.register(mine)
    assert formats.list_formats().count("raw") == 1
    with pytest.raises(FormatError, match="is of no known format"):
        packcore.open(SAMPLES / "nanogpt" / "train.bin")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "it is empty"),
        (b"\x1f\x8b\x08", "it looks like a gzip file; decompress it first"),
        (pickle.dumps({}), r"it starts with b'\\x80"),
        (b"hello world", "it starts with b'hello w' and has 11 bytes"),
    ],
)
def test_an_unknown_file_is_refused_with_what_was_found(tmp_path, content, found):
    path = tmp_path / "x.dat"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=f"is of no known format: {found}") as info:
        packcore.open(path)
    assert (info.value.path, info.value.offset) == (str(path), 0)
    assert "Megatron" in info.value.expected


@pytest.mark.parametrize("magic", [b"PAR1", b"LITPKDS", b"MMIDIDX\x00\x00", b"\x93NUMPY"])
def test_a_known_magic_is_never_taken_for_raw_tokens(tmp_path, magic):
    path = tmp_path / "x.bin"
    path.write_bytes(magic + bytes(41))
    with pytest.raises((FormatError, ImportError)):
        packcore.open(path, dtype="uint8")


def test_data_of_an_index_that_is_not_known_is_never_taken_for_raw_tokens(tmp_path):
    for name in ("a.idx", "a.bin"):
        (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(FormatError, match=r"a\.bin is of no known format"):
        packcore.open(tmp_path / "a.bin", dtype="uint8")


def test_names_do_not_decide(tmp_path):
    shutil.copy(SAMPLES / "llmc" / "sample_train_000001.bin", tmp_path / "tokens.npy")
    np.save(tmp_path / "x.npy", np.array([1, 2], np.uint16))
    (tmp_path / "x.npy").rename(tmp_path / "x.bin")
    assert packcore.open(tmp_path / "tokens.npy").document(0).tolist() == [50256, 1, 2, 3]
    assert packcore.open(tmp_path / "x.bin").tokens(0, 2).tolist() == [1, 2]


def test_several_prefixes_of_chunks_are_opened_together(tmp_path):
    for prefix in ("train", "val"):
        content = b"LITPKDS" + struct.pack("<QBQHH", 1, 8, 2, 1, 2)
        (tmp_path / f"{prefix}_0000000000.bin").write_bytes(content)
    assert packcore.open(tmp_path).num_tokens == 4


def test_files_of_two_formats_are_not_joined(tmp_path):
    paths = [SAMPLES / "llmc" / "sample_train_000001.bin", SAMPLES / "megatron" / "mm_uint16.idx"]
    with pytest.raises(
        MismatchError, match=r"of one format: .*mm_uint16\.idx is Megatron; .*llm\.c"
    ):
        packcore.open(paths)
    for path in (*paths, SAMPLES / "megatron" / "mm_uint16.bin"):
        shutil.copy(path, tmp_path)
    with pytest.raises(MismatchError, match="The files must be of one format"):
        packcore.open(tmp_path)


def test_files_of_two_dtypes_are_not_joined():
    paths = [SAMPLES / "megatron" / f"text_document_{name}" for name in ("uint16", "int32")]
    with pytest.raises(MismatchError, match=r"has dtype int32, but .* has uint16"):
        packcore.open([f"{path}.idx" for path in paths])


def test_a_list_keeps_its_order_and_names_each_pair_once():
    names = [f"text_document_{suffix}" for suffix in ("uint16.bin", "uint16.idx")]
    paths = [SAMPLES / "megatron" / name for name in ["mm_uint16.idx", *names, names[0]]]
    assert documents_of(paths) == DOCUMENTS * 2
    assert documents_of(iter(paths)) == DOCUMENTS * 2


def test_a_glob_finds_pairs_and_what_stands_beside_them():
    assert documents_of(SAMPLES / "megatron" / "*uint16*") == DOCUMENTS * 2
    assert documents_of(SAMPLES / "megatron" / "*uint16.bin") == DOCUMENTS * 2


def test_a_folder_passes_over_what_is_no_data(tmp_path):
    for path in (SAMPLES / "megatron").glob("mm_uint16.*"):
        shutil.copy(path, tmp_path)
    (tmp_path / "README.md").write_text("about")
    (tmp_path / ".hidden.bin").write_bytes(b"xx")
    (tmp_path / "more").mkdir()
    assert documents_of(tmp_path) == DOCUMENTS


def test_a_sep_token_that_the_dtype_has_not_is_refused():
    with pytest.raises(ArgumentError, match=r"sep_token must be in \[0, 65535\]") as info:
        packcore.open(SAMPLES / "nanogpt" / "train.bin", dtype="uint16", sep_token=70000)
    assert info.value.name == "sep_token"


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(NoDataError, match="There is no file"):
        packcore.open([tmp_path / "x.bin"])
    with pytest.raises(NoDataError, match="is a folder; expected a file"):
        packcore.open([SAMPLES / "megatron" / "mm_uint16.idx", tmp_path])
    with pytest.raises(NoDataError, match="No file is at"):
        packcore.open(tmp_path / "corpus")


def test_foreign_data_sets_pickle_small_and_open_again():
    dataset = packcore.open(SAMPLES / "megatron" / "text_sentence_int32")
    content = pickle.dumps(dataset)
    again = pickle.loads(content)
    assert len(content) < 1500
    assert again.fingerprint == dataset.fingerprint
    assert [again.document(index).tolist() for index in range(4)] == DOCUMENTS


def test_a_fingerprint_tells_foreign_data_sets_apart():
    names = ["megatron/mm_uint16", "megatron/text_document_int32", "datatrove/u16", "litdata/"]
    names[3] += "tokens_tensor_i32"
    prints = {packcore.open(SAMPLES / name).fingerprint for name in names}
    assert len(prints) == 4


def test_a_loader_resumes_in_a_foreign_data_set():
    blocks = packcore.open(SAMPLES / "megatron" / "text_document_int32").blocks(3)
    whole = packcore.Loader(blocks, 1, seed=5, epochs=4)
    batches = [np.array(batch).tolist() for batch in whole]
    first = packcore.Loader(blocks, 1, seed=5, epochs=4)
    taken = [np.array(batch).tolist() for batch in itertools.islice(first, 5)]
    rest = packcore.Loader(blocks, 1, seed=5, epochs=4)
    rest.load_state_dict(first.state_dict())
    assert taken + [np.array(batch).tolist() for batch in rest] == batches


@pytest.mark.parametrize("name", ["a\0b", "a\0b.bin", "a\0b.idx", "\ud800.bin"])
def test_what_no_file_can_be_called_is_told(name):
    with pytest.raises(NoDataError, match=r"'.*' cannot be the name of a file"):
        packcore.open([name], dtype="uint16")


@pytest.mark.parametrize(
    ("sample", "field"), [("litdata/tokens_tensor_i32", "chunks"), ("mds/ndarray_dyn", "shards")]
)
def test_an_index_that_names_a_file_longer_than_names_can_be_is_told(tmp_path, sample, field):
    folder = copy_of(sample, tmp_path)
    index = folder / "index.json"
    record = json.loads(index.read_text())
    name = "x" * 300
    if field == "chunks":
        record[field][0]["filename"] = name
    else:
        record[field][0]["raw_data"]["basename"] = name
    index.write_text(json.dumps(record))
    with pytest.raises(NoDataError, match=r"x{300} cannot be read: .*the index is damaged") as info:
        packcore.open(folder)
    assert info.value.path == str(folder / name)


def test_a_link_that_leads_to_itself_is_told(tmp_path):
    link = tmp_path / "train.bin"
    link.symlink_to(link)
    for source in (link, [link]):
        with pytest.raises(NoDataError, match=r"train\.bin cannot be read: .*links") as info:
            packcore.open(source, dtype="uint16")
        assert info.value.path == str(link)


@pytest.mark.parametrize("name", ["train.bin", "train.arrow", "train.manifest.json", "tokens"])
def test_a_pipe_is_refused_at_once(tmp_path, name):
    pipe = tmp_path / name
    os.mkfifo(pipe)
    for source in (pipe, [pipe]):
        with pytest.raises(NoDataError, match="is a pipe or a device; expected a file") as info:
            packcore.open(source, dtype="uint16")
        assert info.value.path == str(pipe)


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="only Linux has it")
def test_a_file_that_opens_and_cannot_be_read_is_told():
    with pytest.raises(NoDataError, match=r"/proc/self/mem cannot be read: "):
        packcore.open("/proc/self/mem")


@pytest.mark.parametrize("name", ["train.bin", "train.npy", "train.idx", "train.arrow"])
def test_a_file_that_one_may_not_read_is_told_with_the_way_out(tmp_path, monkeypatch, name):
    path = tmp_path / name
    path.write_bytes(bytes(64))
    real_open = os.open

    def refuse(asked, *arguments, **options):  # root may read all that there is
        if os.fspath(asked) == str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), asked)
        return real_open(asked, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    for source in (path, [path], tmp_path):
        with pytest.raises(NoDataError, match=r"denied\. Get the right to read it") as info:
            packcore.open(source, dtype="uint16")
        assert info.value.path == str(path)


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_of_paths_is_refused_as_it_has_no_order(kind):
    files = kind([SAMPLES / "megatron" / "mm_uint16.idx"])
    with pytest.raises(ArgumentTypeError, match="must be a list, in the order wanted") as info:
        packcore.open(files)
    assert (info.value.name, info.value.value) == ("source", files)


def test_a_list_may_name_prefixes(tmp_path):
    megatron = [SAMPLES / "megatron" / name for name in ("mm_uint16", "text_document_uint16")]
    assert documents_of(megatron) == 2 * DOCUMENTS
    for name in ("b", "a", "c"):
        with packcore.PackedDatasetBuilder(tmp_path, name, 4, sep_token=0, vocab_size=9) as builder:
            builder.add_documents([ord(name) % 9, 1, 2, 3, 4], [2, 3])
    (tmp_path / "c.manifest.json").unlink()
    assert documents_of([tmp_path / "b", tmp_path / "a"]) == [[8, 1], [2, 3, 4], [7, 1], [2, 3, 4]]
    assert packcore.open([tmp_path / "c", tmp_path / "b"]).tokens(0, 5).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(MismatchError, match="must be of one format"):
        packcore.open([megatron[0], tmp_path / "a"])
    with pytest.raises(NoDataError, match="There is no file"):
        packcore.open([tmp_path / "a", tmp_path / "d"])


def test_a_corpus_of_no_document_is_told(tmp_path):
    with packcore.PackedDatasetBuilder(tmp_path, "web", 4, sep_token=0, vocab_size=9) as builder:
        builder.add_documents([], [])
    for source in (tmp_path, tmp_path / "web", [tmp_path / "web.manifest.json"]):
        with pytest.raises(NoDataError, match=r"corpus is empty: .*json lists no chunk") as info:
            packcore.open(source)
        assert info.value.path == str(tmp_path / "web.manifest.json")


@pytest.mark.usefixtures("registered")
def test_a_format_without_its_functions_is_not_registered():
    before = formats.list_formats()
    for wrong, name in (
        (formats.Format("x", None, list), "find"),
        (formats.Format("x", list, None), "open_files"),
        (formats.Format(None, list, list), "name"),
        ("x", "added"),
    ):
        with pytest.raises(ArgumentTypeError, match=f"{name} .*must be") as info:
            formats.register(wrong)
        assert info.value.name == name
    assert formats.list_formats() == before
