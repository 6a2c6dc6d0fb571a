import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grain", reason="the example reads through Grain")
pytest.importorskip("orbax.checkpoint", reason="the example saves with Orbax, which needs JAX")

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture
def example(monkeypatch, tmp_path):
    """The example and its data, small: a few documents, short rows, one narrow layer."""
    monkeypatch.syspath_prepend(EXAMPLES)
    corpus, data = __import__("stdlib_corpus"), __import__("training_data")
    documents = corpus.documents()[:20]
    monkeypatch.setattr(corpus, "documents", lambda: documents)
    monkeypatch.setattr(data, "FOLDER", tmp_path / "corpus")
    monkeypatch.setattr(data, "LENGTH", 32)
    monkeypatch.setattr(data, "BATCH_SIZE", 4)
    example = __import__("train_jax")
    sizes = {"WIDTH": 16, "NUM_LAYERS": 1, "STEPS_PER_CHECKPOINT": 2, "WARMUP_STEPS": 1}
    for name, value in {**sizes, "LEARNING_RATE": 0.03}.items():
        monkeypatch.setattr(example, name, value)
    example.update.clear_cache()
    return example


def losses(folder):
    lines = (folder / "losses.jsonl").read_text().splitlines()
    return {entry["step"]: entry["loss"] for entry in map(json.loads, lines)}


def test_a_resumed_run_goes_on_exactly_and_the_loss_goes_down(example, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder, num_steps in ((whole, 8), (stopped, 5)):
        folder.mkdir()
        example.train(folder, num_steps, go_on=False)
    (stopped / "losses.jsonl").unlink()
    example.train(stopped, 8, go_on=True)
    curve = losses(whole)
    assert losses(stopped) == {step: curve[step] for step in (4, 5, 6, 7)}
    assert curve[7] < curve[0]


def test_its_batches_are_those_of_the_torch_example_bit_for_bit(example):
    torch = pytest.importorskip("torch", reason="the other example needs torch")
    from packcore_torch import BatchLoader  # noqa: PLC0415 - needs torch

    jax_batches = iter(example.LoaderDataset(example.training_data.loader()))
    torch_batches = iter(BatchLoader(example.training_data.loader()))
    for _ in range(5):
        ours, theirs = next(jax_batches), next(torch_batches)
        assert list(ours) == list(theirs)
        for field, array in ours.items():
            assert isinstance(theirs[field], torch.Tensor)
            np.testing.assert_array_equal(theirs[field].numpy(), array)
