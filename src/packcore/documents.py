"""Document starts -> segment ids, positions, loss masks and cumulative lengths.

Reading the starts is for `packcore.dataset`; the words of each trainer are for
`packcore.trainers`. Nothing here looks at a token's value.

The starts of a batch have two shapes, and every function takes either:

- ragged: `starts`, `(num_documents,)`, int32, ascending within each row, and `offsets`,
  `(num_rows + 1,)`, int64: row r has `starts[offsets[r]:offsets[r + 1]]`;
- padded: `starts`, `(num_rows, max_documents)`, int32, each row filled up with block_size, so
  that differences are lengths and the padding has length 0; `offsets` is None.

A row with tokens starts at 0, also where a document goes on from the row before: it restarts as
document 1. A row without any start is fill: it has no tokens, only room.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from packcore.checks import check_int
from packcore.errors import ArgumentError

__all__ = ["cu_seqlens", "loss_mask", "pad_starts", "positions", "segment_ids", "unpad_starts"]

_INT32_MAX = 2**31 - 1
_SHOWN = 8  # starts of a wrong row that a message lists


class _Documents(NamedTuple):
    """The checked starts of a batch, with what they imply."""

    starts: npt.NDArray[np.int32]
    """`(num_documents,)`, in tokens from each row's start."""
    offsets: npt.NDArray[np.int64]
    """`(num_rows + 1,)`, where each row's starts begin."""
    counts: npt.NDArray[np.int64]
    """`(num_rows,)`, documents in each row, 0 for fill."""
    lengths: npt.NDArray[np.int64]
    """`(num_documents,)`, in tokens; those of a row add up to block_size."""
    block_size: int
    """Tokens in a row."""

    def in_batch(self) -> npt.NDArray[np.int64]:
        """Returns `(num_documents,)`, where each document starts in the flattened batch."""
        rows = np.arange(self.counts.size, dtype=np.int64) * self.block_size
        return rows.repeat(self.counts) + self.starts


def pad_starts(
    starts: npt.NDArray[np.integer[Any]],
    offsets: npt.NDArray[np.integer[Any]],
    block_size: int,
    *,
    max_documents: int | None = None,
) -> npt.NDArray[np.int32]:
    """Returns ragged document starts as one padded array.

    Args:
        starts: `(num_documents,)`, in tokens.
        offsets: `(num_rows + 1,)`, where each row's starts begin.
        block_size: tokens in a row.
        max_documents: the width, for trainers that compile for one shape; by default that of the
            row with most documents, at least 1.

    Returns:
        `(num_rows, max_documents)`, int32, padded with block_size.

    Raises:
        ArgumentError: the starts break a rule, or a row has more than max_documents.

    Examples:
        >>> pad_starts(np.array([0, 0, 2, 5], np.int32), np.array([0, 1, 4, 4]), 6)
        array([[0, 6, 6],
               [0, 2, 5],
               [6, 6, 6]], dtype=int32)
    """
    documents = _check(starts, offsets, block_size)
    most = max(1, int(documents.counts.max(initial=0)))
    width = most
    if max_documents is not None:
        width = check_int("max_documents", max_documents, low=1)
        if width < most:
            raise ArgumentError(
                f"max_documents must be at least that of the fullest row, {most}; got {width}.",
                name="max_documents",
                value=width,
            )
    padded = np.full((documents.counts.size, width), documents.block_size, np.int32)
    padded[np.arange(width) < documents.counts[:, None]] = documents.starts
    return padded


