"""The checker that stops and restores an iterator or loader at every step.

It knows nothing of packcore: whatever has `state_dict` and `load_state_dict` can be checked.
What a state holds is for the module that makes it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ResumeReport", "check_resume"]


@dataclass(frozen=True, slots=True)
class ResumeReport:
    """What `check_resume` went through; all of it held."""

    num_steps: int
    """Items of the uninterrupted run."""
    num_resumes: int
    """How often a state was loaded."""
    state_bytes: int
    """The largest state, as JSON; 0 if states were not sent through JSON."""
    ended: bool
    """Whether the run came to its end, so that the end and what is after it was checked."""


def check_resume(
    make: Callable[[], Any],
    *,
    max_steps: int = 100,
    num_chained: int = 3,
    max_state_bytes: int = 16_384,
    json_state: bool = True,
    restarts: bool = False,
) -> ResumeReport:
    """Checks that a run can be stopped and restored after every step, the last one included.

    - One run goes through without a state being taken. A second one takes a state before the
      first step, after every step and after the end, and must give the same items.
    - Each state is loaded into something fresh; the whole rest must be that of the first run.
    - Each state starts a chain of resumes: load, save at once, load, take a step, save, load, and
      so on; the rest must be that of the first run.
    - The states are loaded, last to first, into one that has been used.
    - An exhausted iterator stays exhausted; a state does not change after it was taken, nor an
      item after it was given.

    Args:
        make: called without arguments, returns something fresh each time: an iterator with
            `state_dict` and `load_state_dict`; a loader that has these itself, loads before it is
            iterated and saves for its last iterator; or an iterable whose iterator has them.
            What has a `close` is closed after use.
        max_steps: where to stop an endless run, in steps.
        num_chained: resumes in a row, at least 1.
        max_state_bytes: the largest state that passes, in bytes of JSON.
        json_state: send every state through JSON, as a checkpoint may; else through a deep copy.
        restarts: what a state from after the end means. False: the restored run is at its end
            too. True: it begins anew, as torchdata's StatefulDataLoader does; what comes then is
            not compared.

    Returns:
        What was checked.

    Raises:
        AssertionError: something did not hold; the message says at which step.

    Examples:
        >>> class Squares:
        ...     def __init__(self): self.index = 0
        ...     def __iter__(self): return self
        ...     def __next__(self):
        ...         if self.index == 4: raise StopIteration
        ...         self.index += 1
        ...         return self.index**2
        ...     def state_dict(self): return {"index": self.index}
        ...     def load_state_dict(self, state): self.index = state["index"]
        >>> check_resume(Squares)
        ResumeReport(num_steps=4, num_resumes=30, state_bytes=12, ended=True)
    """
    checker = _Checker(
        make,
        max_steps=max_steps,
        num_chained=num_chained,
        max_state_bytes=max_state_bytes,
        json_state=json_state,
        restarts=restarts,
    )
    checker.run_through()
    checker.run_with_states()
    checker.resume_once()
    checker.resume_in_a_row()
    checker.resume_the_used()
    return ResumeReport(
        len(checker.expected), checker.num_resumes, checker.state_bytes, checker.ended
    )


class _Run:
    """Something from `make`, and its iterator."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self.items: Any = None

    def start(self, state: Any = None) -> None:
        """Iterates from the beginning or from `state`: a loader loads before, the rest after."""
        loads_itself = hasattr(self.made, "load_state_dict")
        if loads_itself and state is not None:
            self.made.load_state_dict(state)
        self.items = iter(self.made)
        if not loads_itself and state is not None:
            self.items.load_state_dict(state)

    def state_dict(self) -> Any:
        """The state of the loader, or of the iterator if the loader has none."""
        return (self.made if hasattr(self.made, "state_dict") else self.items).state_dict()

    def close(self) -> None:
        """Closes what can be closed."""
        if hasattr(self.made, "close"):
            self.made.close()


_END = object()


