import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="ends a Ray Data pipeline")
pytest.importorskip("pandas", reason="Ray Data needs it")
pytest.importorskip("pyarrow", reason="Ray Data needs it")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

import ray  # noqa: E402

import packcore  # noqa: E402
import packcore.corpora  # noqa: E402
from packcore.errors import ArgumentError, FormatError, OverwriteError  # noqa: E402
from packcore_ray import PackedDatasink  # noqa: E402

CHUNK_SIZE = 50_021
END = 256


@pytest.fixture(scope="module", autouse=True)
def cluster():
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(
        num_cpus=2,
        object_store_memory=150 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.path.dirname(__file__)}},  # they import this
    )
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def texts():
    """Python's sources, some empty documents, and one that runs over chunks."""
    paths = sorted(Path(os.__file__).parent.glob("*.py"))
    found = [path.read_text("utf-8") for path in paths[:90]]
    texts = ["", *found[:60], "", "", "é" * 80_000, *found[60:], ""]
    assert sum(map(len, texts)) > 10 * CHUNK_SIZE
    return texts


def rows_of(texts, num_blocks=9):
    return ray.data.from_items([{"text": text} for text in texts], override_num_blocks=num_blocks)


def documents_of(folder):
    corpus = packcore.open(folder)
    return [corpus.document(index).tolist() for index in range(corpus.num_documents)]


def ids_of(texts):
    return [[*text.encode(), END] for text in texts]


def chunks_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if "_0" in path.name}


def is_clean(folder):
    """Whether no hidden folder is left, and all is as the manifest says."""
    hidden = [path for path in folder.iterdir() if path.name.startswith(".")]
    return not hidden and packcore.corpora.verify(folder).is_whole


def tokenize(batch):
    ids = [np.frombuffer(text.encode() + b"\xff", np.uint8) for text in batch["text"]]
    batch["ids"] = np.array([*ids, None], object)[:-1]
    return batch


def test_text_becomes_the_bytes_of_a_build_of_the_same_rows(tmp_path, texts):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = {"tokenizer": "bytes", "chunk_size": CHUNK_SIZE}
    packcore.build(path, tmp_path / "one", workers=0, **options)
    sink = PackedDatasink(tmp_path / "ray", **options)
    rows_of(texts).write_datasink(sink)
    assert chunks_of(tmp_path / "ray") == chunks_of(tmp_path / "one")
    assert documents_of(tmp_path / "ray") == ids_of(texts)
    assert is_clean(tmp_path / "ray")
    assert sink.manifest.num_documents == len(texts)
    assert sink.manifest.provenance == {
        "column": "text",
        "bos_token": None,
        "eod_token": END,
        "num_skipped": 0,
    }


def test_arrays_of_ids_from_map_batches_become_documents(tmp_path, texts):
    sink = PackedDatasink(
        tmp_path, "web", ids_column="ids", eod=None, vocab_size=256, chunk_size=CHUNK_SIZE
    )
    rows_of(texts).map_batches(tokenize, batch_size=7).write_datasink(sink)
    assert documents_of(tmp_path) == [[*text.encode(), 255] for text in texts]
    assert is_clean(tmp_path)


@pytest.mark.parametrize("empty", [0, 1, 2, 3])
def test_empty_documents_at_the_ends_of_chunks_and_blocks_are_kept(tmp_path, empty):
    draw = random.Random(empty)
    lists = [list(range(draw.choice([0, 0, 1, 2, 5, 12]))) for _ in range(60)]
    lists[:empty] = [[]] * empty
    lists[len(lists) - empty :] = [[]] * empty
    rows = ray.data.from_items([{"ids": ids} for ids in lists], override_num_blocks=20)
    rows.write_datasink(
        PackedDatasink(tmp_path / "a", ids_column="ids", eod=None, vocab_size=99, chunk_size=4)
    )
    with packcore.PackedDatasetBuilder(tmp_path / "b", "train", 4, 0, vocab_size=99) as builder:
        for ids in lists:
            builder.add_document(ids)
    assert chunks_of(tmp_path / "a") == chunks_of(tmp_path / "b")
    assert is_clean(tmp_path / "a")


