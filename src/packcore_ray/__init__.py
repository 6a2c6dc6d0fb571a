"""Builds packed corpora with Ray: `packcore.build` on a cluster, and a datasink for Ray Data."""

import typing as _typing

try:
    import ray as _ray  # noqa: F401 - only whether it is there
except ImportError as _error:
    from packcore.errors import MissingExtraError as _MissingExtraError

    raise _MissingExtraError(
        'packcore_ray needs the package ray. Install it with: pip install "packcore[ray]"'
    ) from _error

from packcore_ray.build import build, tasks

if _typing.TYPE_CHECKING:
    from packcore_ray.datasink import PackedDatasink as PackedDatasink

__all__ = ["build", "tasks"]


def __getattr__(name: str) -> object:
    """Imports the datasink when it is asked for: Ray Data takes long, and a build needs it not."""
    if name != "PackedDatasink":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from packcore.extras import import_extra  # noqa: PLC0415

    for package in ("pandas", "pyarrow"):
        import_extra(package, extra="ray", needed_for="PackedDatasink")
    from packcore_ray.datasink import PackedDatasink  # noqa: PLC0415

    return PackedDatasink
