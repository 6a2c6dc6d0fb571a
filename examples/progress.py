"""A progress bar: tqdm's where it is installed, else a plain line."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

WIDTH = 40


@contextmanager
def bar(total: int, unit: str) -> Iterator[Callable[[int], Any]]:
    """Gives a function that takes how far the work is, of `total`."""
    if tqdm is None:
        yield from _plain_bar(total, unit)
        return
    with tqdm(
        total=total, unit=unit, unit_scale=True, ncols=80, leave=False, disable=None
    ) as shown:
        yield lambda done: shown.update(done - shown.n)


def _plain_bar(total: int, unit: str) -> Iterator[Callable[[int], Any]]:
    def show(done: int) -> None:
        # Only a person at a terminal waits; a log file keeps no moving line.
        if sys.stderr.isatty():
            full = WIDTH * done // max(total, 1)
            line = f"\r  [{'#' * full}{'.' * (WIDTH - full)}] {done / 1e6:.1f} M {unit}"
            sys.stderr.write(line)
            sys.stderr.flush()

    yield show
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
