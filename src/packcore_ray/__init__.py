"""Builds packed corpora over a Ray cluster: `packcore.build`, tokenizing in Ray tasks."""

try:
    import ray as _ray  # noqa: F401 - only whether it is there
except ImportError as _error:
    from packcore.errors import MissingExtraError as _MissingExtraError

    raise _MissingExtraError(
        'packcore_ray needs the package ray. Install it with: pip install "packcore[ray]"'
    ) from _error

from packcore_ray.build import build, tasks

__all__ = ["build", "tasks"]