class DiesOnce(PackedDatasink):
    """Kills the process of the second block's task once, after its part is on disk."""

    def write(self, blocks, ctx):
        result = super().write(blocks, ctx)
        mark = os.path.join(os.path.dirname(self._outdir), "died")
        if ctx.task_idx == 1 and not os.path.exists(mark):
            with open(mark, "x"):
                os._exit(1)
        return result


def test_a_task_that_dies_after_its_write_is_counted_once(tmp_path, texts):
    sink = DiesOnce(tmp_path / "out", tokenizer="bytes", chunk_size=CHUNK_SIZE)
    rows_of(texts).write_datasink(sink)
    assert (tmp_path / "died").exists()
    assert documents_of(tmp_path / "out") == ids_of(texts)
    assert is_clean(tmp_path / "out")


def test_an_unusable_row_fails_the_write_and_leaves_nothing(tmp_path):
    rows = rows_of(["a", None, "b"], num_blocks=1)
    with pytest.raises(FormatError, match="Row 2 of a block of the column 'text' cannot become"):
        rows.write_datasink(PackedDatasink(tmp_path, tokenizer="bytes"))
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_row_is_skipped_and_counted_if_asked(tmp_path):
    rows = rows_of(["a", None, "b"], num_blocks=2)
    sink = PackedDatasink(tmp_path, tokenizer="bytes", on_error="skip", chunk_size=10)
    rows.write_datasink(sink)
    assert documents_of(tmp_path) == ids_of(["a", "b"])
    assert sink.manifest.provenance["num_skipped"] == 1


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with pytest.raises(ArgumentError, match="no column 'body'; the columns are text"):
        rows_of(["a"]).write_datasink(PackedDatasink(tmp_path, tokenizer="bytes", column="body"))
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_that_is_there_is_refused_or_replaced_in_the_end(tmp_path):
    options = {"tokenizer": "bytes", "chunk_size": 10}
    rows_of(["old"] * 20).write_datasink(PackedDatasink(tmp_path, **options))
    with pytest.raises(OverwriteError, match="Pass overwrite=True") as caught:
        PackedDatasink(tmp_path, **options)
    assert caught.value.path == str(tmp_path / "train.manifest.json")
    with pytest.raises(FormatError, match="cannot become a document"):
        rows_of(["new", None]).write_datasink(PackedDatasink(tmp_path, overwrite=True, **options))
    assert documents_of(tmp_path) == ids_of(["old"] * 20)
    rows_of(["new"]).write_datasink(PackedDatasink(tmp_path, overwrite=True, **options))
    assert documents_of(tmp_path) == ids_of(["new"])
    assert is_clean(tmp_path)


@pytest.mark.parametrize("texts", [[], ["a", "b"]])
def test_no_rows_make_a_manifest_without_chunks(tmp_path, texts):
    sink = PackedDatasink(tmp_path, tokenizer="bytes")
    rows = rows_of(texts, num_blocks=None)
    rows.map_batches(lambda batch: {"text": batch["text"][:0]}).write_datasink(sink)
    assert [path.name for path in tmp_path.iterdir()] == ["train.manifest.json"]
    assert (sink.manifest.num_documents, sink.manifest.chunks) == (0, ())


def test_without_a_promised_order_no_document_is_lost_or_doubled(tmp_path, texts):
    options = ray.data.DataContext.get_current().execution_options
    options.preserve_order = False
    try:
        sink = PackedDatasink(tmp_path, tokenizer="bytes", chunk_size=CHUNK_SIZE)
        rows_of(texts, num_blocks=20).random_shuffle(seed=1).write_datasink(sink)
    finally:
        options.preserve_order = True
    assert sorted(documents_of(tmp_path)) == sorted(ids_of(texts))


def test_text_without_a_tokenizer_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ArgumentError, match="Exactly one of tokenizer and ids_column"):
        PackedDatasink(tmp_path / "out")
    assert not (tmp_path / "out").exists()
