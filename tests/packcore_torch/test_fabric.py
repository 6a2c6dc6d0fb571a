"""TinyLlama's loop under Lightning Fabric, with the drop-in datasets and with the global order."""

import glob
import random

import pytest

torch = pytest.importorskip("torch", reason="packcore_torch needs PyTorch")
fabric_package = pytest.importorskip("lightning_fabric", reason="needs Lightning Fabric")

from torch.utils.data import DataLoader  # noqa: E402  # after the skip
from torch_runs import IGNORED, as_lists, expected, make_loader, write_corpus  # noqa: E402

from packcore_torch import BatchLoader, CombinedDataset, PackedDataset  # noqa: E402

pytestmark = IGNORED


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def fabric():
    return fabric_package.Fabric(accelerator="cpu", devices=1)


def drop_in(corpus, fabric, num_workers):
    """As TinyLlama's `create_dataloader`."""
    filenames = sorted(glob.glob(str(corpus / "train*")))
    random.Random(1).shuffle(filenames)
    dataset = PackedDataset(
        filenames,
        n_chunks=2,
        block_size=8,
        seed=1 + fabric.global_rank,
        num_processes=fabric.world_size,
        process_rank=fabric.global_rank,
    )
    mix = CombinedDataset(datasets=[dataset], seed=1, weights=[1.0])
    return DataLoader(mix, batch_size=8, shuffle=False, num_workers=num_workers)


def ours(corpus, _, num_workers):
    return BatchLoader(make_loader(corpus), num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("create_dataloader", [drop_in, ours])
def test_tinyllamas_loop_runs(corpus, fabric, create_dataloader, num_workers):
    want = as_lists(create_dataloader(corpus, fabric, num_workers))
    train_dataloader = fabric.setup_dataloaders(create_dataloader(corpus, fabric, num_workers))
    model = fabric.setup(torch.nn.Embedding(1024, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = fabric.setup_optimizers(optimizer)
    seen = []
    for train_data in train_dataloader:
        input_ids = train_data[:, 0:7].contiguous()
        targets = train_data[:, 1:8].contiguous()
        logits = model(input_ids)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(train_data)
    assert as_lists(seen) == want
    assert len(want) >= 8


@pytest.mark.parametrize("num_workers", [0, 2])
def test_fabric_saves_and_loads_the_place_in_the_data(corpus, fabric, num_workers, tmp_path):
    data = fabric.setup_dataloaders(BatchLoader(make_loader(corpus), num_workers=num_workers))
    for _ in zip(range(4), data, strict=False):
        pass
    fabric.save(tmp_path / "checkpoint.pt", {"data": data})
    other = BatchLoader(make_loader(corpus), num_workers=1)
    fabric.load(tmp_path / "checkpoint.pt", {"data": other})
    assert as_lists(fabric.setup_dataloaders(other)) == expected(corpus)[4:]
