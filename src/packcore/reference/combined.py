"""CombinedDataset and its iterator: a weighted random mix, in lit-gpt's order.

What is mixed may be anything that can be iterated; the native mix is `packcore.mixture`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Generic, TypeVar

from packcore.checks import check_int
from packcore.errors import ArgumentError, ArgumentTypeError, StateError
from packcore.state import check_identity, check_position, pack_random, unpack_random

__all__ = ["CombinedDataset", "CombinedDatasetIterator"]

_Item = TypeVar("_Item")

_STATE_VERSION = 1
_MAX_SEED = 2**128 - 1


class CombinedDataset(Generic[_Item]):
    """A random mix of datasets, in the order of lit-gpt's CombinedDataset.

    Each step draws one of the datasets by weight, with `random.Random(seed).choices`, and serves
    its next item. The mix ends when the dataset that is drawn has ended, whatever is left of the
    others. Every `iter()` starts anew.

    Args:
        datasets: what is mixed; each can be iterated.
        seed: of the draws; None takes another one every time.
        weights: one for each dataset, at least 0; only their ratios count. None: all equal.

    Raises:
        ArgumentError: there is no dataset; the weights are not as many as the datasets, or one
            is negative or not finite, or all are 0.
        ArgumentTypeError: `datasets` is no list of what can be iterated, a weight is no number,
            or the seed is no integer.

    Examples:
        >>> mix = CombinedDataset(["abcdefgh", "ABCDEFGH"], seed=3, weights=[3, 1])
        >>> "".join(mix), mix.weights
        ('abcdefgAh', (0.75, 0.25))
    """

    def __init__(
        self,
        datasets: Collection[Iterable[_Item]],
        seed: int | None,
        weights: Iterable[float] | None = None,
    ) -> None:
        self._datasets = _check_datasets(datasets)
        self._seed = _check_seed(seed)
        self._weights = _check_weights(weights, len(self._datasets))
        if weights is not None:
            # Not sum(), which rounds in another way from Python 3.12 on.
            *_, total = accumulate(self._weights)
            self._weights = tuple(weight / total for weight in self._weights)

    @property
    def weights(self) -> tuple[float, ...]:
        """The share of each dataset; together 1, but for rounding."""
        return self._weights

    def __iter__(self) -> CombinedDatasetIterator[_Item]:
        return CombinedDatasetIterator(self._datasets, self._seed, self._weights)


class CombinedDatasetIterator(Iterator[_Item]):
    """The items of a random mix. It has a state if the iterators of all datasets have one.

    Args:
        datasets: what is mixed; each is iterated once, from its beginning.
        seed: of the draws.
        weights: one for each dataset. None: all equal.

    Raises:
        PackcoreError: as for `CombinedDataset`.
    """

    def __init__(
        self,
        datasets: Collection[Iterable[_Item]],
        seed: int | None,
        weights: Iterable[float] | None,
    ) -> None:
        self._iterators = [iter(dataset) for dataset in _check_datasets(datasets)]
        self._seed = _check_seed(seed)
        self._weights = _check_weights(weights, len(self._iterators))
        self._cumulative = tuple(accumulate(self._weights))
        self._indices = range(len(self._iterators))
        self._generator = random.Random(self._seed)  # noqa: S311  # the reference's generator
        self._drawn: int | None = None
        self._ended = False

    def __next__(self) -> _Item:
        if self._ended:
            raise StopIteration
        if self._drawn is None:
            (self._drawn,) = self._generator.choices(
                self._indices, cum_weights=self._cumulative, k=1
            )
        try:
            item = next(self._iterators[self._drawn])
        except StopIteration:
            self._ended = True
            raise
        # Not before: if the read fails, the next call asks the same dataset again.
        self._drawn = None
        return item

    def state_dict(self) -> dict[str, Any]:
        """Returns where the mix is: a dict that JSON can hold.

        It has the generator of the draws, some 5 kB of text, and the state of each dataset. Its
        size does not grow.

        Raises:
            StateError: the iterator of a dataset has no `state_dict`.
        """
        return self._identity() | {
            "drawn": self._drawn,
            "ended": self._ended,
            "generator": pack_random(self._generator),
            "datasets": [iterator.state_dict() for iterator in self._stateful()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to where a mix was when it returned `state`.

        Raises:
            ArgumentTypeError: the state is not a dict.
            StateError: the state belongs to other datasets or arguments, or is damaged; `field`
                says which part. The mix stays where it is.
        """
        check_identity(state, self._identity())
        drawn = check_position(
            state,
            "drawn",
            lambda index: index is None or (type(index) is int and index in self._indices),
            f"null or in [0, {len(self._iterators) - 1}]",
        )
        ended = check_position(
            state, "ended", lambda ended: isinstance(ended, bool), "true or false"
        )
        states = check_position(
            state,
            "datasets",
            lambda states: isinstance(states, list) and len(states) == len(self._iterators),
            f"a list of {len(self._iterators)} states",
        )
        generator = unpack_random(state, "generator")
        self._load_datasets(states)
        self._generator, self._drawn, self._ended = generator, drawn, ended

    def _identity(self) -> dict[str, Any]:
        return {
            "version": _STATE_VERSION,
            "num_datasets": len(self._iterators),
            "seed": self._seed,
            "weights": list(self._weights),
        }

    def _stateful(self) -> list[Any]:
        for index, iterator in enumerate(self._iterators):
            if not hasattr(iterator, "state_dict"):
                raise StateError(
                    "A mix has a state only if the iterators of all its datasets have state_dict; "
                    f"that of datasets[{index}] is a {type(iterator).__name__}.",
                    field=f"datasets[{index}]",
                )
        return self._iterators

    def _load_datasets(self, states: list[Any]) -> None:
        """Loads all of them or none."""
        iterators = self._stateful()
        before = [iterator.state_dict() for iterator in iterators]
        index = 0
        try:
            for index, iterator in enumerate(iterators):
                iterator.load_state_dict(states[index])
        except Exception as error:
            for iterator, state in zip(iterators, before, strict=True):
                iterator.load_state_dict(state)
            if not isinstance(error, StateError):
                raise
            raise StateError(
                f"datasets[{index}]: {error}",
                field=f"datasets[{index}].{error.field}",
                expected=error.expected,
                got=error.got,
            ) from error


