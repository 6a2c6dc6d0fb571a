"""Lets the core's tests run with NumPy and pytest alone.

Without hypothesis, a property test is skipped by name and the tests beside it still run: a
stand-in takes the place of the package.
"""

import importlib.util
import sys
import types

import pytest

if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # No deadline: what else the machine does must not decide a test.
    settings.register_profile("packcore", settings.get_profile("default"), deadline=None)
    settings.load_profile("packcore")
else:

    class _Anything:
        """A strategy, setting or rule that nobody will draw from or run."""

        def __call__(self, *_args, **_kwargs):
            return self

        def __getattr__(self, name):
            return self

        __add__ = __or__ = __call__

    def _unchanged(*_args, **_kwargs):
        return lambda test: test

    def _skipped(*_args, **_kwargs):
        return pytest.mark.skip(reason="a property test: needs hypothesis")

    class _Machine:
        """In place of a state machine; pytest collects none of its rules."""

        class TestCase:
            pass

    def _stand_in(name, **names):
        module = types.ModuleType(name)
        module.__dict__.update(names)
        module.__getattr__ = lambda _: _Anything()
        sys.modules[name] = module
        return module

    stateful = _stand_in("hypothesis.stateful", RuleBasedStateMachine=_Machine)
    strategies = _stand_in("hypothesis.strategies", composite=lambda _: _Anything())
    numpy_strategies = _stand_in("hypothesis.extra.numpy")
    extra = _stand_in("hypothesis.extra", numpy=numpy_strategies)
    _stand_in(
        "hypothesis",
        given=_skipped,
        settings=_unchanged,
        example=_unchanged,
        seed=_unchanged,
        stateful=stateful,
        strategies=strategies,
        extra=extra,
    )
