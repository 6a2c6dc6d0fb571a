"""Builds packed corpora from files of text, in parallel, on from wherever a build was stopped.

| module       | what it knows                                                           |
| ------------ | ----------------------------------------------------------------------- |
| `inputs`     | which files there are, in which order                                   |
| `reading`    | how they are cut into work; `tables` for Parquet and Arrow              |
| `parsing`    | what a document is                                                      |
| `tokenizers` | what turns text into ids; `libraries` for those of other packages       |
| `encoding`   | from work to ids: what each process does                                |
| `engines`    | which processes do it                                                   |
| `packing`    | what goes into the builder, and what is there already                   |
| `journal`    | what is finished; `kept` whether it still is                            |
| `run`        | the build as a whole                                                    |
"""

from packcore.pipeline.packing import Progress
from packcore.pipeline.run import build

__all__ = ["Progress", "build"]
