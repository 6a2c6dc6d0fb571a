"""Imports optional packages, and names the pip command where one is missing."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from packcore.errors import MissingExtraError

__all__ = ["import_extra", "import_zstd"]


def import_extra(module: str, *, extra: str, needed_for: str) -> Any:
    """Returns an optional module.

    Args:
        module: what is imported.
        extra: the extra of packcore that installs it.
        needed_for: what it is needed for, to begin the message with.

    Raises:
        MissingExtraError: it is not installed.

    Examples:
        >>> import_extra("no_such_module", extra="parquet", needed_for="Reading web.parquet")
        Traceback (most recent call last):
        packcore.errors.MissingExtraError: Reading web.parquet needs the package no_such_module.
        Install it with: pip install "packcore[parquet]"
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            raise  # it is there, but what it imports itself is not
        package = module if module.startswith("backports.") else module.partition(".")[0]
        raise MissingExtraError(
            f"{needed_for} needs the package {package}. Install it with: pip install "
            f'"packcore[{extra}]"',
            name=package,
        ) from None


def import_zstd(path: str) -> Any:
    """Returns the module that has `ZstdFile`: the standard library's from Python 3.14 on.

    Its file raises EOFError where a file was cut short, which not every zstd package does.

    Raises:
        MissingExtraError: it is not installed.
    """
    module = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return import_extra(module, extra="zstd", needed_for=f"Reading {path}")
