"""llm.c, nanoGPT, datatrove, OLMo and NumPy files: what is read, asked for and refused."""

import gzip
import io
import pickle
import shutil
import struct

import numpy as np
import pytest
from samples import DOCUMENTS, SAMPLES, WITH_0, copy_of, documents_of

import packcore
from packcore.errors import ArgumentError, FormatError, MismatchError
from packcore.formats.raw import read_vocab_size

GPT2 = [[50256, *document] for document in DOCUMENTS]
LLAMA3 = [[128000, *document] for document in DOCUMENTS]


@pytest.mark.parametrize(
    ("name", "documents"),
    [("sample_train_000001.bin", GPT2), ("llama3_train_000001.bin", LLAMA3)],
)
def test_llmc_documents_begin_with_the_end_of_text_token(name, documents):
    assert documents_of(SAMPLES / "llmc" / name) == documents


def test_an_llmc_document_runs_on_into_the_next_file(tmp_path):
    for number, tokens in enumerate([[50256, 1, 2], [3, 50256, 4], [5]]):
        header = np.zeros(256, "<i4")
        header[:3] = 20240520, 1, len(tokens)
        path = tmp_path / f"web_train_{number:06d}.bin"
        path.write_bytes(header.tobytes() + np.array(tokens, "<u2").tobytes())
    assert documents_of(tmp_path) == [[50256, 1, 2, 3], [50256, 4, 5]]


def test_an_llmc_evaluation_set_is_refused():
    with pytest.raises(FormatError, match=r"is an llm\.c evaluation set") as info:
        packcore.open(SAMPLES / "llmc" / "eval_val.bin")
    assert info.value.got == 20240522


def test_a_folder_of_several_splits_is_not_mixed():
    with pytest.raises(MismatchError, match=r"These are files of several splits: .*val.*train"):
        packcore.open(SAMPLES / "llmc")
    with pytest.raises(MismatchError, match="These are files of several splits"):
        packcore.open(SAMPLES / "nanogpt" / "*.bin", dtype="uint16")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data[:-2], "is truncated: 15 tokens of uint16 need 1054 bytes; got 1052"),
        (lambda data: data + b"\x00\x00", "has another size than its header says"),
        (lambda data: data[:100], "is cut off inside its header"),
        (lambda data: data[:4] + b"\x02" + data[5:], "has llm.c version 2; expected 1"),
    ],
)
def test_damaged_llmc_files_are_refused(tmp_path, edit, message):
    path = tmp_path / "x.bin"
    path.write_bytes(edit((SAMPLES / "llmc" / "sample_train_000001.bin").read_bytes()))
    with pytest.raises(FormatError, match=message) as info:
        packcore.open(path)
    assert info.value.path == str(path)


def test_nanogpt_files_ask_for_their_dtype():
    path = SAMPLES / "nanogpt" / "train.bin"
    with pytest.raises(
        ArgumentError, match=r"dtype must be named for .*nanoGPT writes uint16"
    ) as e:
        packcore.open(path)
    assert e.value.name == "dtype"
    assert packcore.open(path, dtype="uint16").num_tokens == 15
    assert documents_of(path, dtype="uint16", sep_token=50256) == [
        [*document, 50256] for document in DOCUMENTS
    ]


def test_a_dtype_that_cuts_a_token_is_refused():
    with pytest.raises(FormatError, match="has 30 bytes; expected a multiple of 4"):
        packcore.open(SAMPLES / "nanogpt" / "train.bin", dtype="uint32")


@pytest.mark.parametrize("dtype", [">u2", "float32", "bool", "nonsense"])
def test_a_dtype_that_no_token_has_is_refused(dtype):
    with pytest.raises(ArgumentError, match="dtype must be"):
        packcore.open(SAMPLES / "nanogpt" / "train.bin", dtype=dtype)


def test_ids_beyond_the_vocabulary_of_meta_pkl_show_a_wrong_dtype(tmp_path):
    folder = copy_of("nanogpt", tmp_path)
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65, "itos": {}}))
    with pytest.raises(FormatError, match=r"has id 65535, but the meta\.pkl .* there are 65"):
        packcore.open(folder / "train.bin", dtype="uint16")


