"""A batch in packcore's words -> the batch that a trainer reads, in that trainer's words.

The sums are in `packcore.documents`; here keys, shapes and dtypes follow each trainer's source,
which every function names. All results are NumPy arrays, none of them a view of the batch:
`torch.from_numpy` or `jax.device_put` takes them without a copy.

A batch is a mapping as the loader makes it:

- tokens: `(num_rows, block_size)`, of any integer dtype;
- document_starts: `(num_rows, max_documents)`, int32, padded with block_size;
- mask: `(num_rows,)`, bool, optional: False for rows of fill. A row of document_starts that has
  no start is fill as well.

Two kinds of trainer read it. Megatron, torchtitan and MaxText are given the targets: they take
blocks of L + 1 tokens and read L. OLMo-core and Hugging Face models shift inside: they take
blocks of L tokens. No target is lost where the blocks' stride is one less than their size.

Whether a document's first token is trained as the target of the document before it,
`cross_documents`, is by default what that trainer does with its own data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from packcore.documents import cu_seqlens, loss_mask, positions, segment_ids, unpad_starts
from packcore.errors import ArgumentError, ArgumentTypeError

__all__ = [
    "hugging_face_batch",
    "maxtext_batch",
    "megatron_batch",
    "olmo_core_batch",
    "torchtitan_batch",
]

_Batch: TypeAlias = Mapping[str, npt.NDArray[Any]]
_Ints: TypeAlias = npt.NDArray[np.int32]

_IGNORED = -100
"""The label that torch's cross entropy leaves out."""


def megatron_batch(batch: _Batch, *, cross_documents: bool = True) -> dict[str, npt.NDArray[Any]]:
    """Returns what Megatron-LM reads with `--dataloader-inter-document-masking`.

    Source: NVIDIA/Megatron-LM, `megatron/core/datasets/gpt_dataset.py`, `GPTDataset.__getitem__`
    with add_extra_token_to_sequence, and its samples stacked; read by `get_batch` in
    `pretrain_gpt.py`, which flattens them by `flatten_batch_for_packed_sequences` in
    `megatron/core/utils.py`. Without that option give Megatron no cu_seqlens and no max_seqlen.

    Args:
        batch: blocks of L + 1 tokens.
        cross_documents: False is Megatron's `--eod-mask-loss`, but by the documents and not by an
            id: a document's last input has no loss.

    Returns:
        tokens, labels, position_ids: `(num_rows, L)`, int64. loss_mask: `(num_rows, L)`, float32,
        0 for rows of fill. cu_seqlens: `(num_rows, L + 1)`, int32, for each row from 0 to L,
        padded with L. max_seqlen: `(num_rows,)`, int32. Fill is one document of L tokens.

    Raises:
        ArgumentError: the batch breaks a rule.
        ArgumentTypeError: the batch is no dict.

    Examples:
        >>> made = megatron_batch(
        ...     {"tokens": np.array([[7, 8, 9, 5, 6]]), "document_starts": np.array([[0, 3]])}
        ... )
        >>> made["tokens"], made["labels"], made["cu_seqlens"]
        (array([[7, 8, 9, 5]]), array([[8, 9, 5, 6]]), array([[0, 3, 4, 4, 4]], dtype=int32))
    """
    rows = _read(batch, shortest=2)
    inputs = rows.inputs()
    padded = np.full((len(inputs.tokens), inputs.length + 1), inputs.length, np.int32)
    padded[:, : inputs.starts.shape[1]] = inputs.starts[:, : inputs.length + 1]
    weights = loss_mask(*rows.given, rows.length, cross_documents=cross_documents)
    return {
        "tokens": inputs.tokens.astype(np.int64),
        "labels": rows.tokens[:, 1:].astype(np.int64),
        "loss_mask": weights[:, 1:].astype(np.float32),
        "position_ids": inputs.positions(),
        "cu_seqlens": padded,
        "max_seqlen": inputs.lengths().max(axis=1),
    }


