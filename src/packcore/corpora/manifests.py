"""Which manifests a path names."""

from __future__ import annotations

import os

from packcore.errors import NoDataError

__all__ = ["find_manifests"]

_SUFFIX = ".manifest.json"


def find_manifests(source: str | os.PathLike[str]) -> list[str]:
    """Returns the manifests that a path names, in the order of their names.

    Args:
        source: a folder, a manifest, or a prefix as in `corpus/train`.

    Raises:
        NoDataError: there is none.
    """
    path = os.fspath(source)
    if os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if name.endswith(_SUFFIX))
        found = [os.path.join(path, name) for name in names]
    elif path.endswith(_SUFFIX):
        found = [path] if os.path.isfile(path) else []
    else:
        found = [path + _SUFFIX] if os.path.isfile(path + _SUFFIX) else []
    if not found:
        raise NoDataError(
            f"There is no manifest at {path}. Name a folder that packcore built, one of its "
            "manifests, or a prefix as in corpus/train.",
            path=path,
        )
    return found
