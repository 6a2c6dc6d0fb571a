"""What is in a corpus: totals, the lengths of its documents, where it comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packcore.corpora.manifests import find_manifests
from packcore.dataset import Dataset
from packcore.dataset import open as open_dataset
from packcore.errors import NoDataError
from packcore.manifest import Manifest, read_manifest

__all__ = ["Lengths", "Summary", "summarize"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long documents are, in tokens."""

    shortest: int
    longest: int
    mean: float
    counts: tuple[int, ...]
    """Of empty documents, of those of 1 token, of 2 or 3, of 4 to 7, and so on."""

    def bins(self) -> Iterator[tuple[int, int, int]]:
        """Yields (shortest, longest, number of documents) for each count."""
        for index, count in enumerate(self.counts):
            low = 2 ** (index - 1) if index else 0
            yield low, max(2 * low - 1, low), count


@dataclass(frozen=True, slots=True)
class Summary:
    """What is in a corpus."""

    dataset: Dataset
    """The corpus, open."""
    manifests: tuple[Manifest, ...]
    """Empty where it has none."""
    lengths: Lengths | None
    """None where documents are unknown, or there is none."""


def summarize(
    source: str | os.PathLike[str],
    *,
    sep_token: int | None = None,
    dtype: npt.DTypeLike | None = None,
) -> Summary:
    """Reads a corpus's headers, manifests and document starts, but no tokens.

    Args:
        source: as for `packcore.open`.
        sep_token: the id that ends a document, where they were not recorded; tokens are read then.
        dtype: of the tokens, for files that do not say it.

    Raises:
        NoDataError: nothing is there.
        FormatError: a file is not what it should be.
    """
    dataset = open_dataset(source, sep_token=sep_token, dtype=dtype)
    try:
        manifests = tuple(map(read_manifest, find_manifests(source)))
    except NoDataError:
        manifests = ()
    return Summary(dataset, manifests, _measure(dataset) if dataset.has_documents else None)


def _measure(dataset: Dataset) -> Lengths | None:
    counts = np.zeros(65, np.int64)
    shortest, longest, number, total = 2**63 - 1, 0, 0, 0
    for lengths in _lengths(dataset):
        counts += np.bincount(np.frexp(lengths.astype(np.float64))[1], minlength=65)
        shortest, longest = min(shortest, int(lengths.min())), max(longest, int(lengths.max()))
        number += len(lengths)
        total += int(lengths.sum())
    if not number:
        return None
    used = int(np.flatnonzero(counts)[-1]) + 1
    return Lengths(shortest, longest, total / number, tuple(counts[:used].tolist()))


def _lengths(dataset: Dataset) -> Iterator[npt.NDArray[np.int64]]:
    """Yields `(num_documents,)`, int64: the lengths of documents, a chunk at a time."""
    last: npt.NDArray[np.int64] = np.empty(0, np.int64)  # the start that has no end yet
    for index in range(len(dataset.chunks)):
        starts = dataset.chunk_document_starts(index) + dataset.bounds[index]
        starts = np.concatenate((last, starts))
        if len(starts) > 1:
            yield np.diff(starts)
        last = starts[-1:]
    if len(last):
        yield dataset.num_tokens - last