def olmo_core_batch(batch: _Batch, *, cross_documents: bool = True) -> dict[str, Any]:
    """Returns what OLMo-core reads with document lengths, for intra-document masking.

    Source: allenai/OLMo-core, `src/olmo_core/data/collator.py`, `DataCollator`, and
    `src/olmo_core/data/utils.py`, `get_document_lengths`, `get_labels` (which shifts) and
    `split_batch` (which takes lists as well as tensors).

    Args:
        batch: blocks of L tokens.
        cross_documents: whether a document's first token is a target.

    Returns:
        input_ids: `(num_rows, L)`, int64. doc_lens: `(num_rows, max_documents)`, int32, in
        tokens, padded with 0. max_doc_lens: a list of num_rows int. label_mask: `(num_rows, L)`,
        bool, True for tokens that are a target. Fill is one document of L tokens without any
        target; OLMo-core's instance_mask would count its tokens in the mean loss.

    Raises:
        ArgumentError: the batch breaks a rule.
        ArgumentTypeError: the batch is no dict.

    Examples:
        >>> made = olmo_core_batch(
        ...     {"tokens": np.array([[7, 8, 9, 5, 6]]), "document_starts": np.array([[0, 3]])}
        ... )
        >>> made["input_ids"], made["doc_lens"], made["max_doc_lens"]
        (array([[7, 8, 9, 5, 6]]), array([[3, 2]], dtype=int32), [3])
    """
    rows = _read(batch, shortest=1)
    label_mask = loss_mask(*rows.given, rows.length, cross_documents=cross_documents)
    lengths = rows.without_fill().lengths()
    return {
        "input_ids": rows.tokens.astype(np.int64),
        "doc_lens": lengths,
        "max_doc_lens": lengths.max(axis=1).tolist(),
        "label_mask": label_mask,
    }


def torchtitan_batch(
    batch: _Batch, *, cross_documents: bool = False, flatten: bool = False
) -> dict[str, npt.NDArray[np.int64]]:
    """Returns what torchtitan reads; `labels = made.pop("labels")` gives its pair.

    Source: pytorch/torchtitan 0.3, `torchtitan/hf_datasets/text_datasets.py`, which yields
    `{"input", "positions"}, labels` and shifts within each document; later versions flatten the
    rows, `torchtitan/components/data/collators.py`, `TextCollator`. Documents are where positions
    is 0: `create_varlen_metadata_for_document` in `torchtitan/models/common/attention.py`.

    Args:
        batch: blocks of L + 1 tokens.
        cross_documents: whether a document's first token is a target.
        flatten: one row after the other, as later versions than 0.3 read them.

    Returns:
        input, positions, labels: `(num_rows, L)`, int64, or `(num_rows * L,)` flattened. A label
        is -100 where there is no target. Fill is one document of L tokens without labels.

    Raises:
        ArgumentError: the batch breaks a rule.
        ArgumentTypeError: the batch is no dict.

    Examples:
        >>> torchtitan_batch(
        ...     {"tokens": np.array([[7, 8, 9, 5, 6]]), "document_starts": np.array([[0, 3]])}
        ... )
        {'input': array([[7, 8, 9, 5]]), 'positions': array([[0, 1, 2, 0]]),
         'labels': array([[   8,    9, -100,    6]])}
    """
    rows = _read(batch, shortest=2)
    inputs = rows.inputs()
    made = {
        "input": inputs.tokens.astype(np.int64),
        "positions": inputs.positions(),
        "labels": rows.labels(cross_documents=cross_documents)[:, 1:].copy(),
    }
    return {name: array.reshape(-1) for name, array in made.items()} if flatten else made


