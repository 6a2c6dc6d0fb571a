"""Grain's absl flags in programs that parse no absl flags."""

from __future__ import annotations

from absl import flags

__all__ = ["use_flag_defaults"]

_PROFILING = "grain_enable_multiprocess_worker_profiling"


def use_flag_defaults() -> None:
    """Lets Grain read the flag of its worker profiler before flags are parsed.

    Where JAX is installed, `mp_prefetch` reads this flag, and in a program that is no absl app
    it would end with UnparsedFlagAccessError (Grain 0.2.17 and 0.2.18). Grain does the same for
    its other flags in its workers. A later parse of the command line still sets the flag.
    """
    if _PROFILING in flags.FLAGS and not flags.FLAGS.is_parsed():
        flags.FLAGS[_PROFILING].present = 1