def _check_datasets(datasets: Collection[Iterable[_Item]]) -> list[Iterable[_Item]]:
    # A dataset by itself can be iterated too, but has no length.
    if not isinstance(datasets, Collection):
        raise ArgumentTypeError(
            f"datasets must be a list of datasets; got a {type(datasets).__name__}.",
            name="datasets",
            value=datasets,
        )
    for index, dataset in enumerate(datasets):
        if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
            raise ArgumentTypeError(
                "datasets must be a list of what can be iterated; got a "
                f"{type(dataset).__name__} at index {index}.",
                name="datasets",
                value=dataset,
            )
    if not datasets:
        raise ArgumentError(
            "datasets must hold at least one dataset; got none.", name="datasets", value=datasets
        )
    return list(datasets)


def _check_seed(seed: int | None) -> int | None:
    return None if seed is None else check_int("seed", seed, low=-_MAX_SEED, high=_MAX_SEED)


def _check_weights(weights: Iterable[float] | None, num_datasets: int) -> tuple[float, ...]:
    if weights is None:
        return (1 / num_datasets,) * num_datasets
    try:
        listed = tuple(map(float, weights))
    except (TypeError, ValueError, OverflowError):
        raise ArgumentTypeError(
            f"weights must be numbers, one for each dataset; got {weights!r}.",
            name="weights",
            value=weights,
        ) from None
    if len(listed) != num_datasets:
        rule = f"as many as the datasets, {num_datasets}; got {len(listed)}: {weights!r}"
    elif not all(math.isfinite(weight) and weight >= 0 for weight in listed):
        rule = f"finite and at least 0; got {weights!r}"
    elif not 0 < sum(listed) < math.inf:
        rule = f"above 0 and finite together; got {weights!r}"
    else:
        return listed
    raise ArgumentError(f"weights must be {rule}.", name="weights", value=weights)
