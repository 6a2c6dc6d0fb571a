"""Random and bit-flipped files of every format: read or refused with packcore's own errors."""

import pytest
from samples import check_damaged, copy_of

CASES = [
    ("megatron", ["mm_uint16.idx", "mm_uint16.bin"], "mm_uint16.idx", {}),
    ("megatron", ["text_sentence_int32.idx"], "text_sentence_int32.bin", {}),
    ("fairseq", ["mmap_uint32.idx", "mmap_uint32.bin"], "mmap_uint32.idx", {}),
    ("fairseq", ["legacy_int32.idx", "legacy_int32.bin"], "legacy_int32.idx", {}),
    ("llmc", ["sample_train_000001.bin"], "sample_train_000001.bin", {}),
    ("llmc", ["llama3_train_000001.bin"], "llama3_train_000001.bin", {}),
    ("nanogpt", ["meta.pkl"], "train.bin", {"dtype": "uint16"}),
    ("nanogpt", ["train.bin"], "train.bin", {"dtype": "uint16", "sep_token": 50256}),
    (
        "datatrove/u16",
        [f"s_00000_unshuffled.ds{suffix}" for suffix in ("", ".index", ".metadata")],
        "s_00000_unshuffled.ds",
        {},
    ),
    ("olmo", ["part-0-00002.csv.gz", "part-0-00002.npy"], "part-0-00002.npy", {"dtype": "uint16"}),
]


@pytest.mark.parametrize(("sample", "files", "source", "options"), CASES)
def test_damaged_files_are_read_or_refused(tmp_path, sample, files, source, options):
    folder = copy_of(sample, tmp_path)
    counts = check_damaged(folder, files, folder / source, seed=7, rounds=100, **options)
    assert counts["refused"] > 0
