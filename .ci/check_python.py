"""Says in one line why this interpreter can not set packcore up. Python 2 runs it as well."""

import sys

if sys.version_info < (3, 11):
    found = ".".join(map(str, sys.version_info[:3]))
    sys.exit(
        "packcore needs Python 3.11 or newer; %s is %s. Name another: make test PYTHON=python3.12"
        % (sys.executable, found)
    )
try:
    import ensurepip  # noqa: F401  # venv calls it; Debian ships both apart from Python
    import venv  # noqa: F401
except ImportError:
    sys.exit("%s has no venv. On Debian and Ubuntu: apt-get install python3-venv" % sys.executable)