class _Checker:
    def __init__(
        self,
        make: Callable[[], Any],
        *,
        max_steps: int,
        num_chained: int,
        max_state_bytes: int,
        json_state: bool,
        restarts: bool,
    ) -> None:
        self.make = make
        self.max_steps = max_steps
        self.num_chained = num_chained
        self.max_state_bytes = max_state_bytes
        self.json_state = json_state
        self.restarts = restarts
        self.expected: list[Any] = []
        self.states: list[Any] = []
        self.ended = False
        self.num_resumes = 0
        self.state_bytes = 0

    def fresh(self, state: Any = None) -> closing[_Run]:
        run = _Run(self.make())
        self.start(run, state)
        return closing(run)

    def start(self, run: _Run, state: Any) -> None:
        self.num_resumes += state is not None
        # A copy: what is loaded must not be tied to what is loaded again later.
        run.start(copy.deepcopy(state))

    def run_through(self) -> None:
        given: list[Any] = []
        with self.fresh() as run:
            while len(given) < self.max_steps and (item := next(run.items, _END)) is not _END:
                given.append(item)
                self.expected.append(copy.deepcopy(item))
        self.ended = len(given) < self.max_steps
        for step, (copied, item) in enumerate(zip(self.expected, given, strict=True)):
            _compare(f"Item {step} changed after it was given: it", copied, item)

    def run_with_states(self) -> None:
        with self.fresh() as run:
            states = [run.state_dict()]
            self.states = [self.sent(states[0], "before the first step")]
            for step in range(len(self.expected)):
                self.take(run, step, "With states taken")
                states.append(run.state_dict())
                self.states.append(self.sent(states[-1], f"after step {step}"))
            if self.ended:
                self.expect_end(run, "With states taken")
                states.append(run.state_dict())
                self.states.append(self.sent(states[-1], "after the end"))
        for step, (state, sent) in enumerate(zip(states, self.states, strict=True)):
            if self.sent(state, "at last") != sent:
                raise AssertionError(
                    f"State {step} changed after it was taken. state_dict() must return a copy."
                )
        if self.ended and self.restarts:
            self.states.pop()

    def resume_once(self) -> None:
        for step, state in enumerate(self.states):
            with self.fresh(state) as run:
                self.finish(run, step, f"Resumed from state {step}")

    def resume_in_a_row(self) -> None:
        for step, state in enumerate(self.states):
            self.resume_chain(step, state)

    def resume_chain(self, step: int, state: Any) -> None:
        what = f"Resumed {self.num_chained} times in a row from state {step}"
        for link in range(self.num_chained - 1):
            with self.fresh(state) as run:
                # The first save comes at once, before a step.
                if link and step < len(self.expected):
                    self.take(run, step, what)
                    step += 1
                state = self.sent(run.state_dict(), f"at step {step} of a resumed run")
        with self.fresh(state) as run:
            self.finish(run, step, what)

    def resume_the_used(self) -> None:
        with self.fresh() as run:
            for step, state in reversed(list(enumerate(self.states))):
                self.start(run, state)
                if step < len(self.expected):
                    self.take(run, step, f"Loaded into a used one, state {step}")

    def finish(self, run: _Run, step: int, what: str) -> None:
        for index in range(step, len(self.expected)):
            self.take(run, index, what)
        if self.ended:
            self.expect_end(run, what)

    def take(self, run: _Run, step: int, what: str) -> None:
        item = next(run.items, _END)
        if item is _END:
            raise AssertionError(
                f"{what}: the run ended before item {step}, the first run did not."
            )
        _compare(f"{what}: item {step}", self.expected[step], item)

    def expect_end(self, run: _Run, what: str) -> None:
        for _ in range(2):
            if next(run.items, _END) is not _END:
                raise AssertionError(f"{what}: an item came after the end of the first run.")

    def sent(self, state: Any, when: str) -> Any:
        """What arrives when a checkpoint holds `state`."""
        if not self.json_state:
            return copy.deepcopy(state)
        try:
            text = json.dumps(state, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"The state {when} is not JSON: {error}.") from error
        if len(text) > self.max_state_bytes:
            raise AssertionError(
                f"The state {when} has {len(text)} bytes as JSON; max_state_bytes is "
                f"{self.max_state_bytes}."
            )
        self.state_bytes = max(self.state_bytes, len(text))
        return json.loads(text)


def _compare(what: str, expected: Any, got: Any) -> None:
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping) or list(expected) != list(got):
            raise AssertionError(f"{what} differs: expected a dict {expected}, got {got}.")
        for key in expected:
            _compare(f"{what}, key {key!r}", expected[key], got[key])
    elif isinstance(expected, list | tuple):
        if type(expected) is not type(got) or len(expected) != len(got):
            raise AssertionError(f"{what} differs: expected {expected}, got {got}.")
        for index, (left, right) in enumerate(zip(expected, got, strict=True)):
            _compare(f"{what}, part {index}", left, right)
    else:
        _compare_arrays(what, np.asarray(expected), np.asarray(got))


def _compare_arrays(what: str, expected: npt.NDArray[Any], got: npt.NDArray[Any]) -> None:
    if (expected.shape, expected.dtype) != (got.shape, got.dtype):
        raise AssertionError(
            f"{what} differs: expected shape {expected.shape} of {expected.dtype}, "
            f"got {got.shape} of {got.dtype}."
        )
    # In floating point, nan equals nan here.
    if not np.array_equal(expected, got, equal_nan=expected.dtype.kind in "fc"):
        raise AssertionError(f"{what} differs: expected {expected}, got {got}.")