def test_a_pickle_is_never_carried_out(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path / "was_here").touch, ()

    meta = tmp_path / "meta.pkl"
    meta.write_bytes(pickle.dumps({"bomb": Bomb(), "vocab_size": 70000}))
    shutil.copy(SAMPLES / "nanogpt" / "train.bin", tmp_path)
    assert read_vocab_size(str(meta)) == 70000
    assert packcore.open(tmp_path / "train.bin", dtype="uint16").num_tokens == 15
    assert not (tmp_path / "was_here").exists()


@pytest.mark.parametrize("zeros", [30, 10_000])
def test_a_file_of_zeros_is_refused(tmp_path, zeros):
    path = tmp_path / "train.bin"
    path.write_bytes(bytes(zeros))
    with pytest.raises(FormatError, match="whoever wrote it stopped before the end"):
        packcore.open(path, dtype="uint16")


def test_zeros_that_were_never_overwritten_are_refused(tmp_path):
    path = tmp_path / "part.npy"
    path.write_bytes(np.arange(1, 100, dtype="<u2").tobytes() + bytes(5000))
    with pytest.raises(FormatError, match="is zeros in its last 4096 bytes") as info:
        packcore.open(path, dtype="uint16")
    assert info.value.offset == path.stat().st_size - 4096


@pytest.mark.parametrize(
    ("name", "documents"),
    [
        ("u16", WITH_0),
        ("noeos", DOCUMENTS),
        ("split", [WITH_0[2], WITH_0[0], WITH_0[1], WITH_0[3]]),
        ("u16_shuf", [WITH_0[2], WITH_0[0], WITH_0[1], WITH_0[3]]),
        ("u16_merged", [WITH_0[2], WITH_0[0], WITH_0[1], WITH_0[3]]),
        ("u32", [*WITH_0[:3], [50000, 65535, 69000, 0]]),
        ("chunk", [[9, 0], [50000, 65535, 0], [1, 2, 3, 0], [4], [5, 0], [6, 7, 8]]),
    ],
)
def test_datatrove_documents_are_those_of_the_index(name, documents):
    assert documents_of(SAMPLES / "datatrove" / name) == documents


def test_a_datatrove_file_is_found_under_any_of_its_names():
    folder = SAMPLES / "datatrove" / "u16"
    for path in folder.iterdir():
        assert documents_of(path) == WITH_0
    assert documents_of(folder / "*") == WITH_0


def test_a_datatrove_index_of_u32_is_read_as_well(tmp_path):
    folder = copy_of("datatrove/u16", tmp_path)
    index = folder / "s_00000_unshuffled.ds.index"
    index.write_bytes(np.array([4, 7, 12, 15], "<u4").tobytes())
    assert documents_of(folder) == WITH_0


def test_datatrove_tokens_without_an_index_have_the_metadata_dtype(tmp_path):
    folder = copy_of("datatrove/u32", tmp_path)
    (folder / "s_00000_unshuffled.ds.index").unlink()
    dataset = packcore.open(folder)
    assert (dataset.dtype, dataset.num_tokens, dataset.num_documents) == (np.uint32, 16, None)
    assert documents_of(folder, sep_token=0) == [*WITH_0[:3], [50000, 65535, 69000, 0]]


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        ("", b"\x01\x00" * 14, r"disagrees with its \.index: that ends with 15"),
        (".index", np.array([4, 3, 12, 15], "<u8").tobytes(), "is damaged: end 1 is 3"),
        (".metadata", b"tok|2\n16\n16T", r"disagrees with its \.metadata: 16 tokens"),
        (".metadata", b"tok|3\n15\n15T", "is damaged: expected `tokenizer|token_size`"),
    ],
)
def test_datatrove_files_that_disagree_are_refused(tmp_path, suffix, content, message):
    folder = copy_of("datatrove/u16", tmp_path)
    (folder / f"s_00000_unshuffled.ds{suffix}").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        packcore.open(folder)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("olmo/part-0-00002.npy", "uint16"),
        ("olmo/part-0-00004.npy", "uint32"),
        ("olmo/tail_u16.npy", "uint16"),
        ("dolma/part-0-00000.npy", "uint16"),
    ],
)
def test_olmo_documents_are_those_of_the_table(name, dtype):
    assert documents_of(SAMPLES / name, dtype=dtype) == WITH_0


