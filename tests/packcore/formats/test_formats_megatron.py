"""Megatron and fairseq: the two dialects of one magic, their codes, layouts and known damage."""

import struct

import numpy as np
import pytest
from samples import DOCUMENTS, SAMPLES, WITH_0, copy_of, documents_of

import packcore
from packcore.errors import ArgumentError, FormatError, NoDataError
from packcore.formats.huffman import read_tree

MAGIC = b"MMIDIDX\x00\x00"


def write_pair(folder, lengths, index, *, code=8, dtype="<u2", modes="", pointers=None):
    """Writes a Megatron pair by hand; tokens are 1, 2, 3, ... Returns the index file."""
    tokens = np.arange(1, sum(lengths) + 1).astype(dtype)
    if pointers is None:
        itemsize = np.dtype(dtype).itemsize
        pointers = [itemsize * sum(lengths[:at]) for at in range(len(lengths))]
    parts = [
        MAGIC + struct.pack("<QBQQ", 1, code, len(lengths), len(index)),
        np.array(lengths, "<i4").tobytes(),
        np.zeros(len(lengths), "<i4").tobytes() if modes == "i4 between" else b"",
        np.array(pointers, "<i8").tobytes(),
        np.array(index, "<i8").tobytes(),
        np.zeros(len(lengths), "<i4").tobytes() if modes == "i4 behind" else b"",
        np.ones(len(lengths), "<i1").tobytes() if modes == "i1" else b"",
    ]
    path = folder / "text_document.idx"
    path.write_bytes(b"".join(parts))
    path.with_suffix(".bin").write_bytes(tokens.tobytes())
    return path


@pytest.mark.parametrize(
    "name", ["mm_uint16", "text_document_int32", "text_document_uint16", "text_sentence_int32"]
)
@pytest.mark.parametrize("suffix", ["", ".idx", ".bin"])
def test_megatron_files_open_by_index_data_or_prefix(name, suffix):
    source = SAMPLES / "megatron" / f"{name}{suffix}"
    assert documents_of(source) == DOCUMENTS
    assert packcore.open(source).dtype == np.dtype("uint16" if "uint16" in name else "int32")


def test_what_datatrove_wrote_for_megatron_opens_too():
    assert documents_of(SAMPLES / "datatrove" / "u16_megatron") == WITH_0
    assert documents_of(SAMPLES / "datatrove" / "u32_megatron")[3] == [50000, 65535, 69000, 0]


@pytest.mark.parametrize("name", ["mmap_int64", "mmap_uint16", "mmap_uint32", "legacy_int32"])
@pytest.mark.parametrize("suffix", ["", ".idx", ".bin"])
def test_fairseq_files_open_by_index_data_or_prefix(name, suffix):
    source = SAMPLES / "fairseq" / f"{name}{suffix}"
    assert documents_of(source) == DOCUMENTS
    assert packcore.open(source).dtype == np.dtype(name.partition("_")[2])


@pytest.mark.parametrize("mmap", [True, False])
def test_megatron_blocks_are_the_same_mapped_or_read(mmap):
    dataset = packcore.open(SAMPLES / "megatron" / "mm_uint16", mmap=mmap)
    assert dataset.mmap is mmap
    assert dataset.blocks(4)[:].gather([1, 0]).tolist() == [[5, 6, 7, 8], [1, 2, 3, 4]]


@pytest.mark.parametrize("modes", ["", "i1", "i4 between", "i4 behind"])
def test_every_layout_of_modes_is_told_by_the_size_of_the_file(tmp_path, modes):
    path = write_pair(tmp_path, [2, 1, 3, 1], [0, 1, 3, 4], modes=modes)
    assert documents_of(path) == [[1, 2], [3, 4, 5, 6], [7]]


def test_empty_documents_are_documents(tmp_path):
    path = write_pair(tmp_path, [2, 0, 1], [0, 0, 1, 2, 3, 3])
    assert documents_of(path) == [[], [1, 2], [], [3], []]


def test_an_empty_pair_is_an_empty_data_set(tmp_path):
    dataset = packcore.open(write_pair(tmp_path, [], [0]))
    assert (dataset.num_tokens, dataset.num_documents) == (0, 0)


