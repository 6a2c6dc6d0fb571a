"""MaxText's batches from packcore beside those that Grain's packing and MaxText's shift make."""

import functools

import numpy as np
import pytest
from pipelines import check_every_state, grain

import packcore
from packcore.trainers import maxtext_batch
from packcore_grain import LoaderDataset

LENGTH = 16
PAD = 0


def grain_and_maxtext(documents):
    """Grain packs rows of LENGTH tokens, then MaxText shifts the targets of each row.

    Source: AI-Hypercomputer/maxtext, `shift_and_refine` in
    `src/maxtext/input_pipeline/input_pipeline_utils.py`, written anew.
    """
    data = grain.MapDataset.source([{"inputs": one, "targets": one} for one in documents])
    lengths = {"inputs": LENGTH, "targets": LENGTH}
    packed = grain.experimental.ConcatThenSplitIterDataset(
        data.to_iter_dataset(), length_struct=lengths
    )
    rows = list(packed)
    names = {"segmentation": "segment_ids", "position": "positions"}
    batch = {key: np.stack([row[key] for row in rows]) for key in ("inputs", "targets")}
    for key in ("inputs", "targets"):
        for name, grains in names.items():
            batch[f"{key}_{name}"] = np.stack([row[f"{key}_{grains}"] for row in rows])
    for key in ("targets", "targets_segmentation"):
        batch[key] = np.pad(batch[key][:, 1:], [(0, 0), (0, 1)], constant_values=PAD)
    batch["targets_segmentation"][batch["targets"] == PAD] = 0
    return batch


@pytest.fixture(scope="module")
def documents():
    """Id 0 is MaxText's padding; in the documents it is a token like any other."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 20, size=length) for length in rng.integers(1, 40, size=50)]


@pytest.fixture(scope="module")
def loader(documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("maxtext")
    with packcore.PackedDatasetBuilder(folder, "train", 100, 0, vocab_size=20) as builder:
        for document in documents:
            builder.add_document(document)
    blocks = packcore.open(folder).blocks(LENGTH + 1, stride=LENGTH)
    fields = ["tokens", "segment_ids", "positions"]
    return packcore.Loader(blocks, 4, seed=1, shuffle=None, epochs=1, fields=fields)


def ours(loader, **options):
    batches = list(LoaderDataset(loader).map(functools.partial(maxtext_batch, **options)))
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


def test_rows_are_those_of_grain_and_maxtext_but_for_two_differences(documents, loader):
    theirs, mine = grain_and_maxtext(documents), ours(loader)
    num_rows = len(mine["inputs"])
    assert num_rows > 40
    assert set(mine) == set(theirs)
    theirs = {key: array[:num_rows] for key, array in theirs.items()}
    for key in ("inputs", "inputs_segmentation", "inputs_position", "targets_position"):
        np.testing.assert_array_equal(mine[key], theirs[key])

    # 1. The last target of a row is not lost: it is the first token of the next row.
    np.testing.assert_array_equal(mine["targets"][:, :-1], theirs["targets"][:, :-1])
    np.testing.assert_array_equal(mine["targets"][:-1, -1], mine["inputs"][1:, 0])
    assert not theirs["targets_segmentation"][:, -1].any()
    assert mine["targets_segmentation"][:, -1].all()

    # 2. A target that happens to be the id of the padding keeps its loss.
    is_pad = mine["targets"][:, :-1] == PAD
    assert is_pad.any()
    assert mine["targets_segmentation"][:, :-1][is_pad].all()
    assert not theirs["targets_segmentation"][:, :-1][is_pad].any()
    np.testing.assert_array_equal(
        np.where(is_pad, 0, mine["targets_segmentation"][:, :-1]),
        theirs["targets_segmentation"][:, :-1],
    )


def test_all_arrays_are_int32_and_of_one_shape(loader):
    batch = maxtext_batch(loader.batch_at(0))
    assert {(array.shape, array.dtype.name) for array in batch.values()} == {((4, 16), "int32")}


def test_the_last_token_of_a_document_has_a_target_only_if_wanted(loader):
    crossing, inside = ours(loader), ours(loader, cross_documents=False)
    last = crossing["inputs_segmentation"] != crossing["targets_segmentation"]
    assert last.any()
    assert not inside["targets_segmentation"][last].any()
    np.testing.assert_array_equal(
        inside["targets_segmentation"][~last], crossing["targets_segmentation"][~last]
    )


def test_levanters_padding_is_minus_one(loader):
    inside = ours(loader, cross_documents=False)
    levanters = ours(loader, cross_documents=False, padding_segment=-1)
    has_loss = inside["targets_segmentation"] != 0
    np.testing.assert_array_equal(levanters["targets_segmentation"] != -1, has_loss)
    np.testing.assert_array_equal(
        levanters["targets_segmentation"][has_loss], inside["targets_segmentation"][has_loss]
    )


def test_a_pipeline_of_maxtext_batches_is_restored_at_every_step(loader):
    assert len(check_every_state(LoaderDataset(loader).map(maxtext_batch))) == len(loader)
