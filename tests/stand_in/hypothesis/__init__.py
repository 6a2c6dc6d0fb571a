"""In place of hypothesis where it is not installed: a property test is skipped, by name.

It is a package on `sys.path`, not an object made in conftest.py, so that a process that a test
spawns finds it too.
"""

import pytest


class Anything:
    """A strategy, setting or rule that nobody will draw from or run."""

    def __call__(self, *_args, **_kwargs):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    __or__ = __call__


def given(*_args, **_kwargs):
    return pytest.mark.skip(reason="a property test: needs hypothesis")


def settings(*_args, **_kwargs):
    return lambda test: test


example = seed = settings


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything()
