"""An iterator's state: exact, small, and refused where it does not belong."""

import json
import os

import pytest
from reference_chunks import take, tokens_of, write_chunks

from packcore.errors import StateError
from packcore.reference import (
    PackedDataset,
)
from packcore.testing import check_resume

SHAPES = {
    "one window": {"num_files": 2, "n_chunks": 2, "block_size": 4},
    "windows and files left over": {"num_files": 5, "n_chunks": 2, "block_size": 3},
    "windows of one file": {"num_files": 3, "n_chunks": 1, "block_size": 5},
    "round and round": {"num_files": 3, "n_chunks": 2, "block_size": 5, "wrap": True},
    "not shuffled": {"num_files": 4, "n_chunks": 2, "block_size": 5, "shuffle": False},
    "not shuffled, round": {
        "num_files": 3,
        "n_chunks": 1,
        "block_size": 5,
        "shuffle": False,
        "wrap": True,
    },
    "fresh entropy": {"num_files": 4, "n_chunks": 2, "block_size": 2, "seed": None},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_iterator_resumes_at_every_step_at_its_end_and_after_it(tmp_path, shape):
    shape = dict(shape)
    dataset = PackedDataset(write_chunks(tmp_path, shape.pop("num_files")), **shape)
    if shape.get("seed", 1) is None:
        # A run without a seed cannot be run twice, but can be resumed.
        start = iter(dataset).state_dict()
        report = check_resume(lambda: restored(dataset, start), max_steps=25, max_state_bytes=700)
    else:
        report = check_resume(lambda: iter(dataset), max_steps=25, max_state_bytes=700)
    assert report.ended is not shape.get("wrap", False)
    assert report.num_steps >= 4


def restored(dataset, state):
    blocks = iter(dataset)
    blocks.load_state_dict(state)
    return blocks


def test_a_dataset_resumes_through_its_iterator(tmp_path):
    paths = write_chunks(tmp_path, 4)
    assert check_resume(lambda: PackedDataset(paths, 2, 5, num_processes=2, process_rank=1)).ended


def test_the_size_of_a_state_does_not_depend_on_the_place_or_the_files(tmp_path):
    sizes = set()
    for num_files in (2, 9):
        blocks = iter(PackedDataset(write_chunks(tmp_path, num_files), 2, 2, wrap=True))
        for _ in range(50):
            next(blocks)
            sizes.add(len(json.dumps(blocks.state_dict())))
    assert max(sizes) - min(sizes) <= 1  # block_index has one digit or two


def test_loading_a_state_opens_no_file(tmp_path):
    paths = write_chunks(tmp_path, 6)
    blocks = iter(PackedDataset(paths, 2, 5))
    take(blocks, 6)
    state = blocks.state_dict()
    expected = take(blocks, 2)
    other = iter(PackedDataset(paths, 2, 5))
    for path in paths:
        os.rename(path, path + ".away")
    other.load_state_dict(state)
    for path in paths:
        os.rename(path + ".away", path)
    assert take(other, 2) == expected


def test_a_state_is_good_for_a_folder_that_was_moved(tmp_path):
    (tmp_path / "a").mkdir()
    paths = write_chunks(tmp_path / "a", 4)
    blocks = iter(PackedDataset(paths, 2, 5))
    take(blocks, 3)
    state = blocks.state_dict()
    expected = tokens_of(blocks)
    os.rename(tmp_path / "a", tmp_path / "b")
    moved = [path.replace(f"{os.sep}a{os.sep}", f"{os.sep}b{os.sep}") for path in paths]
    assert tokens_of(restored(PackedDataset(moved, 2, 5), state)) == expected


def test_after_a_read_that_failed_no_block_is_lost(tmp_path):
    paths = write_chunks(tmp_path, 4)
    expected = tokens_of(PackedDataset(paths, 2, 5))
    blocks = iter(PackedDataset(paths, 2, 5))
    served = take(blocks, 4)
    os.rename(paths[3], paths[3] + ".away")
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="train_0000000003"):
            next(blocks)
    state = blocks.state_dict()
    os.rename(paths[3] + ".away", paths[3])
    assert served + tokens_of(restored(PackedDataset(paths, 2, 5), state)) == expected
    assert served + tokens_of(blocks) == expected


