"""Trains a tiny model on all ranks; the first one writes every loss, and checkpoints.

    torchrun --nproc-per-node 2 train_ddp.py CORPUS FOLDER NUM_WORKERS [STEP_TO_DIE_AT]

In FOLDER it resumes what it finds. Step 0 is the first.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch_runs import make_loader

from packcore_torch import BatchLoader

NUM_STEPS = 24
STEPS_PER_CHECKPOINT = 5


def make_model():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Embedding(64, 8), torch.nn.Linear(8, 64)).double()
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def loss_of(model, tokens):
    tokens = tokens % 64
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def main(corpus, folder, num_workers, last_step=NUM_STEPS):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, optimizer = make_model()
    model = DistributedDataParallel(model)
    # No rank, no world_size: they are torchrun's.
    data = BatchLoader(make_loader(corpus, epochs=None), num_workers=int(num_workers))
    checkpoint = Path(folder, "checkpoint.pt")
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        data.load_state_dict(saved["data"])
    for step, tokens in enumerate(data, data.loader.step):
        if step == int(last_step) and rank == world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = loss_of(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        if rank == 0:
            with Path(folder, "losses.jsonl").open("a") as file:
                file.write(json.dumps([step, mean.item()]) + "\n")
            if (step + 1) % STEPS_PER_CHECKPOINT == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "data": data.state_dict(),
                }
                torch.save(state, f"{checkpoint}.new")
                Path(f"{checkpoint}.new").replace(checkpoint)
        if step + 1 == NUM_STEPS:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