def unpad_starts(
    document_starts: npt.NDArray[np.integer[Any]], block_size: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Returns padded document starts in the ragged shape.

    Args:
        document_starts: `(num_rows, max_documents)`, in tokens, padded with block_size.
        block_size: tokens in a row.

    Returns:
        starts, `(num_documents,)`, int32, and offsets, `(num_rows + 1,)`, int64.

    Raises:
        ArgumentError: the starts break a rule.

    Examples:
        >>> unpad_starts(np.array([[0, 6, 6], [0, 2, 5], [6, 6, 6]], np.int32), 6)
        (array([0, 0, 2, 5], dtype=int32), array([0, 1, 4, 4]))
    """
    documents = _check(document_starts, None, block_size)
    return documents.starts, documents.offsets


def segment_ids(
    starts: npt.NDArray[np.integer[Any]],
    offsets: npt.NDArray[np.integer[Any]] | None,
    block_size: int,
) -> npt.NDArray[np.int32]:
    """Returns the number of each token's document within its row.

    Args:
        starts: `(num_documents,)` ragged, or `(num_rows, max_documents)` padded, in tokens.
        offsets: `(num_rows + 1,)` for ragged starts, None for padded ones.
        block_size: tokens in a row.

    Returns:
        `(num_rows, block_size)`, int32, from 1 upwards; 0 in rows of fill.

    Raises:
        ArgumentError: the starts break a rule.

    Examples:
        >>> segment_ids(np.array([[0, 6, 6], [0, 2, 5], [6, 6, 6]]), None, 6)
        array([[1, 1, 1, 1, 1, 1],
               [1, 1, 2, 2, 2, 3],
               [0, 0, 0, 0, 0, 0]], dtype=int32)
    """
    documents = _check(starts, offsets, block_size)
    ids = np.arange(1, documents.starts.size + 1, dtype=np.int32)
    ids -= documents.offsets[:-1].repeat(documents.counts)
    return _by_row(ids.repeat(documents.lengths), documents)


def positions(
    starts: npt.NDArray[np.integer[Any]],
    offsets: npt.NDArray[np.integer[Any]] | None,
    block_size: int,
) -> npt.NDArray[np.int32]:
    """Returns each token's place in its document, as far as the row shows it.

    Args:
        starts: `(num_documents,)` ragged, or `(num_rows, max_documents)` padded, in tokens.
        offsets: `(num_rows + 1,)` for ragged starts, None for padded ones.
        block_size: tokens in a row.

    Returns:
        `(num_rows, block_size)`, int32, from 0 at each start; 0 in rows of fill.

    Raises:
        ArgumentError: the starts break a rule.

    Examples:
        >>> positions(np.array([0, 0, 2, 5]), np.array([0, 1, 4, 4]), 6)
        array([[0, 1, 2, 3, 4, 5],
               [0, 1, 0, 1, 2, 0],
               [0, 0, 0, 0, 0, 0]], dtype=int32)
    """
    documents = _check(starts, offsets, block_size)
    rows = documents.starts.repeat(documents.lengths).reshape(-1, documents.block_size)
    np.subtract(np.arange(documents.block_size, dtype=np.int32), rows, out=rows)
    return _by_row(rows, documents)


def loss_mask(
    starts: npt.NDArray[np.integer[Any]],
    offsets: npt.NDArray[np.integer[Any]] | None,
    block_size: int,
    *,
    cross_documents: bool = False,
) -> npt.NDArray[np.bool_]:
    """Returns which tokens may be a target, that is, be predicted from the token before them.

    The mask stands on the token that is predicted and is cut as the tokens are: blocks of L + 1
    tokens give `inputs = tokens[:, :-1]`, `targets = tokens[:, 1:]` and
    `weights = loss_mask[:, 1:]`. A model that shifts inside takes
    `labels = np.where(loss_mask, tokens, -100)`. The sum is the number of targets.

    Args:
        starts: `(num_documents,)` ragged, or `(num_rows, max_documents)` padded, in tokens.
        offsets: `(num_rows + 1,)` for ragged starts, None for padded ones.
        block_size: tokens in a row.
        cross_documents: whether a document's first token is a target of the last token of the
            document before it in the row.

    Returns:
        `(num_rows, block_size)`, bool. False in the first column, which nothing stands before,
        and in rows of fill.

    Raises:
        ArgumentError: the starts break a rule.

    Examples:
        >>> starts = np.array([[0, 6, 6], [0, 2, 5], [6, 6, 6]])
        >>> loss_mask(starts, None, 6).astype(int)
        array([[0, 1, 1, 1, 1, 1],
               [0, 1, 0, 1, 1, 0],
               [0, 0, 0, 0, 0, 0]])
        >>> loss_mask(starts, None, 6, cross_documents=True).astype(int)[1]
        array([0, 1, 1, 1, 1, 1])
    """
    documents = _check(starts, offsets, block_size)
    mask = np.ones((documents.counts.size, documents.block_size), np.bool_)
    mask[:, 0] = False
    mask[documents.counts == 0] = False
    if not cross_documents:
        mask.reshape(-1)[documents.in_batch()] = False
    return mask


def cu_seqlens(
    starts: npt.NDArray[np.integer[Any]],
    offsets: npt.NDArray[np.integer[Any]] | None,
    block_size: int,
) -> tuple[npt.NDArray[np.int32], int]:
    """Returns cumulative document lengths over the flattened batch, and the longest length.

    This is what variable-length attention reads, as `cu_seqlens_q`, `cu_seqlens_k`,
    `max_seqlen_q` and `max_seqlen_k` of `flash_attn_varlen_func` (flash-attention,
    `flash_attn/flash_attn_interface.py`) and `cu_seq_q`, `cu_seq_k`, `max_q` and `max_k` of
    `torch.nn.attention.varlen.varlen_attn`. A document never spans two rows.

    A row of fill is one document of block_size tokens. Left out, its tokens would be in no
    document, and a kernel may leave their output unset.

    For the inputs of blocks of L + 1 tokens, `tokens[:, :-1]`, give padded starts as
    `np.minimum(document_starts, L)` and block_size as L.

    Args:
        starts: `(num_documents,)` ragged, or `(num_rows, max_documents)` padded, in tokens.
        offsets: `(num_rows + 1,)` for ragged starts, None for padded ones.
        block_size: tokens in a row.

    Returns:
        `(num_documents + num_fill_rows + 1,)`, int32, from 0 to num_rows * block_size, and the
        longest length in tokens, 0 for no rows.

    Raises:
        ArgumentError: the starts break a rule, or the batch has more tokens than int32 counts.

    Examples:
        >>> cu_seqlens(np.array([[0, 6, 6], [0, 2, 5], [6, 6, 6]]), None, 6)
        (array([ 0,  6,  8, 11, 12, 18], dtype=int32), 6)
    """
    documents = _check(starts, offsets, block_size)
    block_size = documents.block_size
    num_tokens = documents.counts.size * block_size
    if num_tokens > _INT32_MAX:
        raise ArgumentError(
            f"cu_seqlens counts in int32, so a batch must have at most {_INT32_MAX} tokens; got "
            f"{documents.counts.size} rows of {block_size}. Use fewer rows.",
            name="starts",
            value=num_tokens,
        )
    fill = np.flatnonzero(documents.counts == 0) * block_size
    cumulative = np.concatenate([documents.in_batch(), fill, [num_tokens]], dtype=np.int32)
    cumulative.sort()
    longest = max(int(documents.lengths.max(initial=0)), block_size if fill.size else 0)
    return cumulative, longest


def _by_row(tokens: npt.NDArray[np.int32], documents: _Documents) -> npt.NDArray[np.int32]:
    """Returns `tokens`, those of rows with documents, as rows; rows of 0 where there is fill."""
    rows = tokens.reshape(-1, documents.block_size)
    if len(rows) == documents.counts.size:
        return rows
    whole = np.zeros((documents.counts.size, documents.block_size), np.int32)
    whole[documents.counts > 0] = rows
    return whole


def _check(
    starts: npt.NDArray[np.integer[Any]],
    offsets: npt.NDArray[np.integer[Any]] | None,
    block_size: int,
) -> _Documents:
    """Checks starts of either shape; a few calls on small arrays, none on block_size tokens."""
    if type(block_size) is not int or not 1 <= block_size <= _INT32_MAX:
        block_size = check_int("block_size", block_size, low=1, high=_INT32_MAX, unit="tokens")
    if offsets is None:
        starts, bounds = _unpad(_integers("document_starts", starts, ndim=2), block_size)
    else:
        starts = _integers("starts", starts, ndim=1)
        bounds = _integers("offsets", offsets, ndim=1).astype(np.int64, copy=False)
    if not bounds.size or bounds[0] != 0 or bounds[-1] != starts.size:
        _refuse_offsets(starts, bounds)
    counts = bounds[1:] - bounds[:-1]
    first, last = bounds[:-1], bounds[1:] - 1
    # On arrays this small, count_nonzero takes a third of the time of min() or any().
    if np.count_nonzero(counts < 1):
        if counts.min() < 0:
            _refuse_offsets(starts, bounds)
        first, last = first[counts > 0], last[counts > 0]
    wide = starts.astype(np.int64)
    lengths = np.empty(starts.size, np.int64)
    lengths[:-1] = wide[1:]
    lengths[last] = block_size
    lengths -= wide
    # From 0 on, each below the next and the last below block_size: all are in range.
    if np.count_nonzero(lengths < 1) or np.count_nonzero(wide[first]):
        _refuse_starts(starts, bounds, block_size)
    return _Documents(starts.astype(np.int32, copy=False), bounds, counts, lengths, block_size)


def _unpad(
    padded: npt.NDArray[np.integer[Any]], block_size: int
) -> tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.int64]]:
    """Takes the padding away; what stood before it is checked in the ragged shape."""
    is_start = padded < block_size
    wrong = (~is_start & (padded != block_size)).any(axis=1)
    wrong |= (is_start[:, 1:] > is_start[:, :-1]).any(axis=1)
    if wrong.any():
        row = int(wrong.argmax())
        raise ArgumentError(
            f"document_starts must be padded at each row's end, with block_size; row {row} has "
            f"{_shown(padded[row].tolist())} with block_size {block_size} (tokens).",
            name="document_starts",
            value=padded[row],
        )
    offsets = np.zeros(len(padded) + 1, np.int64)
    np.cumsum(is_start.sum(axis=1), out=offsets[1:])
    return padded[is_start], offsets


def _integers(name: str, value: object, *, ndim: int) -> npt.NDArray[np.integer[Any]]:
    array = np.asarray(value)
    if array.ndim != ndim or array.dtype.kind not in "iu":
        raise ArgumentError(
            f"{name} must be {ndim}-dimensional and of an integer dtype; got {array.dtype} of "
            f"shape {array.shape}.",
            name=name,
            value=value,
        )
    return array


def _refuse_offsets(
    starts: npt.NDArray[np.integer[Any]], offsets: npt.NDArray[np.integer[Any]]
) -> NoReturn:
    raise ArgumentError(
        f"offsets must not descend and go from 0 to the number of starts, {starts.size}; got "
        f"{_shown(offsets.tolist())}.",
        name="offsets",
        value=offsets,
    )


def _refuse_starts(
    starts: npt.NDArray[np.integer[Any]], offsets: npt.NDArray[np.integer[Any]], block_size: int
) -> NoReturn:
    rows = [starts[start:stop].tolist() for start, stop in pairwise(offsets.tolist())]
    row = next(
        index
        for index, found in enumerate(rows)
        if found and (found[0] != 0 or found[-1] >= block_size or sorted(set(found)) != found)
    )
    raise ArgumentError(
        "The document starts of a row must begin with 0, ascend without repeats and be below "
        f"block_size; row {row} has {_shown(rows[row])} with block_size {block_size} (tokens). "
        "Leave out empty documents.",
        name="starts",
        value=rows[row],
    )


def _shown(numbers: list[int]) -> str:
    more = ", ..." if len(numbers) > _SHOWN else ""
    return f"[{', '.join(map(str, numbers[:_SHOWN]))}{more}]"