ARGUMENTS = {"n_chunks": 2, "block_size": 2, "seed": 1, "shuffle": True, "wrap": False}
OTHERS = [
    ("n_chunks", 1),
    ("block_size", 5),
    ("seed", 2),
    ("seed", None),
    ("shuffle", False),
    ("wrap", True),
]


@pytest.mark.parametrize(("field", "other"), OTHERS)
def test_a_state_of_other_arguments_is_refused_by_name(tmp_path, field, other):
    paths = write_chunks(tmp_path, 4)
    blocks = iter(PackedDataset(paths, **ARGUMENTS))
    take(blocks, 3)
    state = iter(PackedDataset(paths, **ARGUMENTS | {field: other})).state_dict()
    with pytest.raises(StateError, match=f"its {field} is {other!r}, here it is") as caught:
        blocks.load_state_dict(state)
    assert (caught.value.field, caught.value.got) == (field, other)
    assert caught.value.expected == ARGUMENTS[field]
    assert take(blocks, 99) == take(iter(PackedDataset(paths, **ARGUMENTS)), 99)[3:]


def other_data(tmp_path):
    (tmp_path / "other").mkdir()
    base = write_chunks(tmp_path, 4)
    return base, [
        ("num_files", [*base, base[0]]),
        ("files", [base[1], base[0], *base[2:]]),
        ("files", write_chunks(tmp_path, 4, prefix="valid")),
        ("dtype", write_chunks(tmp_path / "other", 4, dtype="int32")),
        ("chunk_size", write_chunks(tmp_path / "other", 4, chunk_size=11)),
    ]


def test_a_state_of_other_files_is_refused_by_name(tmp_path):
    base, others = other_data(tmp_path)
    state = iter(PackedDataset(base, 2, 5)).state_dict()
    # Written anew just before each is opened: the last two share their folder.
    (tmp_path / "other2").mkdir()
    others[3] = ("dtype", write_chunks(tmp_path / "other2", 4, dtype="int32"))
    for field, paths in others:
        with pytest.raises(StateError, match=f"its {field} is ") as caught:
            iter(PackedDataset(paths, 2, 5)).load_state_dict(state)
        assert caught.value.field == field


def test_a_state_of_another_rank_is_refused(tmp_path):
    paths = write_chunks(tmp_path, 4)
    state = iter(PackedDataset(paths, 2, 5, num_processes=2, process_rank=0)).state_dict()
    other = iter(PackedDataset(paths, 2, 5, num_processes=2, process_rank=1))
    with pytest.raises(StateError, match="its files is "):
        other.load_state_dict(state)


DAMAGE = [
    ({"version": 2}, "version"),
    ({"file_index": 1}, "file_index"),
    ({"file_index": 4}, "file_index"),
    ({"file_index": 2.0}, "file_index"),
    ({"file_index": None}, "file_index"),
    ({"block_index": -1}, "block_index"),
    ({"block_index": 11}, "block_index"),
    ({"block_index": True}, "block_index"),
    ({"generator": None}, "generator"),
    ({"generator": {"bit_generator": "PCG64"}}, "generator"),
]


@pytest.mark.parametrize(("damage", "field"), DAMAGE)
def test_a_damaged_state_is_refused_and_changes_nothing(tmp_path, damage, field):
    blocks = iter(PackedDataset(write_chunks(tmp_path, 5), 2, 4))
    take(blocks, 5)
    before = blocks.state_dict()
    with pytest.raises(StateError) as caught:
        blocks.load_state_dict(before | damage)
    assert caught.value.field == field
    assert blocks.state_dict() == before


@pytest.mark.parametrize(
    "field", ["version", "files", "seed", "file_index", "block_index", "generator"]
)
def test_a_state_without_a_field_is_refused(tmp_path, field):
    blocks = iter(PackedDataset(write_chunks(tmp_path, 2), 2, 4))
    state = blocks.state_dict()
    del state[field]
    with pytest.raises(StateError, match=f"damaged: {field} must be") as caught:
        blocks.load_state_dict(state)
    assert caught.value.field == field
