"""States of Grain pipelines: where a run stands, whatever number of workers saved it.

A `LoaderIterator` makes the state of one worker; Grain's transformations nest it in theirs. Here
the nesting is taken apart again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from packcore import Loader
from packcore.errors import ArgumentTypeError, NoDataError, StateError
from packcore.state import check_position

__all__ = ["WHOLE", "Next", "find_next", "read_state", "resume", "share_of"]

WHOLE = [0, 1]
"""The share of a state that belongs to no worker: all batches, from the first on."""

_STATES, _WORKERS = "iterators_in_use_states", "iterators_in_use_indices"
"""Where Grain's prefetching transformations keep the states of the workers, and which they are.
Source: google/grain, `grain/_src/python/dataset/transformations/interleave.py`, `get_state`."""


def resume(loader: Loader, state: Mapping[str, Any]) -> None:
    """Moves a loader to where a pipeline was, at any number of processes and workers.

    An iterator's own `set_state` asks for as many workers as saved the state. This does not: make
    the pipeline after it, as you like.

        packcore_grain.resume(loader, state)
        batches = packcore_grain.LoaderDataset(loader).mp_prefetch(options)

    Args:
        loader: of any rank, made as the saved one was.
        state: of an iterator of a pipeline in which a `LoaderDataset` stands alone, under map,
            filter and prefetching; from any process.

    Raises:
        StateError: the state is of other data, another seed, order or version (`field` names it),
            or of a pipeline with other transformations.
        ArgumentTypeError: the state is not a dict.
    """
    found = find_next(state)
    loader.load_state_dict(found.state)
    loader.seek(loader.num_served + found.num_ahead)


class Next(NamedTuple):
    """The batch that a pipeline yields next."""

    state: Mapping[str, Any]
    """The state of a `LoaderIterator`, of the worker that yields it."""
    num_ahead: int
    """How many batches after that state's."""

    @property
    def served(self) -> int:
        """The batch, counted over the whole run."""
        rule = "an integer of at least 0"
        return int(check_position(self.state, "served", _is_count, rule)) + self.num_ahead


def find_next(state: object) -> Next:
    """Finds the batch that a pipeline yields next.

    Args:
        state: of a pipeline with one `LoaderDataset` in it.

    Raises:
        StateError: the state depends on the number of workers: a transformation has a state of
            its own, or workers do not yield a batch for each one that they read; or it is damaged.
        ArgumentTypeError: the state is not a dict.
    """
    if not isinstance(state, Mapping):
        message = f"A state must be a dict, as get_state() returns it; got {type(state).__name__}."
        raise ArgumentTypeError(message, name="state", value=state)
    if "position" in state:
        return Next(state, 0)
    if not state.get(_STATES):
        raise StateError(
            f"The state is not of a LoaderDataset under map, filter or prefetching alone: it has "
            f"{', '.join(map(repr, state)) or 'nothing'}. Restore it with set_state in the same "
            "pipeline.",
            field="position",
        )
    parts = check_position(state, _STATES, _are_dicts, "a list of dicts")
    count = len(parts)
    rule = f"a list of {count} integers of at least 0"
    workers = check_position(state, _WORKERS, lambda value: _are_counts(value, count), rule)
    found = [
        _ahead(find_next(part), worker if count > 1 else 0)
        for worker, part in zip(workers, parts, strict=True)
    ]
    found.sort(key=lambda each: each.served)
    served = [each.served for each in found]
    if served != list(range(served[0], served[0] + len(served))):
        raise StateError(
            f"The workers are out of step: their next batches are {served}. A filter or batch "
            "runs inside of mp_prefetch; put it after, or restore with set_state in the same "
            "pipeline.",
            field="served",
            got=served,
        )
    return found[0]


def _ahead(found: Next, worker: int) -> Next:
    """Returns what `worker` yields next: a state of the whole run is that of the first worker."""
    whole = share_of(found.state) == WHOLE
    return Next(found.state, found.num_ahead + worker) if whole else found


def share_of(state: Mapping[str, Any]) -> list[int]:
    """Returns the share of the worker that a state is of: [start, every], counted in batches.

    Raises:
        StateError: the share is damaged.
    """
    if "slice" not in state:  # of a packcore.Loader
        return WHOLE
    rule = "[start, every], two integers"
    return list(check_position(state, "slice", lambda value: _are_counts(value, 2), rule))


def _are_dicts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(part, Mapping) for part in value)


def _are_counts(value: object, length: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == length and all(map(_is_count, value))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_state(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the state that `grain.checkpoint` has saved, at any number of processes.

    Grain writes a file per process, and refuses to restore at another number of them. With
    packcore every process has the same state, so each file is as good as the others.

    Args:
        directory: the item's folder, such as `checkpoints/100/data`.

    Raises:
        NoDataError: there is no such file.
        StateError: a file is damaged, or the files differ: the processes had not served the same
            number of steps.
    """
    folder = epath.Path(directory)
    files = sorted(folder.glob("process_*-of-*.json")) if folder.exists() else []
    if not files:
        raise NoDataError(
            f"{folder} has no process_*-of-*.json. Name the folder that grain.checkpoint wrote, "
            "as in checkpoints/100/data.",
            path=os.fspath(folder),
        )
    first = _read_file(files[0])
    for file in files[1:]:
        if _read_file(file) != first:
            raise StateError(
                f"{files[0]} and {file} differ: the processes had not served the same number of "
                "steps when they were saved. Use another checkpoint.",
                field="position",
            )
    return first


def _read_file(file: epath.Path) -> dict[str, Any]:
    try:
        state = json.loads(file.read_bytes())
    except ValueError:  # no UTF-8 or no JSON
        state = None
    if not isinstance(state, dict):
        raise StateError(
            f"{file} is damaged: it is not a dict in JSON. Use another checkpoint.",
            field="position",
        )
    return state
