"""The engine that tokenizes in Ray tasks, and the build that uses it.

Everything else is `packcore.build`: the process that calls cuts the inputs, writes the corpus and
keeps the journal, so the bytes and the way a stopped build goes on are the same.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Generator, Iterator
from typing import Any

import ray

import packcore
from packcore.errors import WorkerError
from packcore.manifest import Manifest
from packcore.pipeline.encoding import Encoder, Recipe
from packcore.pipeline.engines import Engine, in_order
from packcore.pipeline.inputs import Sources
from packcore.pipeline.work import Encoded, Work

__all__ = ["build", "encoder_of", "plain_errors", "tasks"]


def build(
    inputs: Sources,
    outdir: str | os.PathLike[str],
    *,
    num_ahead: int | None = None,
    **options: Any,
) -> Manifest:
    """Tokenizes files on a Ray cluster and packs them into chunk files.

    Call it where Ray is connected to (`ray.init`). The inputs and the tokenizer's file must be at
    the same paths on every node. A node that is lost costs the work that was on it, which is done
    again elsewhere; if the process that calls is lost, the same call goes on.

    Args:
        inputs: as for `packcore.build`.
        outdir: the folder of the corpus; only the process that calls writes to it.
        num_ahead: pieces of work, of about 1 MiB, that are begun ahead of what is written; twice
            the cluster's CPUs by default.
        **options: as for `packcore.build`, except `workers` and `engine`.

    Returns:
        The manifest.

    Raises:
        WorkerError: Ray gave a task up.
        PackcoreError: whatever `packcore.build` raises.
    """
    return packcore.build(inputs, outdir, engine=tasks(num_ahead), **options)


def tasks(num_ahead: int | None = None) -> Engine:
    """Returns an engine for `packcore.build` that tokenizes in Ray tasks, one CPU each."""
    return lambda recipe, work: _run(recipe, work, num_ahead)


def _run(
    recipe: Recipe, work: Iterator[Work], num_ahead: int | None
) -> Generator[tuple[Work, Encoded], None, None]:
    # Without limit: work is pure, and a node may be lost any number of times.
    encode: Any = ray.remote(num_cpus=1, max_retries=-1)(_encode)
    if num_ahead is None:
        resources: Any = ray.cluster_resources()  # type: ignore[no-untyped-call,unused-ignore]
        num_ahead = 2 * max(1, int(resources.get("CPU", 1)))
    with plain_errors("What is finished is kept: the same build goes on from there."):
        yield from in_order(work, lambda one: encode.remote(recipe, one), ray.get, num_ahead)


@contextlib.contextmanager
def plain_errors(way_out: str) -> Iterator[None]:
    """Raises what was raised in a task, without Ray's traceback as its message.

    Raises:
        WorkerError: Ray gave the task up; `way_out` ends its message.
    """
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise WorkerError(f"Ray gave a piece of work up: {error}. {way_out}") from error


def _encode(recipe: Recipe, work: Work) -> Encoded:
    return encoder_of(recipe)(work)


@functools.lru_cache(maxsize=1)
def encoder_of(recipe: Recipe) -> Encoder:
    """Returns the encoder of this process, which Ray uses for many tasks."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return Encoder(recipe)
