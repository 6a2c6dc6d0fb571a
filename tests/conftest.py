"""Lets the core's tests run with NumPy and pytest alone."""

import importlib.util
import signal
import sys
from pathlib import Path

STAND_IN = Path(__file__).parent / "stand_in"
collect_ignore = ["stand_in"]

if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # No deadline: what else the machine does must not decide a test.
    settings.register_profile("packcore", settings.get_profile("default"), deadline=None)
    settings.load_profile("packcore")
else:
    sys.path.append(str(STAND_IN))

# A shell starts what it runs in the background with Ctrl-C ignored, and children inherit that: the
# tests that send it to a child would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Puts the tests that start JAX's or Ray's threads last: after them no test may fork."""
    threaded = ("packcore_grain", "packcore_ray", "jax")
    items.sort(key=lambda item: any(name in item.nodeid for name in threaded))
