"""Random and bit-flipped files of every format: read or refused with packcore's own errors."""

import numpy as np
import pytest
from samples import check_damaged, copy_of

from packcore.errors import FormatError
from packcore.formats.pieces import DecodedTokens

CASES = [
    ("megatron", ["mm_uint16.idx", "mm_uint16.bin"], "mm_uint16.idx", {}),
    ("megatron", ["text_sentence_int32.idx"], "text_sentence_int32.bin", {}),
    ("fairseq", ["mmap_uint32.idx", "mmap_uint32.bin"], "mmap_uint32.idx", {}),
    ("fairseq", ["legacy_int32.idx", "legacy_int32.bin"], "legacy_int32.idx", {}),
    ("fairseq", ["huff.idx", "huff.bin", "huff.vocab"], "huff.idx", {}),
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
    ("litdata/tokens_tensor_i32", ["chunk-0-0.bin", "chunk-0-1.bin", "index.json"], "", {}),
    ("litdata/pytree_no_item_loader", ["chunk-0-0.bin"], "", {}),
    ("mds/ndarray_dyn", ["shard.00000.mds", "index.json"], "", {}),
    ("mds/ndarray_int32", ["shard.00000.mds"], "", {}),
    ("mds/bytes_int64", ["shard.00000.mds"], "", {}),
    ("olmo", ["part-0-00002.csv.gz", "part-0-00002.npy"], "part-0-00002.npy", {"dtype": "uint16"}),
]


WITH_EXTRAS = [
    ("mds/zstd", ["shard.00000.mds.zstd", "index.json"], "", "backports.zstd"),
    ("hf/disk_uint16", ["data-00000-of-00001.arrow", "state.json"], "", "pyarrow"),
    ("hf", ["ipc_file_large_u16.arrow"], "ipc_file_large_u16.arrow", "pyarrow"),
    ("levanter/cache/train", ["shard_ledger.json", "input_ids/data/zarr.json"], "", "zarr"),
    ("levanter/cache/train", ["input_ids/data/c/0", "input_ids/offsets/c/0"], "", "zarr"),
    ("arrayrecord", ["tfex_default.array_record"], "tfex_default.array_record", "array_record"),
    ("hf", ["uint16.parquet"], "uint16.parquet", "pyarrow"),
]


@pytest.mark.parametrize(("sample", "files", "source", "options"), CASES)
def test_damaged_files_are_read_or_refused(tmp_path, sample, files, source, options):
    folder = copy_of(sample, tmp_path)
    counts = check_damaged(folder, files, folder / source, seed=7, rounds=60, **options)
    assert counts["refused"] > 0


@pytest.mark.parametrize(("sample", "files", "source", "package"), WITH_EXTRAS)
def test_damaged_files_that_need_a_package_are_read_or_refused(
    tmp_path, sample, files, source, package
):
    pytest.importorskip(package)
    folder = copy_of(sample, tmp_path)
    counts = check_damaged(folder, files, folder / source, seed=7, rounds=60)
    assert counts["refused"] > 0


def test_a_decoded_file_that_holds_fewer_documents_than_it_says_is_refused(tmp_path):
    class Decoder:
        def starts(self, _path):
            return np.array([0, 2])

    path = str(tmp_path / "a.parquet")
    file = DecodedTokens(path=path, dtype=np.dtype("<u2"), num_tokens=5, decoder=Decoder(), count=3)
    with pytest.raises(FormatError, match="holds 2 documents; expected 3") as info:
        file.document_starts()
    assert (info.value.path, info.value.expected, info.value.got) == (path, 3, 2)
