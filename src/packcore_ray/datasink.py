"""The end of a Ray Data pipeline: a datasink that leaves a packed corpus.

Write tasks turn rows into parts; when all are there, chunks are packed from them in Ray tasks and
linked into the corpus's folder, and the manifest is written last. Parts are
`packcore_ray.parts`', ids of rows are made as in `packcore.build`.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from typing import Any, Literal

import numpy.typing as npt
import ray
from ray.data import Datasink

from packcore.checks import check_choice
from packcore.corpora.merging import merge
from packcore.errors import FormatError, OverwriteError
from packcore.files import check_writable
from packcore.manifest import Manifest, check_prefix, list_files
from packcore.pipeline.options import make_options
from packcore.pipeline.work import Encoded, Piece, Work
from packcore_ray.build import encoder_of, plain_errors
from packcore_ray.columns import read_column
from packcore_ray.parts import Form, Part, pack_chunk, plan_chunks, write_part

__all__ = ["PackedDatasink"]

_Written = tuple[int, list[Part]]
"""The index of a write task, and what it wrote."""


class PackedDatasink(Datasink[_Written]):  # type: ignore[misc,unused-ignore]
    """Ends a Ray Data pipeline in a packed corpus: one row, one document.

    Give it to `ray.data.Dataset.write_datasink`, once. The folder must be the same one on every
    node. The chunk files are the bytes that `packcore.build` makes of the same rows in the same
    order. That order is the data set's if `preserve_order` is set in
    `DataContext.execution_options`; else it is that of Ray's write tasks.

    Nothing appears under the corpus's names before all rows are tokenized; until then parts of
    it are in a hidden folder `.{prefix}.*.parts` beside, as large as the corpus. A write that
    fails removes them, and leaves no manifest, or a former corpus as it was. If the process that
    calls is killed, the hidden folder stays and may be removed.

    Args:
        outdir: the folder of the corpus; made if there is none.
        prefix: what the files' names begin with.
        tokenizer: as for `packcore.build`; None with `ids_column`.
        chunk_size: tokens a chunk file.
        column: the column that holds the text.
        ids_column: the one that holds lists or arrays of token ids, for rows that are tokenized.
        eod: put behind each document, as for `packcore.build`.
        bos: put before each document.
        vocab_size: ids must be below it; the tokenizer's by default.
        dtype: of the tokens on disk; "auto" for uint16 or int32, by the vocab_size.
        on_error: what a row does that no document can be made of: "fail" the write, or be
            "skip"-ped and counted.
        overwrite: replace a corpus of this prefix, once the new one is ready.

    Attributes:
        manifest: of the corpus, when it is written.

    Raises:
        ArgumentError: an argument breaks its rule.
        ArgumentTypeError: an argument is of a wrong type.
        NoDataError: there is no such tokenizer file.
        OverwriteError: files of this prefix are there, and `overwrite` is False.
        WriteError: the folder cannot be made or written to.
    """

    manifest: Manifest | None = None

    def __init__(
        self,
        outdir: str | os.PathLike[str],
        prefix: str = "train",
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        chunk_size: int = 2**24,
        column: str = "text",
        ids_column: str | None = None,
        eod: int | str | None = "auto",
        bos: int | str | None = None,
        vocab_size: int | None = None,
        dtype: npt.DTypeLike = "auto",
        on_error: Literal["fail", "skip"] = "fail",
        overwrite: bool = False,
    ) -> None:
        check_choice("on_error", on_error, ("fail", "skip"))
        options = make_options(
            (),
            tokenizer=tokenizer,
            chunk_size=chunk_size,
            column=column,
            ids_column=ids_column,
            text_files="whole",
            eod=eod,
            bos=bos,
            vocab_size=vocab_size,
            dtype=dtype,
        )
        recipe = options.recipe
        self._recipe = recipe
        self._form = Form(
            check_prefix(prefix),
            options.chunk_size,
            options.sep_token,
            recipe.dtype,
            recipe.vocab_size,
            recipe.tokenizer,
            recipe.tokenizer_hash,
        )
        self._provenance = {
            "column" if ids_column is None else "ids_column": recipe.column,
            "bos_token": recipe.bos_token,
            "eod_token": recipe.eod_token,
        }
        self._fail = on_error == "fail"
        self._overwrite = overwrite
        # Absolute: a task's working directory is another one.
        self._outdir = os.path.abspath(outdir)
        self._parts = os.path.join(self._outdir, f".{prefix}.{secrets.token_hex(4)}.parts")
        self._check_free()

    def on_write_start(self, schema: object = None) -> None:
        """Makes the folder of the parts.

        Args:
            schema: of the rows; unused.

        Raises:
            OverwriteError: files of the prefix have come into being.
            WriteError: the folder cannot be made.
        """
        del schema
        self._check_free()
        check_writable(os.path.join(self._parts, "part"))

    def write(self, blocks: Iterable[Any], ctx: Any) -> _Written:
        """Writes each block's documents as a part. Runs in a Ray task, and may run twice.

        Args:
            blocks: Ray's, of rows.
            ctx: Ray's, of the task.

        Raises:
            FormatError: no document can be made of a row, and that ends the write.
            ArgumentError: there is no such column.
            WriteError: the disk refused.
        """
        parts = []
        for block in blocks:
            num_rows, payload = read_column(block, self._recipe.column)
            if num_rows:
                piece = Piece(0, "a Ray block", "rows", 0, num_rows, payload)
                encoded = encoder_of(self._recipe)(Work((piece,)))
                self._check_rows(encoded)
                parts.append(write_part(self._parts, encoded))
        return ctx.task_idx, parts

    def on_write_complete(self, write_result: Any) -> None:
        """Packs the parts into chunks, and publishes them.

        Args:
            write_result: Ray's; `write_returns` has what the tasks that Ray counts returned.

        Raises:
            OverwriteError: files of the prefix have come into being.
            WorkerError: Ray gave a task up.
            WriteError: the disk refused.
        """
        # A write task's index is that of its input, so this is the order of the rows.
        written = sorted(write_result.write_returns, key=lambda one: one[0])
        parts = [part for _, some in written for part in some]
        num_skipped = sum(part.num_skipped for part in parts)
        provenance = {**self._provenance, "num_skipped": num_skipped}
        chunks = self._pack(parts)
        if chunks:
            self.manifest = merge(
                chunks,
                self._outdir,
                prefix=self._form.prefix,
                overwrite=self._overwrite,
                provenance=provenance,
            )
        else:
            builder = self._form.builder(self._outdir, overwrite=self._overwrite)
            self.manifest = builder.close(provenance=provenance)
        self._remove_parts()

    def on_write_failed(self, error: Exception) -> None:
        """Removes the parts. There is no manifest, or that of a former corpus.

        Args:
            error: what Ray met first.
        """
        del error
        self._remove_parts()

    def _pack(self, parts: list[Part]) -> list[str]:
        """Packs all chunks in Ray tasks; returns the folder of each, in order."""
        pack: Any = ray.remote(num_cpus=1, max_retries=-1)(pack_chunk)
        form = ray.put(self._form)
        plans = plan_chunks(parts, self._form.chunk_size)
        with plain_errors("Write the data set again."):
            folders: list[str] = ray.get([pack.remote(self._parts, form, plan) for plan in plans])
        return folders

    def _check_rows(self, encoded: Encoded) -> None:
        if encoded.broken and self._fail:
            one = encoded.broken[0]
            place = "A block" if one.line is None else f"Row {one.line + 1} of a block"
            raise FormatError(
                f"{place} of the column {self._recipe.column!r} cannot become a document: "
                f'{one.why}. Filter such rows out before, or leave them out with on_error="skip", '
                "which counts them."
            )

    def _check_free(self) -> None:
        found = list_files(self._outdir, self._form.prefix)
        if found and not self._overwrite:
            raise OverwriteError(
                f"{found[0]} is there already, and {len(found) - 1} more files of prefix "
                f"{self._form.prefix!r}. Pass overwrite=True to replace them once the new corpus "
                "is ready, or choose another prefix.",
                path=found[0],
            )

    def _remove_parts(self) -> None:
        shutil.rmtree(self._parts, ignore_errors=True)
