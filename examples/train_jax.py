"""Trains a tiny GPT on Python's standard library in plain JAX, a token a byte.

    python examples/train_jax.py [--resume] [--folder demo-data/jax] [--steps 120]

Needs packcore, grain, jax and orbax-checkpoint. The folder gets Orbax's checkpoints, with the
parameters and the place in the data, and losses.jsonl, a line a step. On several processes the
lines that read data stay as they are: each reads its rows, and any number can resume.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import training_data

from packcore_grain import LoaderDataset, resume

FOLDER = training_data.FOLDER.parent / "jax"
WIDTH, NUM_HEADS, NUM_LAYERS = 128, 4, 4
LEARNING_RATE, WARMUP_STEPS = 3e-3, 20
STEPS_PER_CHECKPOINT = 20

Tree = dict[str, Any]


def make_params(key: jax.Array) -> Tree:
    """Returns about 900,000 parameters."""
    keys = iter(jax.random.split(key, 3 + 4 * NUM_LAYERS))

    def matrix(fan_in: int, fan_out: int) -> jax.Array:
        return jax.random.normal(next(keys), (fan_in, fan_out)) / math.sqrt(fan_in)

    def make_layer() -> Tree:
        return {
            "norms": jnp.ones((2, WIDTH)),
            "queries_keys_values": matrix(WIDTH, 3 * WIDTH),
            "mix": matrix(WIDTH, WIDTH),
            "up": matrix(WIDTH, 4 * WIDTH),
            "down": matrix(4 * WIDTH, WIDTH),
        }

    return {
        "tokens": matrix(WIDTH, training_data.VOCAB_SIZE).T,
        "positions": matrix(WIDTH, training_data.LENGTH).T,
        "layers": [make_layer() for _ in range(NUM_LAYERS)],
        "norm": jnp.ones(WIDTH),
        "head": matrix(WIDTH, training_data.VOCAB_SIZE),
    }


def logits_of(params: Tree, batch: Tree) -> jax.Array:
    """Returns the logits of the token after each token but the last one of a row."""
    tokens, positions, documents = (
        batch[field][:, :-1] for field in ("tokens", "positions", "segment_ids")
    )
    same_document = documents[:, :, None] == documents[:, None, :]
    mask = jnp.tril(same_document)[:, None]
    x = params["tokens"][tokens] + params["positions"][positions]
    for layer in params["layers"]:
        heads = normalize(x, layer["norms"][0]) @ layer["queries_keys_values"]
        heads = heads.reshape(*x.shape[:2], 3, NUM_HEADS, -1)
        seen = jax.nn.dot_product_attention(*jnp.moveaxis(heads, 2, 0), mask=mask)
        x = x + seen.reshape(x.shape) @ layer["mix"]
        up = jax.nn.relu(normalize(x, layer["norms"][1]) @ layer["up"])
        x = x + up**2 @ layer["down"]
    return normalize(x, params["norm"]) @ params["head"]


def normalize(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns `x` with a mean square of `scale`**2 along the last axis."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def loss_of(params: Tree, batch: Tree) -> jax.Array:
    """Returns the mean loss over all targets that follow a token of the same document."""
    chances = jax.nn.log_softmax(logits_of(params, batch))
    targets = batch["tokens"][:, 1:, None].astype(jnp.int32)
    losses = -jnp.take_along_axis(chances, targets, -1)[..., 0]
    return losses.mean(where=batch["loss_mask"][:, 1:])


@jax.jit
def update(state: Tree, batch: Tree, step: int) -> tuple[Tree, jax.Array]:
    """Takes one step of Adam."""
    loss, slopes = jax.value_and_grad(loss_of)(state["params"], batch)
    rate = LEARNING_RATE * jnp.minimum(1, (step + 1) / WARMUP_STEPS)
    scale = rate * jnp.sqrt(1 - 0.99 ** (step + 1.0)) / (1 - 0.9 ** (step + 1.0))

    def move(param: jax.Array, mean: jax.Array, square: jax.Array) -> jax.Array:
        return param - scale * mean / (jnp.sqrt(square) + 1e-8)

    mean = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state["mean"], slopes)
    square = jax.tree.map(lambda old, new: 0.99 * old + 0.01 * new**2, state["square"], slopes)
    params = jax.tree.map(move, state["params"], mean, square)
    return {"params": params, "mean": mean, "square": square}, loss


def train(folder: Path, num_steps: int, *, go_on: bool) -> None:
    """Trains from the start, or on from the last checkpoint."""
    params = make_params(jax.random.key(1))
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = {"params": params, "mean": zeros, "square": zeros}
    loader = training_data.loader()
    checkpoints = ocp.CheckpointManager((folder / "checkpoints").absolute())
    if go_on:
        saved = ocp.args.Composite(
            state=ocp.args.StandardRestore(state), data=ocp.args.JsonRestore()
        )
        found = checkpoints.restore(checkpoints.latest_step(), args=saved)
        state = found.state
        resume(loader, found.data)
    batches = iter(LoaderDataset(loader))
    for step in range(loader.num_served, num_steps):
        state, loss = update(state, next(batches), step)
        report(folder, step, float(loss))
        if (step + 1) % STEPS_PER_CHECKPOINT == 0:
            now = ocp.args.Composite(
                state=ocp.args.StandardSave(state), data=ocp.args.JsonSave(batches.get_state())
            )
            checkpoints.save(step + 1, args=now)
    batches.close()
    checkpoints.close()


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
        shutil.rmtree(options.folder / "checkpoints", ignore_errors=True)
    train(options.folder, options.steps, go_on=options.resume)


if __name__ == "__main__":
    main()
