"""Blocks as a map-style dataset, under torch's samplers."""

import pickle

import pytest

torch = pytest.importorskip("torch", reason="packcore_torch needs PyTorch")

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler  # noqa: E402  # after it
from torch_runs import IGNORED, as_lists, joined, write_corpus  # noqa: E402

import packcore  # noqa: E402
from packcore.errors import ArgumentError, ArgumentTypeError  # noqa: E402
from packcore_torch import BlockDataset  # noqa: E402

pytestmark = IGNORED


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    return packcore.open(write_corpus(tmp_path_factory.mktemp("corpus"))).blocks(8)


def test_items_are_the_blocks_as_int64(blocks):
    dataset = BlockDataset(blocks)
    assert len(dataset) == 88
    assert as_lists(dataset) == [block.tolist() for block in blocks]
    assert dataset[-1].tolist() == blocks[87].tolist()
    with pytest.raises(IndexError, match=r"index must be in \[-88, 88\)"):
        dataset[88]


def test_several_items_are_read_at_once(blocks, monkeypatch):
    gather, calls = packcore.Blocks.gather, []

    def counted(self, ids):
        calls.append(list(ids))
        return gather(self, ids)

    want = blocks.gather(range(5)).tolist()
    monkeypatch.setattr(packcore.Blocks, "gather", counted)
    first = next(iter(DataLoader(BlockDataset(blocks), batch_size=5)))
    assert (calls, first.tolist()) == ([[0, 1, 2, 3, 4]], want)
    with pytest.raises(ArgumentError, match=r"ids must be in \[-88, 88\); got 88 at index 1"):
        BlockDataset(blocks).__getitems__([3, 88])


@pytest.mark.parametrize("junk", [None, 5, "blocks", [[1, 2]]])
def test_what_is_no_blocks_is_refused(junk):
    with pytest.raises(ArgumentTypeError, match=r"blocks must be of packcore\.open"):
        BlockDataset(junk)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_decides_the_order(blocks, num_workers):
    dataset = BlockDataset(blocks[::2])
    order = list(RandomSampler(dataset, generator=torch.Generator().manual_seed(1)))
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(1))
    batches = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=num_workers)
    assert joined(as_lists(batches)) == [blocks[2 * index].tolist() for index in order]
    assert sorted(order) == list(range(44))


def test_a_distributed_sampler_deals_each_block_out_once(blocks):
    dataset = BlockDataset(blocks)
    ranks = []
    for rank in range(4):
        sampler = DistributedSampler(dataset, num_replicas=4, rank=rank)
        ranks.append(joined(as_lists(DataLoader(dataset, batch_size=4, sampler=sampler))))
    assert sorted(joined(ranks)) == sorted(block.tolist() for block in blocks)


def test_a_dataset_pickles_small(blocks):
    data = pickle.dumps(BlockDataset(blocks))
    assert len(data) < 4_000
    assert as_lists(pickle.loads(data)) == as_lists(BlockDataset(blocks))
