"""The checker passes what resumes exactly, and finds each way of not doing so."""

import copy

import numpy as np
import pytest

from packcore.testing import ResumeReport, check_resume

NUM_STEPS = 6


class Counting:
    """Arrays [i, i, i] for i in [0, NUM_STEPS). Correct; each fault below overrides a part."""

    def __init__(self):
        self.index = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.index >= NUM_STEPS:
            raise StopIteration
        self.index += 1
        return self.item(self.index - 1)

    def item(self, index):
        return np.full(3, index)

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state):
        self.index = state["index"]


class Loader:
    """A loader: has the state itself, gives dicts and tuples, can be closed."""

    num_open = 0

    def __init__(self):
        self.start = self.index = 0
        Loader.num_open += 1

    def __iter__(self):
        self.index, self.start = self.start, 0
        return self.batches()

    def batches(self):
        while self.index < NUM_STEPS:
            self.index += 1
            batch = {"tokens": np.arange(4) * self.index, "mask": (np.ones(2, bool), "text")}
            yield batch

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state):
        self.start = state["index"]

    def close(self):
        Loader.num_open -= 1


class Dataset:
    """An iterable without a state; its iterator has one."""

    def __iter__(self):
        return Counting()


class Endless(Counting):
    def __next__(self):
        self.index += 1
        return self.item(self.index)


class Restarting(Loader):
    """After the end it begins anew, as torchdata's StatefulDataLoader does."""

    def load_state_dict(self, state):
        self.start = state["index"] % NUM_STEPS if "end" in state else state["index"]

    ended = False

    def batches(self):
        self.ended = False
        yield from super().batches()
        self.ended = True

    def state_dict(self):
        return super().state_dict() | ({"end": True} if self.ended else {})


def test_an_iterator_a_loader_and_a_dataset_pass():
    for make in (Counting, Loader, Dataset):
        report = check_resume(make)
        assert (report.num_steps, report.ended) == (NUM_STEPS, True)


def test_what_was_made_is_closed():
    Loader.num_open = 0
    check_resume(Loader)
    assert Loader.num_open == 0


def test_the_report_counts_resumes_and_bytes():
    # States: before the first step, after each of 6, after the end. Each is resumed once, in a
    # chain of two, and in a used object: 8 x (1 + 2 + 1).
    expected = ResumeReport(
        num_steps=6, num_resumes=32, state_bytes=len('{"index": 6}'), ended=True
    )
    assert check_resume(Counting, num_chained=2) == expected


def test_an_endless_run_is_checked_up_to_max_steps():
    report = check_resume(Endless, max_steps=5)
    assert (report.num_steps, report.ended) == (5, False)


def test_an_empty_run_is_checked_too():
    class Empty(Counting):
        def __init__(self):
            self.index = NUM_STEPS

    report = check_resume(Empty)
    assert (report.num_steps, report.ended) == (0, True)


def test_a_loader_that_restarts_after_its_end_must_be_allowed_to():
    assert check_resume(Restarting, restarts=True).ended
    with pytest.raises(AssertionError, match="Resumed from state 7: an item came after the end"):
        check_resume(Restarting)


def test_a_state_need_not_be_json_if_it_is_not_asked_for():
    class Bytes(Counting):
        def state_dict(self):
            return {"index": bytes([self.index])}

        def load_state_dict(self, state):
            self.index = state["index"][0]

    assert check_resume(Bytes, json_state=False).state_bytes == 0
    with pytest.raises(AssertionError, match="state before the first step is not JSON"):
        check_resume(Bytes)


def test_nan_equals_nan_in_items():
    class Nan(Counting):
        def item(self, index):
            return np.array([index, np.nan])

    assert check_resume(Nan).ended


class SkipsOne(Counting):
    def load_state_dict(self, state):
        self.index = state["index"] + 1


class ForgetsItsState(Counting):
    def load_state_dict(self, state):
        pass


class LosesTheEnd(Counting):
    """The end is not in the state: restored there, it begins again."""

    def state_dict(self):
        return {"index": self.index % NUM_STEPS}


class RevivesAfterItsEnd(Counting):
    def __next__(self):
        try:
            return super().__next__()
        except StopIteration:
            self.index = 0
            raise


class EndsEarlyOnceResumed(Counting):
    last = NUM_STEPS

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.last = NUM_STEPS - 1

    def __next__(self):
        if self.index >= self.last:
            raise StopIteration
        return super().__next__()