def test_overflowed_pointers_are_not_believed(tmp_path):
    path = write_pair(tmp_path, [2, 3], [0, 1, 2], pointers=[0, -4294967292])
    assert documents_of(path) == [[1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("code", "dtype"),
    [(6, "<f8"), (6, "<u2"), (7, "<f8"), (8, "<u2"), (8, "<u8"), (5, "<i8"), (1, "u1")],
)
def test_the_size_of_the_data_says_what_a_code_means(tmp_path, code, dtype):
    dataset = packcore.open(write_pair(tmp_path, [2, 3], [0, 1, 2], code=code, dtype=dtype))
    assert dataset.dtype == np.dtype(dtype)
    assert dataset.tokens(0, 5).tolist() == [1, 2, 3, 4, 5]


def test_a_code_with_two_meanings_of_one_size_is_asked_for(tmp_path):
    path = write_pair(tmp_path, [2, 3], [0, 1, 2], code=7, dtype="<u4")
    with pytest.raises(ArgumentError, match="means float32 or uint32, and both fit") as info:
        packcore.open(path)
    assert info.value.name == "dtype"
    assert documents_of(path, dtype="uint32") == [[1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ([0], "is missing, as merges made before May 2022 left it"),
        ([0, 1], "is damaged: it ends with 1; expected 2"),
        ([1, 2], "is damaged: it begins with 1; expected 0"),
        ([0, 2, 1, 2], "is damaged: its numbers do not ascend"),
    ],
)
def test_without_a_sound_document_index_tokens_are_served_and_documents_are_not(
    tmp_path, index, problem
):
    path = write_pair(tmp_path, [2, 3], index)
    dataset = packcore.open(path)
    assert dataset.tokens(0, 5).tolist() == [1, 2, 3, 4, 5]
    assert dataset.num_documents is None
    with pytest.raises(ArgumentError, match=problem):
        dataset.document(0)
    assert documents_of(path, sep_token=3) == [[1, 2, 3], [4, 5]]


def test_truncated_data_is_refused(tmp_path):
    folder = copy_of("megatron", tmp_path)
    data = folder / "mm_uint16.bin"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"is truncated: .*mm_uint16\.idx says 11 tokens") as info:
        packcore.open(folder / "mm_uint16.idx")
    assert (info.value.expected, info.value.got, info.value.path) == (22, 21, str(data))


def test_data_that_the_index_does_not_know_is_refused(tmp_path):
    folder = copy_of("fairseq", tmp_path)
    with (folder / "mmap_uint16.bin").open("ab") as file:
        file.write(b"\x01\x00")
    with pytest.raises(FormatError, match="has more data than its index knows") as info:
        packcore.open(folder / "mmap_uint16")
    assert (info.value.expected, info.value.got) == (22, 24)


def test_an_index_that_does_not_add_up_is_refused(tmp_path):
    path = write_pair(tmp_path, [2, 3], [0, 1, 2])
    path.write_bytes(path.read_bytes() + b"\x00\x00\x00")
    with pytest.raises(FormatError, match="does not add up: 2 sequences and 3 numbers") as info:
        packcore.open(path)
    assert info.value.got - info.value.expected == 3


def test_a_negative_length_is_refused(tmp_path):
    path = write_pair(tmp_path, [2, 3], [0, 1, 2])
    content = bytearray(path.read_bytes())
    content[38:42] = struct.pack("<i", -3)
    path.write_bytes(content)
    with pytest.raises(FormatError, match="has length -3 for sequence 1") as info:
        packcore.open(path)
    assert info.value.offset == 38


@pytest.mark.parametrize("code", [0, 9, 77])
def test_an_unknown_code_is_refused(tmp_path, code):
    path = write_pair(tmp_path, [2], [0, 1], code=code)
    with pytest.raises(FormatError, match=f"has dtype code {code}, which no writer uses"):
        packcore.open(path)


def test_an_index_without_data_is_told(tmp_path):
    path = write_pair(tmp_path, [2], [0, 1])
    path.with_suffix(".bin").unlink()
    with pytest.raises(NoDataError, match=r"There is no file .*text_document\.bin"):
        packcore.open(path)