def test_olmo_documents_are_found_by_a_separator_without_a_table(tmp_path):
    shutil.copy(SAMPLES / "olmo" / "tail_u16.npy", tmp_path / "a.npy")
    shutil.copy(SAMPLES / "olmo" / "part-0-00002.npy", tmp_path / "b.npy")
    found = documents_of(tmp_path, dtype="uint16", sep_token=0)
    assert found == [*WITH_0, [11, 12], *WITH_0]


def test_olmo_files_ask_for_their_dtype_and_say_which_fits():
    with pytest.raises(ArgumentError, match="Its table fits uint32"):
        packcore.open(SAMPLES / "olmo" / "part-0-00004.npy")


def test_a_table_shows_a_wrong_dtype():
    with pytest.raises(FormatError, match="its table ends at token 15, which fits uint32"):
        packcore.open(SAMPLES / "olmo" / "part-0-00004.npy", dtype="uint16")


def test_what_dolma_leaves_without_a_document_is_refused():
    with pytest.raises(FormatError, match=r"has no document: .*csv\.gz is empty"):
        packcore.open(SAMPLES / "dolma" / "full-0-00000.npy", dtype="uint16")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,4\n4,7\n7,12\n12,16\n", r"row 3 is 12,16; expected a start of 12"),
        ("0,4\n5,15\n", r"row 1 is 5,15; expected a start of 4"),
        ("0,4\nx,y\n", "is not a table of documents: invalid literal"),
        ("0\n", "is not a table of documents"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, rows, message):
    folder = copy_of("olmo", tmp_path)
    (folder / "part-0-00002.csv.gz").write_bytes(gzip.compress(rows.encode()))
    with pytest.raises(FormatError, match=message):
        packcore.open(folder / "part-0-00002.npy", dtype="uint16")


@pytest.mark.parametrize("dtype", ["<u1", "<i8", "<u4"])
def test_numpy_files_say_their_dtype(tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.array([1, 2, 0, 3], dtype))
    assert packcore.open(tmp_path / "a.npy").dtype == np.dtype(dtype)
    assert documents_of(tmp_path / "a.npy", sep_token=0) == [[1, 2, 0], [3]]


@pytest.mark.parametrize("array", [np.zeros((2, 2), "<u2"), np.array([1.5]), np.array([1], ">u2")])
def test_numpy_files_of_anything_else_are_refused(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(FormatError, match="but not one row of little-endian integers"):
        packcore.open(tmp_path / "a.npy")


def test_a_numpy_file_of_objects_is_never_unpickled(tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, np.array([object], object), allow_pickle=True)
    (tmp_path / "a.npy").write_bytes(buffer.getvalue())
    with pytest.raises(FormatError, match="but not one row"):
        packcore.open(tmp_path / "a.npy")


def test_a_truncated_numpy_file_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(9, dtype="<u2"))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content[:-2])
    with pytest.raises(FormatError, match="is truncated: 9 tokens of uint16") as info:
        packcore.open(tmp_path / "a.npy")
    assert info.value.expected - info.value.got == 2


def test_ids_of_uint32_flow_through_a_loader(tmp_path):
    header = struct.pack("<3i", 20240801, 7, 64)
    tokens = np.arange(4_000_000_000, 4_000_000_064, dtype="<u4")
    (tmp_path / "x_train_1.bin").write_bytes(header + bytes(1024 - 12) + tokens.tobytes())
    dataset = packcore.open(tmp_path)
    loader = packcore.Loader(dataset.blocks(8), 2, seed=1, epochs=1, dtype="int64")
    served = np.concatenate([np.array(batch) for batch in loader])
    assert sorted(served.ravel().tolist()) == tokens.tolist()