class DriftsAfterTwoResumes(Counting):
    """Each resume counts; the second one in a row is off."""

    resumes = 0

    def state_dict(self):
        return {"index": self.index, "resumes": self.resumes}

    def load_state_dict(self, state):
        self.resumes = state["resumes"] + 1
        self.index = state["index"] + (self.resumes > 1)


class SavesNothingBeforeItsFirstStep(Counting):
    """A state that is taken right after loading is the one from before any step."""

    moved = True

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.moved = False

    def __next__(self):
        self.moved = True
        return super().__next__()

    def state_dict(self):
        return {"index": self.index if self.moved else 0}


class LoadsOnlyOnce(Counting):
    loaded = False

    def load_state_dict(self, state):
        if not self.loaded:
            super().load_state_dict(state)
        self.loaded = True


class IsMovedByASave(Counting):
    def state_dict(self):
        self.index += self.index == 3
        return super().state_dict()


class KeepsItsStateAlive(Counting):
    """state_dict returns the live dict."""

    def __init__(self):
        self.state = {"index": 0}

    index = property(
        lambda self: self.state["index"], lambda self, index: self.state.update(index=index)
    )

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = copy.copy(state)


class ReusesItsBuffer(Counting):
    def __init__(self):
        super().__init__()
        self.buffer = np.zeros(3, int)

    def item(self, index):
        self.buffer[:] = index
        return self.buffer


class GrowsWithEachStep(Counting):
    def state_dict(self):
        return {"index": self.index, "seen": "x" * 100 * self.index}


class ChangesItsDtype(Counting):
    resumed = False

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.resumed = True

    def item(self, index):
        return np.full(3, index, np.int32 if self.resumed else np.int64)


class ChangesItsKeys(ChangesItsDtype):
    def item(self, index):
        return {"tokens" if self.resumed else "ids": index}


class ChangesItsLength(ChangesItsDtype):
    def item(self, index):
        return [index] * (2 + self.resumed)


class ChangesDeepInside(ChangesItsDtype):
    def item(self, index):
        return {"a": (index, [np.arange(3) + self.resumed])}


class NotANumber(Counting):
    def state_dict(self):
        return {"index": self.index, "loss": float("nan")}


FAULTS = [
    (SkipsOne, "Resumed from state 0: item 0 differs: expected [0 0 0], got [1 1 1]."),
    (ForgetsItsState, "Resumed from state 1: item 1 differs: expected [1 1 1], got [0 0 0]."),
    (LosesTheEnd, "Resumed from state 6: an item came after the end of the first run."),
    (RevivesAfterItsEnd, "With states taken: an item came after the end of the first run."),
    (EndsEarlyOnceResumed, "Resumed from state 0: the run ended before item 5"),
    (DriftsAfterTwoResumes, "Resumed 3 times in a row from state 0: item 0 differs"),
    (SavesNothingBeforeItsFirstStep, "Resumed 3 times in a row from state 1: item 1 differs"),
    (LoadsOnlyOnce, "Loaded into a used one, state 5: the run ended before item 5"),
    (IsMovedByASave, "With states taken: item 3 differs"),
    (KeepsItsStateAlive, "State 0 changed after it was taken."),
    (ReusesItsBuffer, "Item 0 changed after it was given: it differs"),
    (GrowsWithEachStep, "The state after step 2 has 324 bytes as JSON; max_state_bytes is 300."),
    (ChangesItsDtype, "expected shape (3,) of int64, got (3,) of int32."),
    (ChangesItsKeys, "item 0 differs: expected a dict {'ids': 0}, got {'tokens': 0}."),
    (ChangesItsLength, "item 0 differs: expected [0, 0], got [0, 0, 0]."),
    (ChangesDeepInside, "item 0, key 'a', part 1, part 0 differs: expected [0 1 2], got [1 2 3]."),
    (NotANumber, "The state before the first step is not JSON"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_faulty_iterator_fails(fault, message):
    with pytest.raises(AssertionError) as caught:
        check_resume(fault, max_state_bytes=300)
    assert message in str(caught.value)


def test_an_error_from_loading_comes_through():
    class Refuses(Counting):
        def load_state_dict(self, state):
            raise ValueError(f"not mine: {state}")

    with pytest.raises(ValueError, match="not mine"):
        check_resume(Refuses)
