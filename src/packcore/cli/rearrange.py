"""packcore merge and packcore split."""

from __future__ import annotations

import click

from packcore import corpora
from packcore.cli.output import as_json, bar, echo, human, print_json
from packcore.manifest import Manifest

__all__ = ["merge", "split"]


@click.command(no_args_is_help=True)
@click.argument("corpora_", metavar="CORPUS...", nargs=-1, required=True)
@click.option("-o", "--out", required=True, metavar="FOLDER", help="Where the new corpus goes.")
@click.option("--prefix", default="train", show_default=True, help="What files' names begin with.")
@click.option("--overwrite", is_flag=True, help="Remove what is there of this prefix.")
@as_json
def merge(
    *, as_json: bool, corpora_: tuple[str, ...], out: str, prefix: str, overwrite: bool
) -> None:
    """Makes one corpus of several, in their order, without rewriting a token.

    The new chunk files are hard links to the old ones, or copies on another disk. Each CORPUS
    is a folder, a manifest, or a prefix as in corpus/train; they must have one dtype, one
    chunk_size and one tokenizer.

    \b
    Examples:
      packcore merge corpus/web corpus/code -o all
      packcore merge monday/ tuesday/ -o week --prefix web
    """
    _report(
        [corpora.merge(corpora_, out, prefix=prefix, overwrite=overwrite)], out, as_json=as_json
    )


@click.command(no_args_is_help=True)
@click.argument("corpus")
@click.option("-o", "--out", required=True, metavar="FOLDER", help="Where both sides go.")
@click.option(
    "--fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    required=True,
    help="The share of documents for validation.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the choice.")
@click.option("--overwrite", is_flag=True, help="Remove what is there of both prefixes.")
@as_json
def split(
    *, as_json: bool, corpus: str, out: str, fraction: float, seed: int, overwrite: bool
) -> None:
    """Splits a corpus by documents into the prefixes train and validation.

    A document's side follows from its tokens and the seed alone: it stays the same when data is
    added, and copies of a document are on one side. Both sides are written anew.

    \b
    Examples:
      packcore split corpus -o split --fraction 0.01
      packcore split corpus/web -o web_split --fraction 0.001 --seed 7
    """
    with bar(None, "documents") as shown:

        def on_documents(done: int) -> None:
            shown.update(done - shown.n)

        made = corpora.split(
            corpus,
            out,
            fraction=fraction,
            seed=seed,
            overwrite=overwrite,
            on_documents=on_documents,
        )
    _report(list(made), out, as_json=as_json)


def _report(manifests: list[Manifest], out: str, *, as_json: bool) -> None:
    if as_json:
        keys = ("num_documents", "num_tokens", "num_chunks", "fingerprint")
        print_json({one.prefix: {key: getattr(one, key) for key in keys} for one in manifests})
        return
    for one in manifests:
        number = "?" if one.num_documents is None else human(one.num_documents)
        echo(
            f"{out}, prefix {one.prefix}: {number} documents, {human(one.num_tokens)} tokens in "
            f"{one.num_chunks} chunks"
        )
