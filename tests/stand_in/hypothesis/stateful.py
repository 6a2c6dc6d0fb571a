from hypothesis import __getattr__

__all__ = ["RuleBasedStateMachine", "__getattr__"]


class RuleBasedStateMachine:
    class TestCase:
        """pytest collects no test of it."""
