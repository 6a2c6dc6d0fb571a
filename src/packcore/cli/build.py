"""packcore build."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from typing import Any

import click

import packcore.pipeline
from packcore.cli.output import as_json, bar, echo, human, print_json, short
from packcore.pipeline import Progress

__all__ = ["build"]

_BAR = "{percentage:3.0f}% [{elapsed}<{remaining}]{postfix}"
"""Fits 80 columns, where tqdm's own leaves no room for what it ends with."""


def _id_or_name(_context: click.Context, _option: click.Parameter, value: str | None) -> Any:
    """An id, a token by its spelling, or "none"."""
    if value is None or value == "none":
        return None
    return int(value) if re.fullmatch("-?[0-9]{1,20}", value) else value


@click.command(no_args_is_help=True)
@click.argument("inputs", nargs=-1, required=True)
@click.option("-o", "--out", required=True, metavar="FOLDER", help="Where the corpus goes.")
@click.option("-t", "--tokenizer", metavar="T", help="What turns text into ids; see above.")
@click.option("--prefix", default="train", show_default=True, help="What files' names begin with.")
@click.option(
    "--chunk-size", default=2**24, show_default=True, help="Tokens a chunk file.", metavar="TOKENS"
)
@click.option("--column", default="text", show_default=True, help="The field that has the text.")
@click.option("--ids-column", help="The field that has token ids, for inputs without text.")
@click.option(
    "--text-files",
    type=click.Choice(["whole", "lines"]),
    default="whole",
    show_default=True,
    help="Whether a .txt file is a document, or each of its lines.",
)
@click.option(
    "--eod",
    default="auto",
    show_default=True,
    callback=_id_or_name,
    metavar="TOKEN",
    help="Put behind each document: an id, a token, 'auto' for the tokenizer's own, or 'none'.",
)
@click.option(
    "--bos",
    default=None,
    callback=_id_or_name,
    metavar="TOKEN",
    help="Put before each document: an id or a token. Nothing by default.",
)
@click.option("--vocab-size", type=int, help="Ids must be below it; the tokenizer's by default.")
@click.option("--dtype", default="auto", show_default=True, help="Of the tokens on disk.")
@click.option("--workers", type=int, help="Processes that tokenize; one a core by default.")
@click.option(
    "--on-error",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What a broken line or file does: fail the build, or be told, counted and left out.",
)
@click.option("--overwrite", is_flag=True, help="Build anew, and remove what is there.")
@as_json
def build(*, as_json: bool, inputs: tuple[str, ...], out: str, **options: Any) -> None:
    """Tokenizes files and packs them into chunk files.

    \b
    INPUTS are files, folders and globs of
      .jsonl .ndjson .json   a JSON object a line, also with .gz or .zst behind
      .txt                   also with .gz or .zst behind
      .parquet .arrow        and folders that Hugging Face save_to_disk wrote

    \b
    T is one of
      bytes                  UTF-8 bytes; 256 ends a document
      tokenizer.json         of Hugging Face tokenizers
      some.model             of SentencePiece
      tiktoken:NAME          of tiktoken, or a file that is named NAME.tiktoken
      module:function        a function of a list of texts that returns the ids of each

    \b
    Examples:
      packcore build web/ -o corpus -t tokenizer.json
      packcore build 'web/*.jsonl.zst' -o corpus -t llama.model --prefix web --workers 32
      packcore build code.parquet -o corpus -t tiktoken:cl100k_base --column content
      packcore build ids.parquet -o corpus --ids-column ids --eod none --vocab-size 32000

    The same inputs and options give the same bytes at any number of workers. A build that was
    stopped, in whatever way, goes on when the same command is given again.
    """
    sys.path.append(os.getcwd())  # where module:function is looked for, last
    start = time.perf_counter()
    with bar(None, "B", form=_BAR) as shown:

        def on_progress(progress: Progress) -> None:
            shown.total = progress.total_bytes
            shown.set_postfix_str(_rates(progress, shown.format_dict["elapsed"]), refresh=False)
            shown.update(progress.done_bytes - shown.n)

        def on_skip(message: str) -> None:
            shown.write(f"packcore: skipped {message}", file=sys.stderr)

        manifest = packcore.pipeline.build(
            inputs, out, on_progress=on_progress, on_skip=on_skip, **options
        )
    seconds = time.perf_counter() - start
    provenance = manifest.provenance or {}
    if as_json:
        record = {
            field.name: getattr(manifest, field.name) for field in dataclasses.fields(manifest)
        }
        record |= {"dtype": manifest.dtype.name, "chunks": manifest.num_chunks, "out": out}
        record |= {"num_tokens": manifest.num_tokens, "num_documents": manifest.num_documents}
        print_json(record | {"fingerprint": manifest.fingerprint, "seconds": round(seconds, 3)})
        return
    echo(
        f"{human(manifest.num_documents or 0)} documents, {human(manifest.num_tokens)} tokens in "
        f"{manifest.num_chunks} chunks of {manifest.dtype.name}: {out}, prefix {manifest.prefix}"
    )
    if provenance.get("num_skipped"):
        echo(f"{human(provenance['num_skipped'])} broken lines, rows or files were skipped")


def _rates(progress: Progress, seconds: float) -> str:
    rate = progress.num_tokens / max(seconds, 1e-9)
    return (
        f"{short(progress.num_documents)} documents, {short(progress.num_tokens)} tokens, "
        f"{short(rate)} tokens/s"
    )
