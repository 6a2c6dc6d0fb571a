"""States that tell what they belong to, for pipelines whose states are Grain's own.

Grain's datasets save an index and check nothing when it is restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import grain
from grain.experimental import get_element_spec, get_next_index, set_next_index

from packcore.errors import StateError
from packcore.state import check_identity, check_position

__all__ = ["CheckedDataset", "HasIdentity"]


class HasIdentity(Protocol):
    """What a state can belong to: a `BlockSource` or a `StepDataset`."""

    @property
    def identity(self) -> dict[str, Any]:
        """Field -> value, as JSON holds them."""
        ...


class CheckedDataset(grain.IterDataset):  # type: ignore[misc] # Grain has no types
    """A dataset whose iterators refuse a state of other data, by the name of the field.

    It can stand anywhere in a pipeline; the elements are those of `parent`. Seeds of Grain's own
    shuffle are not part of the state: they are not known here.

    Args:
        parent: any `grain.IterDataset`.
        source: the `BlockSource` or `StepDataset` that `parent` reads.
    """

    def __init__(self, parent: grain.IterDataset, source: HasIdentity) -> None:
        super().__init__(parent)
        self._identity = source.identity

    def __iter__(self) -> grain.DatasetIterator:
        return _CheckedIterator(self._parent.__iter__(), self._identity)

    def __str__(self) -> str:
        return "CheckedDataset"

    @property
    def _element_spec(self) -> Any:
        return get_element_spec(self._parent)


class _CheckedIterator(grain.DatasetIterator):  # type: ignore[misc] # Grain has no types
    def __init__(self, parent: grain.DatasetIterator, identity: Mapping[str, Any]) -> None:
        super().__init__(parent)
        self._identity = identity

    def __next__(self) -> Any:
        self._assert_not_closed()
        return next(self._parents[0])

    def __str__(self) -> str:
        return "CheckedIterator"

    def get_state(self) -> dict[str, Any]:
        return {**self._identity, "parent": self._parent.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        checked = check_identity(state, self._identity)
        parent = check_position(checked, "parent", _is_dict, "a dict")
        try:
            self._parent.set_state(parent)
        except (LookupError, TypeError, AttributeError) as error:  # Grain checks nothing
            raise StateError(
                f"The state is damaged, or of another pipeline: parent can not be restored "
                f"({type(error).__name__}: {error}); got {parent!r:.200}. Make the pipeline as the "
                "saved one was made, or use another checkpoint.",
                field="parent",
                got=parent,
            ) from error

    def _get_next_index(self) -> int:
        return int(get_next_index(self._parent))

    def _set_next_index(self, index: int) -> None:
        set_next_index(self._parent, index)


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)
