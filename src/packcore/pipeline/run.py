"""From files of text to a packed corpus: the build as a whole.

Here the pieces meet: `inputs` lists, `reading` cuts, an engine encodes, the builder packs, the
journal remembers. One process writes, in the order of the inputs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Literal

import numpy.typing as npt

from packcore.builder import PackedDatasetBuilder
from packcore.checks import check_choice
from packcore.errors import ArgumentError, ArgumentTypeError, StateError
from packcore.files import check_writable
from packcore.manifest import ChunkEntry, Manifest, check_prefix, manifest_path, read_manifest
from packcore.pipeline.engines import Engine, choose_engine
from packcore.pipeline.inputs import Sources, list_inputs
from packcore.pipeline.journal import Journal
from packcore.pipeline.kept import check_kept
from packcore.pipeline.options import BuildOptions, make_options
from packcore.pipeline.packing import OnSkip, Packing, Progress
from packcore.pipeline.reading import cut
from packcore.writer import prepare_folder

__all__ = ["build"]


def build(
    inputs: Sources,
    outdir: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    prefix: str = "train",
    chunk_size: int = 2**24,
    column: str = "text",
    ids_column: str | None = None,
    text_files: Literal["whole", "lines"] = "whole",
    eod: int | str | None = "auto",
    bos: int | str | None = None,
    vocab_size: int | None = None,
    dtype: npt.DTypeLike = "auto",
    on_error: Literal["fail", "skip"] = "fail",
    overwrite: bool = False,
    workers: int | None = None,
    engine: Engine | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    on_skip: OnSkip | None = None,
) -> Manifest:
    r"""Tokenizes files and packs them into chunk files.

    The same inputs and options give the same bytes at any number of workers. A build that was
    stopped, in whatever way, is taken up by the same call, and ends with the same bytes as one
    that was not stopped; a finished one is not built again.

    Args:
        inputs: files, folders and globs of .jsonl (also .ndjson, .json: a JSON object a line)
            and .txt, each also with .gz or .zst behind, .parquet, .arrow, and folders that
            Hugging Face `save_to_disk` wrote. The documents keep the order of the inputs; files
            of a folder or a glob come in the order of their paths. In a folder, a plain .json is
            passed over, and so is `outdir`.
        outdir: the folder of the corpus; made if there is none.
        tokenizer: "bytes", a tokenizer.json, a SentencePiece .model, "tiktoken:NAME", a
            .tiktoken file, or "module:function". None with `ids_column`.
        prefix: what the files' names begin with.
        chunk_size: tokens a chunk file.
        column: the field of a JSON line, or the column of a table, that holds the text.
        ids_column: the one that holds token ids, for inputs that are tokenized already.
        text_files: whether a .txt file is one document, or each of its lines that is not empty.
        eod: put behind each document: an id, or a token by its spelling; "auto" for the one
            that the tokenizer names; None for nothing. It also fills the last chunk.
        bos: put before each document: an id, or a token by its spelling; None for nothing.
        vocab_size: ids must be below it; the tokenizer's by default.
        dtype: of the tokens on disk; "auto" for uint16 below a vocab_size of 65500, else int32.
        on_error: what a line, row or file does that no document can be made of: "fail" the
            build, or be "skip"-ped and counted.
        overwrite: build anew, and remove what there is of this prefix.
        workers: processes that tokenize; None for one a usable core, 0 for none beside this
            one. Others than 0 are spawned: a script that calls this needs the usual
            `if __name__ == "__main__":`.
        engine: what runs the tokenizing instead, such as `packcore_ray`'s.
        on_progress: called after each piece of work.
        on_skip: called with the place of each broken line and what is wrong with it.

    Returns:
        The manifest; its `provenance` has the options, and how many lines were skipped.

    Raises:
        NoDataError: an input or the tokenizer's file does not exist.
        ArgumentError: an argument breaks its rule.
        ArgumentTypeError: an argument is of a wrong type.
        FormatError: a line, row or file is broken, or a finished chunk has another size than
            when it was written; it is named.
        MissingExtraError: a package that an input or the tokenizer needs is not installed.
        OverwriteError: other files of this prefix are there, or another process builds it.
        StateError: a stopped build is there that was begun with other inputs or options.
        WorkerError: a worker process was killed.
        WriteError: the disk refused.

    Examples:
        >>> folder = getfixture("tmp_path")
        >>> _ = (folder / "web.jsonl").write_text('{"text": "Hello"}\n{"text": "world"}\n')
        >>> manifest = build(folder / "web.jsonl", folder / "corpus", tokenizer="bytes", workers=0)
        >>> manifest.num_documents, manifest.num_tokens
        (2, 12)
    """
    check_choice("on_error", on_error, ("fail", "skip"))
    check_prefix(prefix)
    outdir = _check_outdir(outdir)
    files = list_inputs(inputs, without=outdir)
    options = make_options(
        files,
        tokenizer=tokenizer,
        chunk_size=chunk_size,
        column=column,
        ids_column=ids_column,
        text_files=text_files,
        eod=eod,
        bos=bos,
        vocab_size=vocab_size,
        dtype=dtype,
    )
    engine = engine or choose_engine(workers)
    check_writable(manifest_path(outdir, prefix))
    with Journal(outdir, prefix) as journal:
        finished = _prepare(journal, outdir, prefix, options, overwrite=overwrite)
        if finished is None:
            if journal.mark.num_skipped and on_error == "fail":
                raise _already_skipped(journal)
            packing = Packing(journal, files, options.chunk_size, on_skip, fail=on_error == "fail")
            finished = _run(packing, outdir, prefix, options, engine, on_progress)
        journal.remove()
    return finished


def _check_outdir(outdir: object) -> str:
    path = os.fspath(outdir) if isinstance(outdir, str | os.PathLike) else None
    if not isinstance(path, str):
        message = f"outdir must be the path of a folder; got {outdir!r}."
        raise ArgumentTypeError(message, name="outdir", value=outdir)
    if "\0" in path:
        message = f"outdir must have no NUL character; got {path!r}."
        raise ArgumentError(message, name="outdir", value=path)
    return path or "."


def _prepare(
    journal: Journal, outdir: str, prefix: str, options: BuildOptions, *, overwrite: bool
) -> Manifest | None:
    """Readies the folder for a new build, or for one that goes on.

    Once the journal has its first line, all files of the prefix are this build's own.

    Returns:
        The manifest, if the build is finished already.
    """
    if overwrite:
        journal.clear()
    if journal.header is not None:
        journal.check(options.header)
        finished = _read_finished(outdir, prefix)
        _check_kept(outdir, journal.entries if finished is None else finished.chunks, options)
        return finished
    try:
        finished = None if overwrite else _read_finished(outdir, prefix)
        if finished is not None and options.is_of(finished):
            _check_kept(outdir, finished.chunks, options)
            return finished
        prepare_folder(outdir, prefix, overwrite=overwrite)
    except BaseException:
        journal.remove()
        raise
    journal.begin(options.header)
    return None


def _check_kept(outdir: str, entries: Sequence[ChunkEntry], options: BuildOptions) -> None:
    check_kept(outdir, entries, options.chunk_size, options.recipe.dtype)


def _read_finished(outdir: str, prefix: str) -> Manifest | None:
    path = manifest_path(outdir, prefix)
    return read_manifest(path) if os.path.exists(path) else None


def _run(
    packing: Packing,
    outdir: str,
    prefix: str,
    options: BuildOptions,
    engine: Engine,
    on_progress: Callable[[Progress], object] | None,
) -> Manifest:
    recipe, journal = options.recipe, packing.journal
    builder = PackedDatasetBuilder(
        outdir,
        prefix,
        options.chunk_size,
        options.sep_token,
        recipe.dtype,
        recipe.vocab_size,
        tokenizer=recipe.tokenizer,
        tokenizer_hash=recipe.tokenizer_hash,
        finished=journal.entries,
        on_chunk=packing.on_chunk,
    )
    work = cut(
        packing.files,
        journal.mark.cursor,
        column=recipe.column,
        lines_of_text=options.lines_of_text,
    )
    with builder, closing(engine(recipe, work)) as encoded:
        for one, ids in encoded:
            packing.add(builder, one, ids)
            if on_progress is not None:
                on_progress(packing.progress())
        packing.end()
        return builder.close(provenance=options.provenance(packing.mark))


def _already_skipped(journal: Journal) -> StateError:
    number = journal.mark.num_skipped
    return StateError(
        f"{journal.path} is of a build that skipped {number} broken lines: go on with "
        'on_error="skip", or build anew with overwrite=True.',
        field="on_error",
        expected="skip",
        got="fail",
    )