def test_a_dtype_that_contradicts_the_index_is_refused():
    with pytest.raises(
        ArgumentError, match=r"dtype must be int32, which .* says of itself"
    ) as info:
        packcore.open(SAMPLES / "megatron" / "text_document_int32", dtype="uint16")
    assert info.value.name == "dtype"


def test_the_older_generation_with_a_document_index_is_told_by_its_size(tmp_path):
    """The variant of Megatron, NeoX and DeepSpeed, which stores ids as they are."""
    header = struct.pack("<8s6Q", b"TNTIDX\x00\x00", 1, 4, 4, 3, 3, 3)
    arrays = [[0, 1, 2, 3], [0, 2, 3, 6], [2, 1, 3], [0, 1, 3]]
    path = tmp_path / "old.idx"
    path.write_bytes(header + b"".join(np.array(one, "<i8").tobytes() for one in arrays))
    path.with_suffix(".bin").write_bytes(np.arange(1, 7, dtype="<i4").tobytes())
    assert documents_of(path) == [[1, 2], [3, 4, 5, 6]]


def test_a_stored_zero_of_the_older_generation_is_refused(tmp_path):
    header = struct.pack("<8s5Q", b"TNTIDX\x00\x00", 1, 8, 2, 1, 1)
    path = tmp_path / "old.idx"
    arrays = [[0, 1], [0, 3], [3]]
    path.write_bytes(header + b"".join(np.array(one, "<i8").tobytes() for one in arrays))
    path.with_suffix(".bin").write_bytes(np.array([5, 0, 7], "<u2").tobytes())
    with pytest.raises(FormatError, match="has a stored 0") as info:
        packcore.open(path).tokens(0, 3)
    assert info.value.offset == 2


def test_fairseq_parts_of_a_split_come_in_their_order(tmp_path):
    for part in ("", "1", "2", "10"):
        number = int(part or 0)
        index = MAGIC + struct.pack("<QBQ", 1, 8, 1) + struct.pack("<iq", 1, 0)
        (tmp_path / f"train{part}.idx").write_bytes(index)
        (tmp_path / f"train{part}.bin").write_bytes(struct.pack("<H", number))
    assert documents_of(tmp_path) == [[0], [1], [2], [10]]


def test_huffman_coded_ids_are_ranks_by_frequency():
    """The sample's vocabulary has the tokens in the order of the documents, once each."""
    ranks = [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9, 10]]
    for suffix in (".idx", ".bin", ".vocab"):
        assert documents_of(SAMPLES / "fairseq" / f"huff{suffix}") == ranks


def encode(tree, ids):
    """The bits of one item, by a walk over the whole tree: slow and obvious."""
    codes = {}

    def walk(node, code):
        if node < 0:
            codes[-1 - node] = code
        else:
            for bit, child in enumerate(tree.children[node]):
                walk(child, f"{code}{bit}")

    walk(tree.root, "")
    bits = "".join(codes[number] for number in ids) + "1"
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


def test_huffman_items_of_any_lengths_are_decoded_in_spans(tmp_path, monkeypatch):
    monkeypatch.setattr("packcore.formats.huffman._TOKENS_A_SPAN", 50)
    rng = np.random.default_rng(3)
    vocabulary = "".join(f"w{rank} {max(1, 1000 // (rank + 1))}\n" for rank in range(40))
    (tmp_path / "x.vocab").write_text(vocabulary)
    tree = read_tree(str(tmp_path / "x.vocab"))
    items = [rng.integers(0, 44, rng.integers(0, 30)).tolist() for _ in range(40)]
    data = [encode(tree, ids) for ids in items]
    (tmp_path / "x.bin").write_bytes(b"".join(data))
    ends = np.cumsum([len(one) for one in data])
    header = b"HUFFIDX\x00\x00" + struct.pack("<QQQ", 1, ends[-1], len(items))
    sizes = np.array([len(ids) for ids in items], "<i4")
    (tmp_path / "x.idx").write_bytes(header + sizes.tobytes() + ends.astype("<i8").tobytes())
    assert len(packcore.open(tmp_path / "x").chunks) > 5
    assert documents_of(tmp_path / "x") == items