def hugging_face_batch(
    batch: _Batch,
    *,
    cross_documents: bool = False,
    flatten: bool = True,
    flash_attn_kwargs: bool = False,
    seq_idx: bool = False,
) -> dict[str, Any]:
    """Returns what a padding-free Hugging Face model reads; give it no attention_mask.

    Source: huggingface/transformers 5.24, `src/transformers/data/data_collator.py`,
    `DataCollatorWithFlattening`. Labels are not shifted: `ForCausalLMLoss` in
    `src/transformers/loss/loss_utils.py` does that.

    Args:
        batch: blocks of L tokens.
        cross_documents: whether a document's first token is a target.
        flatten: one sequence of all rows, as flash attention needs to see that it is packed
            (`_is_packed_sequence`, `src/transformers/modeling_flash_attention_utils.py`). Rows
            are enough for the masks of the other attentions (`find_packed_sequence_indices`,
            `src/transformers/masking_utils.py`).
        flash_attn_kwargs: add the lengths, so that no layer has to find them; flattened only.
        seq_idx: add the document of each token, for models with linear attention or convolutions;
            flattened only.

    Returns:
        input_ids, position_ids, labels: `(1, num_rows * L)`, int64, or `(num_rows, L)` if not
        flattened; labels are -100 where there is no target. With flash_attn_kwargs cu_seq_lens_q
        and cu_seq_lens_k, `(num_documents + 1,)`, int32, and max_length_q and max_length_k, int.
        With seq_idx, `(1, num_rows * L)`, int32, from 0. Fill is one document without labels.

    Raises:
        ArgumentError: the batch breaks a rule, or an addition needs flatten.
        ArgumentTypeError: the batch is no dict.

    Examples:
        >>> hugging_face_batch(
        ...     {"tokens": np.array([[7, 8, 9, 5, 6]]), "document_starts": np.array([[0, 3]])}
        ... )
        {'input_ids': array([[7, 8, 9, 5, 6]]), 'labels': array([[-100, 8, 9, -100, 6]]),
         'position_ids': array([[0, 1, 2, 0, 1]])}
    """
    if not flatten and (flash_attn_kwargs or seq_idx):
        raise ArgumentError(
            "flash_attn_kwargs and seq_idx describe one sequence of all rows; got flatten=False. "
            "Leave flatten at True.",
            name="flatten",
            value=flatten,
        )
    rows = _read(batch, shortest=1)
    whole = rows.without_fill()
    shape = (1, -1) if flatten else rows.tokens.shape
    made: dict[str, Any] = {
        "input_ids": rows.tokens.astype(np.int64).reshape(shape),
        "labels": rows.labels(cross_documents=cross_documents).reshape(shape),
        "position_ids": whole.positions().reshape(shape),
    }
    if flash_attn_kwargs or seq_idx:
        cumulative, longest = cu_seqlens(*whole.given, whole.length)
    if flash_attn_kwargs:
        made |= {"cu_seq_lens_q": cumulative, "cu_seq_lens_k": cumulative.copy()}
        made |= {"max_length_q": longest, "max_length_k": longest}
    if seq_idx:
        ids = np.arange(cumulative.size - 1, dtype=np.int32)
        made["seq_idx"] = ids.repeat(np.diff(cumulative)).reshape(shape)
    return made


