"""The packcore command.

A module a group of commands; each only turns words into a call and the result into text. The
work is done by `packcore.pipeline`, `packcore.corpora` and `packcore.loader`.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command that sys.argv names, and exits with its status."""
    try:
        from packcore.cli.app import run  # noqa: PLC0415 - it needs click
    except KeyboardInterrupt:
        print("packcore: stopped", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name not in ("click", "tqdm"):
            raise
        print(  # noqa: T201 - there is nothing else to say it with
            f"packcore: The command needs the package {error.name}. Install it with: "
            'pip install "packcore[cli]"',
            file=sys.stderr,
        )
        sys.exit(1)
    sys.exit(run())
