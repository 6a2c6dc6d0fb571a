"""Trains a tiny GPT on Python's standard library, a token a byte, each document by itself.

    python examples/train_torch.py [--resume] [--folder demo-data/torch] [--steps 120]

Needs packcore and torch. The folder gets checkpoint.pt, with the model, the optimizer and the
place in the data, and losses.jsonl, a line a step. With torchrun and DistributedDataParallel
around the model, the lines that read data stay as they are.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import training_data
from torch import Tensor, nn
from torch.nn import functional

from packcore_torch import BatchLoader

FOLDER = training_data.FOLDER.parent / "torch"
WIDTH, NUM_HEADS, NUM_LAYERS = 128, 4, 6
LEARNING_RATE, WARMUP_STEPS = 3e-3, 20
STEPS_PER_CHECKPOINT = 20


class Layer(nn.Module):
    """Attention inside a document, then a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Takes and returns `(rows, length, WIDTH)`."""
        heads = self.queries_keys_values(self.norms[0](x)).unflatten(-1, (3, NUM_HEADS, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.norms[1](x))


class TinyGPT(nn.Module):
    """About 1.3 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(training_data.VOCAB_SIZE, WIDTH)
        self.positions = nn.Embedding(training_data.LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(NUM_LAYERS))
        self.head = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, training_data.VOCAB_SIZE, bias=False)
        )

    def forward(self, tokens: Tensor, positions: Tensor, segment_ids: Tensor) -> Tensor:
        """Returns the logits of the next token.

        Args:
            tokens: `(rows, length)`, int64.
            positions: the same shape: from 0 in each document.
            segment_ids: the same shape: which document of the row.
        """
        same_document = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
        x = self.tokens(tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x, same_document.tril())
        return self.head(x)


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Returns the mean loss over all targets that follow a token of the same document."""
    tokens, counted = batch["tokens"], batch["loss_mask"][:, 1:]
    logits = model(tokens[:, :-1], batch["positions"][:, :-1], batch["segment_ids"][:, :-1])
    return functional.cross_entropy(logits[counted], tokens[:, 1:][counted])


def train(folder: Path, num_steps: int, *, resume: bool) -> None:
    """Trains from the start, or on from the last checkpoint."""
    torch.manual_seed(1)
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters())
    data = BatchLoader(training_data.loader())
    saved = {"model": model, "optimizer": optimizer, "data": data}
    if resume:
        for name, state in torch.load(folder / "checkpoint.pt").items():
            saved[name].load_state_dict(state)
    for step, batch in enumerate(data, data.loader.step):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (step + 1) / WARMUP_STEPS)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(folder, step, loss.item())
        if (step + 1) % STEPS_PER_CHECKPOINT == 0:
            states = {name: part.state_dict() for name, part in saved.items()}
            torch.save(states, folder / "checkpoint.new")
            (folder / "checkpoint.new").replace(folder / "checkpoint.pt")
        if step + 1 == num_steps:
            break


def report(folder: Path, step: int, loss: float) -> None:
    """Appends a line to losses.jsonl, and prints every tenth."""
    with (folder / "losses.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps({"step": step, "loss": loss}) + "\n")
    if step % 10 == 0:
        print(f"step {step:>4}  loss {loss:.4f}", flush=True)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        (options.folder / "losses.jsonl").unlink(missing_ok=True)
    train(options.folder, options.steps, resume=options.resume)


if __name__ == "__main__":
    main()
