import pickle
import re

import pytest

from packcore import errors

LEAVES = [name for name in errors.__all__ if name != "PackcoreError"]

FACTS = {
    "ArgumentError": {"name": "block_size", "value": 0},
    "ArgumentTypeError": {"name": "block_size", "value": 0.5},
    "FormatError": {"path": "x.bin", "offset": 7, "expected": 1, "got": 2},
    "MismatchError": {"path": "x.bin", "offset": 15, "expected": "uint16", "got": "int32"},
    "NoDataError": {"path": "x.bin"},
    "TokenError": {"index": 3, "value": 70000, "low": 0, "high": 65535},
    "OverwriteError": {"path": "x.bin"},
    "WriteError": {"path": "x.bin", "errno": 28},
    "ClosedError": {},
    "StateError": {"field": "seed", "expected": 1, "got": 2},
    "WorkerError": {},
    "MissingExtraError": {},
}


def test_the_tree_in_the_docstring_is_the_tree():
    drawn = re.findall(r"[├└]── (\w+) +(?:\((\w+)\))?", errors.__doc__)
    assert sorted(name for name, _ in drawn) == sorted(LEAVES)
    for name, standard in drawn:
        bases = [base.__name__ for base in getattr(errors, name).__mro__]
        assert "PackcoreError" in bases
        assert (standard or "FormatError") in bases


def test_every_leaf_is_a_standard_exception_too():
    for name in LEAVES:
        bases = getattr(errors, name).__mro__
        assert any(base.__module__ == "builtins" and base.__name__ != "Exception" for base in bases)


@pytest.mark.parametrize("name", LEAVES)
def test_message_and_facts_survive_a_pipe_between_processes(name):
    facts = FACTS[name]
    error = getattr(errors, name)("what went wrong", **facts)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error) == "what went wrong"
    assert {fact: getattr(copy, fact) for fact in facts} == facts


@pytest.mark.parametrize("name", [name for name in LEAVES if FACTS[name]])
def test_facts_are_none_where_they_do_not_apply(name):
    error = getattr(errors, name)("what went wrong")
    assert {getattr(error, fact) for fact in FACTS[name]} == {None}
