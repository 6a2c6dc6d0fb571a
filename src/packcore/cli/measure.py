"""packcore plan and packcore bench: what a run will serve, and how fast this machine reads."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import click

from packcore.cli.output import as_json, echo, human, print_json, source_dtype
from packcore.dataset import open as open_dataset
from packcore.loader import Loader
from packcore.mixture import Mixture

__all__ = ["bench", "plan"]


def _parse_source(text: str) -> tuple[str | None, str, float]:
    """Splits NAME=PATH:WEIGHT; name and weight may be missing."""
    name, equals, rest = text.partition("=")
    if not equals:
        name, rest = "", text
    path, colon, weight = rest.rpartition(":")
    try:
        return name or None, path if colon else rest, float(weight) if colon else 1.0
    except ValueError:
        return name or None, rest, 1.0


@click.command(no_args_is_help=True)
@click.argument("corpora", metavar="[NAME=]CORPUS[:WEIGHT]...", nargs=-1, required=True)
@click.option("--block-size", type=int, required=True, help="Tokens in a row.")
@click.option("--batch", type=int, required=True, help="Rows of a step over all ranks.")
@click.option("--ranks", type=int, default=1, show_default=True, help="Data-parallel processes.")
@click.option("--steps", type=int, help="Steps of the run; all by default.")
@click.option("--epochs", type=int, help="Passes over a single corpus.")
@click.option("--stride", type=int, help="Tokens from a block to the next; block-size by default.")
@click.option(
    "--remainder",
    type=click.Choice(["drop", "pad", "error"]),
    default="drop",
    show_default=True,
    help="What becomes of the last rows if they do not fill a step.",
)
@click.option(
    "--on-exhausted",
    type=click.Choice(["repeat", "stop", "remove"]),
    default="repeat",
    show_default=True,
    help="What happens when a corpus of several runs out.",
)
@source_dtype
@as_json
def plan(*, as_json: bool, corpora: tuple[str, ...], **options: Any) -> None:
    """Says what a training run will serve, drop, pad and repeat, before any GPU starts.

    \b
    Examples:
      packcore plan corpus --block-size 2049 --batch 512 --ranks 8 --epochs 1
      packcore plan web=corpus/web:0.7 code=corpus/code:0.3 \\
          --block-size 4097 --batch 1024 --ranks 64 --steps 100000
      packcore plan corpus --block-size 2049 --batch 512 --epochs 1 --json | jq .num_steps
    """
    loader = _make_loader(corpora, **options)
    steps = options["steps"]
    if loader.num_steps is None and steps is None:
        raise click.UsageError("This run has no end: give --steps or --epochs.")
    made = loader.plan(steps)
    if not as_json:
        echo(str(made))
        return
    totals = {"tokens_served": made.tokens_served, "tokens_padded": made.tokens_padded}
    print_json(dataclasses.asdict(made) | totals)


def _make_loader(
    corpora: tuple[str, ...],
    *,
    block_size: int,
    batch: int,
    ranks: int,
    steps: int | None,
    epochs: int | None,
    stride: int | None,
    remainder: str,
    on_exhausted: Any,
    source_dtype: str | None,
) -> Loader:
    del steps
    sources = {}
    for text in corpora:
        name, path, weight = _parse_source(text)
        blocks = open_dataset(path, dtype=source_dtype).blocks(block_size, stride=stride)
        key = name or path
        if key in sources:
            raise click.UsageError(f"Two corpora are named {key}: write NAME=CORPUS.")
        sources[key] = (blocks, weight)
    if not any(len(blocks) for blocks, _ in sources.values()):
        raise click.ClickException(
            f"No corpus has a block of {block_size} tokens. Use a smaller --block-size."
        )
    source: Any = next(iter(sources.values()))[0]
    if len(sources) > 1:
        if epochs is not None:
            raise click.UsageError(
                "--epochs is for a single corpus; give --steps or --on-exhausted."
            )
        source = Mixture(sources, on_exhausted=on_exhausted)
    return Loader(
        source, batch, seed=0, epochs=epochs, remainder=remainder, world_size=ranks, prefetch=0
    )


def _check_seconds(_context: click.Context, _option: click.Parameter, value: float) -> float:
    if not 0 < value < math.inf:
        raise click.BadParameter(f"It must be above 0, and finite; got {value:g} (seconds).")
    return value


@click.command(no_args_is_help=True)
@click.argument("corpus")
@click.option("--block-size", type=int, default=2049, show_default=True, help="Tokens in a row.")
@click.option("--batch", type=int, default=16, show_default=True, help="Rows of a batch.")
@click.option(
    "--seconds",
    type=float,
    default=3.0,
    show_default=True,
    callback=_check_seconds,
    help="For each order.",
)
@source_dtype
@as_json
def bench(
    *,
    as_json: bool,
    corpus: str,
    block_size: int,
    batch: int,
    seconds: float,
    source_dtype: str | None,
) -> None:
    """Measures how fast this machine reads batches of this corpus, in each order.

    What the operating system holds in memory already is read faster: run it twice, or on a
    corpus larger than the memory, for either case.

    \b
    Examples:
      packcore bench corpus
      packcore bench /mnt/nfs/corpus --block-size 4097 --batch 64 --seconds 10
    """
    blocks = open_dataset(corpus, dtype=source_dtype).blocks(block_size)
    orders: dict[str, Any] = {"sequential": None, "window": "window", "global": "global"}
    found = {}
    for name, shuffle in orders.items():
        loader = Loader(blocks, batch, seed=0, shuffle=shuffle)
        num_batches, elapsed = _serve(loader, seconds)
        rate = num_batches * batch * block_size / elapsed
        found[name] = {
            "tokens_per_second": rate,
            "bytes_per_second": rate * blocks.dtype.itemsize,
            "batches_per_second": num_batches / elapsed,
        }
    if as_json:
        print_json(found)
        return
    for name, one in found.items():
        echo(
            f"{name:<11}{human(one['tokens_per_second']):>16} tokens/s "
            f"{one['bytes_per_second'] / 1e6:>10,.1f} MB/s {one['batches_per_second']:>12,.1f} "
            "batches/s"
        )


def _serve(loader: Loader, seconds: float) -> tuple[int, float]:
    """Takes batches for some seconds; returns how many, and how long it took."""
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    count, elapsed = 0, 0.0
    while elapsed < seconds:
        next(batches)
        count += 1
        elapsed = time.perf_counter() - start
    loader.close()
    return count, elapsed