def maxtext_batch(
    batch: _Batch, *, cross_documents: bool = True, padding_segment: int = 0
) -> dict[str, _Ints]:
    """Returns what MaxText reads.

    Source: AI-Hypercomputer/maxtext, `src/maxtext/input_pipeline/data_processing_utils.py`,
    `format_and_batch`, and `src/maxtext/input_pipeline/input_pipeline_utils.py`,
    `shift_and_refine`; the loss counts where targets_segmentation is not 0,
    `src/maxtext/trainers/pre_train/train.py`, `loss_fn`.

    Two things differ from MaxText's own pipeline. The last input of a row has its target, which
    MaxText's shift loses. A target whose id is the padding's keeps its loss.

    Args:
        batch: blocks of L + 1 tokens, with document_starts or, which is faster, with segment_ids
            and positions.
        cross_documents: whether a document's first token is a target, as in MaxText.
        padding_segment: the segment of padding and of inputs without a target. -1 is that of
            Levanter (stanford-crfm/levanter, `src/levanter/data/packing.py`), whose loss mask is
            then `targets_segmentation != -1`.

    Returns:
        inputs, inputs_segmentation, inputs_position, targets, targets_segmentation and
        targets_position, each `(num_rows, L)`, int32. Segments count from 1 in each row.
        targets_segmentation is the target's segment; targets_position equals inputs_position, as
        MaxText does not shift it. In rows of fill segments are padding_segment, positions 0.

    Raises:
        ArgumentError: the batch breaks a rule, or an id does not fit int32.
        ArgumentTypeError: the batch is no dict.

    Examples:
        >>> made = maxtext_batch(
        ...     {"tokens": np.array([[7, 8, 9, 5, 6]]), "document_starts": np.array([[0, 3]])},
        ...     cross_documents=False,
        ... )
        >>> made["targets"], made["targets_segmentation"]
        (array([[8, 9, 5, 6]], dtype=int32), array([[1, 1, 0, 2]], dtype=int32))
    """
    tokens, segments, places = _read_segments(batch)
    made = _together(
        inputs=tokens[:, :-1],
        inputs_segmentation=segments[:, :-1],
        inputs_position=places[:, :-1],
        targets=tokens[:, 1:],
        targets_segmentation=segments[:, 1:],
        targets_position=places[:, :-1],
    )
    if not cross_documents:
        is_first = segments[:, 1:] != segments[:, :-1]
        np.copyto(made["targets_segmentation"], 0, where=is_first)
    if padding_segment:
        for name in ("inputs_segmentation", "targets_segmentation"):
            np.copyto(made[name], padding_segment, where=made[name] == 0)
    return made


def _together(**arrays: npt.NDArray[np.integer[Any]]) -> dict[str, _Ints]:
    """Returns int32 copies of arrays of one shape, each contiguous, in one piece of memory.

    Several pieces of this size go back to the system whenever a batch is dropped, and cost more
    to be had again than to be filled.
    """
    made = np.empty((len(arrays), *next(iter(arrays.values())).shape), np.int32)
    for one, array in zip(made, arrays.values(), strict=True):
        np.copyto(one, array, casting="unsafe")
    return dict(zip(arrays, made, strict=True))


class _Rows(NamedTuple):
    """The tokens and padded starts of a batch, of one length."""

    tokens: npt.NDArray[np.integer[Any]]
    """`(num_rows, length)`."""
    starts: _Ints
    """`(num_rows, max_documents)`, padded with length."""
    given: tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.int64] | None]
    """The same as `packcore.documents` takes them: starts, and offsets or None."""

    @property
    def length(self) -> int:
        return int(self.tokens.shape[1])

    def without_fill(self) -> _Rows:
        """Returns the rows with each row of fill as one document."""
        starts = self.starts.copy()
        starts[:, 0] = 0
        return _Rows(self.tokens, starts, (starts, None))

    def inputs(self) -> _Rows:
        """Returns all tokens of a row but the last, with fill as one document."""
        tokens = self.tokens[:, :-1]
        # A document that starts at the last token has no input: its start becomes padding.
        starts = np.minimum(self.starts, tokens.shape[1])
        return _Rows(tokens, starts, (starts, None)).without_fill()

    def positions(self) -> npt.NDArray[np.int64]:
        return positions(*self.given, self.length).astype(np.int64)

    def lengths(self) -> _Ints:
        """Returns `(num_rows, max_documents)`, in tokens, 0 for padding."""
        return np.diff(self.starts, axis=1, append=np.int32(self.length))

    def labels(self, *, cross_documents: bool) -> npt.NDArray[np.int64]:
        """Returns `(num_rows, length)`, the tokens, -100 where they are no target."""
        labels = self.tokens.astype(np.int64)
        mask = loss_mask(*self.given, self.length, cross_documents=cross_documents)
        np.copyto(labels, _IGNORED, where=~mask)
        return labels


def _read(batch: _Batch, *, shortest: int) -> _Rows:
    tokens, starts = _integers(batch, "tokens"), _integers(batch, "document_starts")
    _check_fits("tokens", tokens, np.int64)
    if len(starts) != len(tokens) or not starts.shape[1] or tokens.shape[1] < shortest:
        raise ArgumentError(
            f"tokens must have rows of at least {shortest}, and document_starts as many rows of "
            f"at least 1; got the shapes {tokens.shape} and {starts.shape}.",
            name="batch",
            value=(tokens.shape, starts.shape),
        )
    length = tokens.shape[1]
    if "mask" in batch:
        starts = np.where(_mask(batch["mask"], starts[:, 0] < length)[:, None], starts, length)
    ragged = unpad_starts(starts, length)
    return _Rows(tokens, starts.astype(np.int32, copy=False), ragged)


