import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packcore.errors import ArgumentError, ArgumentTypeError
from packcore.sharding import ServedSteps, rank_rows, shard_files

SHAPES = {
    "num_files": st.integers(0, 60),
    "world_size": st.integers(1, 5),
    "num_workers": st.integers(1, 4),
}


def all_shards(num_files, world_size, num_workers):
    return {
        (rank, worker): list(
            shard_files(
                num_files,
                rank=rank,
                world_size=world_size,
                worker=worker,
                num_workers=num_workers,
            )
        )
        for rank in range(world_size)
        for worker in range(num_workers)
    }


def test_files_are_dealt_out_round_robin_ranks_outside_workers_inside():
    assert all_shards(9, 2, 2) == {
        (0, 0): [0, 4],
        (0, 1): [1, 5],
        (1, 0): [2, 6],
        (1, 1): [3, 7],
    }


def test_one_reader_gets_all_files():
    assert list(shard_files(5)) == [0, 1, 2, 3, 4]


def test_fewer_files_than_shards_give_nobody_a_file():
    assert set(map(tuple, all_shards(3, 2, 2).values())) == {()}


@given(**SHAPES)
def test_every_shard_gets_as_many_files_and_no_file_goes_twice(num_files, world_size, num_workers):
    shards = all_shards(num_files, world_size, num_workers)
    each = num_files // (world_size * num_workers)
    assert {len(files) for files in shards.values()} == {each}
    assert sorted(itertools.chain(*shards.values())) == list(range(each * world_size * num_workers))


@given(**SHAPES)
def test_the_files_are_those_of_the_reference_slice(num_files, world_size, num_workers):
    names = [f"file {index}" for index in range(num_files)]
    num_shards = num_workers * world_size
    for (rank, worker), files in all_shards(num_files, world_size, num_workers).items():
        shard = rank * num_workers + worker
        expected = names[shard : len(names) // num_shards * num_shards : num_shards]
        assert [names[index] for index in files] == expected


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": -1}, "rank"),
        ({"worker": 1}, "worker"),
        ({"world_size": 0}, "world_size"),
        ({"num_workers": 0}, "num_workers"),
    ],
)
def test_a_rank_or_worker_that_does_not_exist_is_refused(arguments, name):
    with pytest.raises(ArgumentError, match=rf"^{name} must be ") as caught:
        shard_files(4, **arguments)
    assert (caught.value.name, caught.value.value) == (name, arguments[name])


def test_a_count_must_be_an_integer():
    with pytest.raises(ArgumentTypeError, match=r"^num_files must be an integer; got 2\.5"):
        shard_files(2.5)


@pytest.mark.parametrize("rows", range(1, 20))
def test_ranks_take_each_row_once_in_order(rows):
    for world_size in range(1, rows + 1):
        parts = [rank_rows(rows, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert [row for part in parts for row in part] == list(range(rows))
        assert {len(part) for part in parts} <= {rows // world_size, -(-rows // world_size)}


def test_a_rank_without_a_row_is_refused():
    with pytest.raises(ArgumentError, match="at least world_size, 3; got 2") as caught:
        rank_rows(2, rank=0, world_size=3)
    assert (caught.value.name, caught.value.value) == ("global_batch_size", 2)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=5))
def test_skipped_steps_agree_with_a_list_of_what_is_served(ranges):
    pairs = [(start, start + length) for start, length in ranges]
    skipped = {step for start, stop in pairs for step in range(start, stop)}
    served = [step for step in range(100) if step not in skipped]
    steps = ServedSteps.without(pairs)
    assert steps.steps(np.arange(len(served))).tolist() == served
    assert [steps.num_before(step) for step in range(100)] == [
        sum(other < step for other in served) for step in range(100)
    ]
    covered = [step for start, stop in steps.ranges() for step in range(start, stop)]
    assert covered == sorted(skipped)
