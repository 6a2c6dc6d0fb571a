"""packcore convert."""

from __future__ import annotations

from typing import Literal

import click

from packcore.cli.output import as_json, bar, echo, human, print_json, source_dtype
from packcore.conversion import TARGETS
from packcore.conversion import convert as convert_corpus

__all__ = ["convert"]

_SIDES = click.Choice(["before", "after"])


@click.command(no_args_is_help=True)
@click.argument("source", metavar="SRC...", nargs=-1, required=True)
@click.argument("destination", metavar="DST")
@click.option("--to", type=click.Choice(TARGETS), default="litpkds", show_default=True)
@click.option("--sep-token", type=int, help="The id that tells documents apart.")
@source_dtype
@click.option("--dtype", metavar="DTYPE", help="Of what is written; the source's by default.")
@click.option("--prefix", help="What files' names begin with.")
@click.option("--chunk-size", type=click.IntRange(1), help="Tokens a file.")
@click.option("--vocab-size", type=click.IntRange(1), help="Refuse ids from here on.")
@click.option("--add-sep", type=_SIDES, help="Put the separator before or after each document.")
@click.option("--strip-sep", type=_SIDES, help="Take the separator off each document.")
@click.option("--drop-documents", is_flag=True, help="Write the tokens alone.")
@click.option("--overwrite", is_flag=True, help="Replace files that are there.")
@as_json
def convert(
    *,
    as_json: bool,
    source: tuple[str, ...],
    destination: str,
    to: str,
    sep_token: int | None,
    source_dtype: str | None,
    dtype: str | None,
    prefix: str | None,
    chunk_size: int | None,
    vocab_size: int | None,
    add_sep: Literal["before", "after"] | None,
    strip_sep: Literal["before", "after"] | None,
    drop_documents: bool,
    overwrite: bool,
) -> None:
    """Writes a corpus of any format as chunks, or as files of another program.

    SRC is what packcore.open reads: a file, a folder or a prefix of Megatron, fairseq, llm.c,
    nanoGPT, datatrove, OLMo, litdata, MDS, levanter, Hugging Face or ArrayRecord files, or several.
    DST is a folder; for Megatron the files' path without a suffix.

    \b
    Examples:
      packcore convert megatron/web_text_document corpus
      packcore convert train.bin corpus --source-dtype uint16 --sep-token 50256
      packcore convert corpus out/web_text_document --to megatron
      packcore convert corpus out --to llmc --add-sep before
    """
    with bar(None, "tokens") as shown:

        def on_tokens(done: int) -> None:
            shown.update(done - shown.n)

        written = convert_corpus(
            source[0] if len(source) == 1 else source,
            destination,
            to=to,
            sep_token=sep_token,
            source_dtype=source_dtype,
            dtype=dtype,
            prefix=prefix,
            chunk_size=chunk_size,
            vocab_size=vocab_size,
            add_sep=add_sep,
            strip_sep=strip_sep,
            drop_documents=drop_documents,
            overwrite=overwrite,
            on_tokens=on_tokens,
        )
    if as_json:
        print_json(
            {
                "files": list(written.files),
                "num_tokens": written.num_tokens,
                "num_documents": written.num_documents,
            }
        )
        return
    number = "?" if written.num_documents is None else human(written.num_documents)
    echo(
        f"{destination}: {number} documents, {human(written.num_tokens)} tokens in "
        f"{len(written.files)} files"
    )
