"""packcore inspect and packcore verify."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from packcore import corpora
from packcore.cli.output import as_json, bar, echo, human, print_json, source_dtype
from packcore.corpora import Lengths, Summary
from packcore.errors import ArgumentError
from packcore.manifest import ChunkEntry, Manifest
from packcore.pipeline.tokenizers import load_tokenizer

__all__ = ["inspect", "verify"]

_BAR = 40
"""Characters of the longest bar of the histogram."""


@click.command(no_args_is_help=True)
@click.argument("corpus")
@click.option("-t", "--tokenizer", metavar="T", help="Shows documents as text; see build --help.")
@click.option(
    "--documents",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="How many documents to show.",
)
@click.option(
    "--from",
    "first",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="The first one to show.",
)
@click.option("--sep-token", type=int, help="The id that ends a document, if none is recorded.")
@source_dtype
@as_json
def inspect(
    *,
    as_json: bool,
    corpus: str,
    tokenizer: str | None,
    documents: int,
    first: int,
    sep_token: int | None,
    source_dtype: str | None,
) -> None:
    """Says what is in a corpus: totals, document lengths, origin, and some documents.

    CORPUS is a folder, a chunk file, a manifest, or a prefix as in corpus/train; or of another
    format, as for convert. Its documents are shown as text if their tokenizer is "bytes" or is
    named; else as ids.

    \b
    Examples:
      packcore inspect corpus
      packcore inspect corpus/train -t tokenizer.json --documents 10 --from 5000
      packcore inspect corpus --json | jq .num_tokens
    """
    summary = corpora.summarize(corpus, sep_token=sep_token, dtype=source_dtype)
    shown = _read_documents(summary, tokenizer, first, documents)
    if as_json:
        print_json(_record(summary, shown))
        return
    dataset = summary.dataset
    low, high = dataset.id_range or ("?", "?")
    number = "unknown" if dataset.num_documents is None else human(dataset.num_documents)
    echo(
        f"tokens      {human(dataset.num_tokens)} of {dataset.dtype.name}, ids {low} to {high}",
        f"documents   {number}",
        f"chunks      {human(len(dataset.chunks))}",
        f"fingerprint {dataset.fingerprint}",
        *(line for manifest in summary.manifests for line in _describe(manifest)),
    )
    if summary.lengths is not None:
        echo("", *_draw(summary.lengths))
    for index, text in shown.items():
        echo("", f"document {index}:", text)


def _read_documents(
    summary: Summary, tokenizer: str | None, first: int, count: int
) -> dict[int, str]:
    """Returns some documents as text, or as ids where the tokenizer is unknown."""
    dataset = summary.dataset
    if not dataset.has_documents:
        return {}
    known = {manifest.tokenizer_hash for manifest in summary.manifests}
    if tokenizer is None and {manifest.tokenizer for manifest in summary.manifests} == {"bytes"}:
        tokenizer = "bytes"
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    if loaded is not None and known - {None, loaded.hash}:
        raise ArgumentError(
            f"The tokenizer {tokenizer} is not the one that the corpus was built with: its hash is "
            f"{loaded.hash}, the manifest says {', '.join(map(str, known))}.",
            name="tokenizer",
            value=tokenizer,
        )
    last = min(first + count, dataset.num_documents or 0)
    ids = {index: dataset.document(index) for index in range(first, last)}
    return {
        index: str(one.tolist()) if loaded is None else loaded.decode(one)
        for index, one in ids.items()
    }


def _describe(manifest: Manifest) -> list[str]:
    number = "?" if manifest.num_documents is None else human(manifest.num_documents)
    lines = [
        "",
        f"prefix {manifest.prefix}: {human(manifest.num_tokens)} tokens, {number} documents",
        f"  chunks     {human(manifest.num_chunks)} of {human(manifest.chunk_size)} tokens",
        f"  tokenizer  {manifest.tokenizer} ({manifest.tokenizer_hash})",
        f"  vocab_size {manifest.vocab_size}, sep_token {manifest.sep_token}",
    ]
    return lines + [f"  {key} {value}" for key, value in (manifest.provenance or {}).items()]


def _draw(lengths: Lengths) -> list[str]:
    """Returns a histogram."""
    most = max(lengths.counts)
    ends = f"{human(lengths.shortest)} to {human(lengths.longest)}"
    lines = [f"document lengths: {ends} tokens, {lengths.mean:,.1f} on average"]
    for low, high, count in lengths.bins():
        label = human(low) if low == high else f"{human(low)} to {human(high)}"
        drawn = "#" * -(-_BAR * count // most)
        lines.append(f"{label:>26} {human(count):>14} {drawn}".rstrip())
    return lines


def _record(summary: Summary, shown: dict[int, str]) -> dict[str, Any]:
    dataset = summary.dataset
    lengths = summary.lengths
    return {
        "num_tokens": dataset.num_tokens,
        "num_documents": dataset.num_documents,
        "num_chunks": len(dataset.chunks),
        "dtype": dataset.dtype.name,
        "id_range": dataset.id_range,
        "fingerprint": dataset.fingerprint,
        "prefixes": {
            manifest.prefix: {
                "num_tokens": manifest.num_tokens,
                "num_documents": manifest.num_documents,
                "num_chunks": manifest.num_chunks,
                "chunk_size": manifest.chunk_size,
                "tokenizer": manifest.tokenizer,
                "tokenizer_hash": manifest.tokenizer_hash,
                "vocab_size": manifest.vocab_size,
                "sep_token": manifest.sep_token,
                "provenance": manifest.provenance,
            }
            for manifest in summary.manifests
        },
        "document_lengths": lengths
        and {
            "shortest": lengths.shortest,
            "longest": lengths.longest,
            "mean": lengths.mean,
            "bins": [
                {"shortest": low, "longest": high, "count": count}
                for low, high, count in lengths.bins()
            ],
        },
        "documents": shown,
    }


@click.command(no_args_is_help=True)
@click.argument("corpus")
@as_json
def verify(*, as_json: bool, corpus: str) -> None:
    """Reads all of a corpus and compares it with its manifests.

    Checksums, headers, sizes, the range of the ids, and where documents begin. The exit status
    is 0 if the corpus is whole and 1 if it is not.

    \b
    Examples:
      packcore verify corpus
      packcore verify corpus/train --json | jq '.problems[].path'
      packcore verify corpus && torchrun train.py
    """
    with bar(None, "tokens") as shown:

        def on_chunk(entry: ChunkEntry) -> None:
            shown.update(entry.num_tokens)

        found = corpora.verify(corpus, on_chunk=on_chunk)
    if as_json:
        print_json({"is_whole": found.is_whole, **dataclasses.asdict(found)})
    else:
        for problem in found.problems:
            at = "" if problem.what.startswith(problem.path) else f"{problem.path} "
            echo(f"{at}{problem.what}")
        echo(
            f"{'whole' if found.is_whole else 'NOT whole'}: {human(found.num_chunks)} chunks, "
            f"{human(found.num_tokens)} tokens, {len(found.problems)} problems"
        )
    if not found.is_whole:
        click.get_current_context().exit(1)
