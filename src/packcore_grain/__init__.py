"""packcore for JAX and Grain: datasets of batches, a source of blocks, states for any topology.

- `LoaderDataset`: a `grain.IterDataset` of whole batches. The fast way, and the one that resumes
  at any number of processes and workers.
- `StepDataset`: a `grain.MapDataset` of whole batches, for random access.
- `BlockSource`: single blocks, for Grain's own shuffle, mix, samplers and `grain.DataLoader`.

The order, the shares of the ranks and the state are those of `packcore.Loader`.
"""

try:
    import grain as _grain  # noqa: F401  # asked for here, to name the pip command
except ModuleNotFoundError as error:
    if error.name != "grain":
        raise
    from packcore.errors import MissingExtraError as _MissingExtraError

    raise _MissingExtraError(
        'packcore_grain needs Grain, which is not installed: pip install "packcore[grain]"'
    ) from error

from packcore_grain.block_source import BlockSource
from packcore_grain.checked import CheckedDataset
from packcore_grain.loader_dataset import LoaderDataset, LoaderIterator
from packcore_grain.processes import sharding_rank
from packcore_grain.states import read_state, resume
from packcore_grain.step_dataset import StepDataset

__all__ = [
    "BlockSource",
    "CheckedDataset",
    "LoaderDataset",
    "LoaderIterator",
    "StepDataset",
    "read_state",
    "resume",
    "sharding_rank",
]