def _read_segments(batch: _Batch) -> tuple[npt.NDArray[np.integer[Any]], ...]:
    """Returns tokens, segment ids and positions, `(num_rows, L + 1)` each."""
    names = ("tokens", "segment_ids", "positions")
    _check_dict(batch)
    if not all(name in batch for name in names):
        rows = _read(batch, shortest=2)
        _check_fits("tokens", rows.tokens, np.int32)
        place = positions(*rows.given, rows.length)
        return rows.tokens, segment_ids(*rows.given, rows.length), place
    tokens, segments, places = (_integers(batch, name) for name in names)
    for name, array in zip(names, (tokens, segments, places), strict=True):
        _check_fits(name, array, np.int32)
    if not tokens.shape == segments.shape == places.shape or tokens.shape[1] < 2:  # noqa: PLR2004
        shapes = tokens.shape, segments.shape, places.shape
        raise ArgumentError(
            "tokens, segment_ids and positions must have the same rows, of at least 2; got the "
            f"shapes {shapes[0]}, {shapes[1]} and {shapes[2]}.",
            name="batch",
            value=shapes,
        )
    if "mask" in batch:
        is_real = _mask(batch["mask"], segments[:, 0] != 0)[:, None]
        segments, places = np.where(is_real, segments, 0), np.where(is_real, places, 0)
    return tokens, segments, places


def _check_dict(batch: object) -> None:
    if not isinstance(batch, Mapping):
        raise ArgumentTypeError(
            f"A batch must be a dict of tokens and document_starts; got {type(batch).__name__}. "
            "Ask the loader for both by its argument fields.",
            name="batch",
            value=batch,
        )


def _check_fits(name: str, array: npt.NDArray[np.integer[Any]], dtype: type[np.integer]) -> None:
    """Refuses what would be wrapped; looks at the values only where the dtype is a wider one."""
    if np.can_cast(array.dtype, dtype) or not array.size:
        return
    limits, low, high = np.iinfo(dtype), int(array.min()), int(array.max())
    if low < limits.min or high > limits.max:
        raise ArgumentError(
            f"{name} must be in [{limits.min}, {limits.max}], as the trainer reads "
            f"{dtype.__name__}; the largest is {high}, the smallest {low}.",
            name=name,
            value=high if high > limits.max else low,
        )


def _integers(batch: _Batch, name: str) -> npt.NDArray[np.integer[Any]]:
    _check_dict(batch)
    if name not in batch:
        raise ArgumentError(
            "A batch must have tokens and document_starts; this one has "
            f"{', '.join(map(str, batch)) or 'nothing'}. Ask the loader for both by its argument "
            "fields.",
            name="batch",
            value=list(batch),
        )
    array = np.asarray(batch[name])
    if array.ndim != 2 or array.dtype.kind not in "iu":  # noqa: PLR2004
        raise ArgumentError(
            f"{name} must be 2-dimensional and of an integer dtype; got {array.dtype} of shape "
            f"{array.shape}.",
            name=name,
            value=array,
        )
    return array


def _mask(value: object, has_starts: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    mask = np.asarray(value)
    if mask.shape != has_starts.shape or mask.dtype != np.bool_:
        raise ArgumentError(
            f"mask must be one bool for each of {len(has_starts)} rows; got {mask.dtype} of shape "
            f"{mask.shape}.",
            name="mask",
            value=mask,
        )
    if (mask & ~has_starts).any():
        row = int((mask & ~has_starts).argmax())
        raise ArgumentError(
            f"A row without document starts is fill, and its mask must be False; row {row} has "
            "True.",
            name="mask",
            value=mask,
        )
    return mask
