#!/bin/sh
# Prints the first interpreter of the given versions that runs: find_python.sh 3.14 3.13
# Looks on PATH and where pyenv keeps its own. Exits 1 if there is none.
for version in "$@"; do
    for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
        # A pyenv shim is on PATH even for a version that is not chosen: only a run tells.
        if found=$("$python" -c 'import sys; print(sys.executable)' 2>/dev/null); then
            echo "$found"
            exit 0
        fi
    done
done
exit 1
