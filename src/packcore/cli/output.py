"""What the commands print: JSON, or lines for people; and bars while they work."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
from tqdm import tqdm

__all__ = ["as_json", "bar", "echo", "human", "print_json", "short", "source_dtype"]

_SHORT_FROM = 9999.5
"""Smaller numbers are short as they are."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def as_json(command: _Command) -> _Command:
    """Gives a command the option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def source_dtype(command: _Command) -> _Command:
    """Gives a command the option --source-dtype."""
    option = click.option(
        "--source-dtype", metavar="DTYPE", help="Of raw .bin and .npy, which do not say it."
    )
    return option(command)


def print_json(value: object) -> None:
    """Prints a value as JSON."""
    click.echo(json.dumps(value, indent=1))


def echo(*lines: str) -> None:
    """Prints lines."""
    for line in lines:
        click.echo(line)


def human(number: float) -> str:
    """Returns a number with its thousands apart."""
    return f"{number:,.0f}"


def short(number: float) -> str:
    """Returns a number in at most six characters, such as 12.3M."""
    return human(number) if number < _SHORT_FROM else str(tqdm.format_sizeof(number))


def bar(total: int | None, unit: str, *, scale: bool = True, form: str | None = None) -> tqdm[Any]:
    """Returns a progress bar on stderr; it shows nothing where that is no terminal.

    Args:
        total: what 100 % is, if it is known.
        unit: what is counted.
        scale: whether large counts are shown as 12.3M.
        form: what the line looks like, in tqdm's terms; tqdm's own by default.
    """
    return tqdm(
        total=total,
        unit=unit,
        unit_scale=scale,
        bar_format=form,
        disable=not sys.stderr.isatty(),
        dynamic_ncols=True,
        file=sys.stderr,
    )
