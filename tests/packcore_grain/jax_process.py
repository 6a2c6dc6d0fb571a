"""One of several JAX processes on this machine.

    python jax_process.py INDEX COUNT PORT CORPUS OUT

Each takes its rows of every batch and puts them into global arrays over a mesh of all devices.
Process 0 writes the rows of all, as every process sees them, for the test to compare.
"""

import os
import sys

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import packcore
from packcore_grain import LoaderDataset, sharding_rank

NUM_STEPS = 3
GLOBAL_BATCH_SIZE = 8


def main(index, count, port, corpus, out):
    # Later versions of JAX choose this by themselves; 0.4.34 has none on a CPU.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", int(count), int(index))
    loader = packcore.Loader(packcore.open(corpus).blocks(8), GLOBAL_BATCH_SIZE, seed=1, epochs=1)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), "data"), PartitionSpec("data"))
    assert sharding_rank(sharding, (GLOBAL_BATCH_SIZE, 8)) == (jax.process_index(), int(count))

    iterator = iter(LoaderDataset(loader))
    seen = []
    for _ in range(NUM_STEPS):
        batch = jax.make_array_from_process_local_data(sharding, next(iterator))
        assert batch.shape == (GLOBAL_BATCH_SIZE, 8)
        seen.append(multihost_utils.process_allgather(batch, tiled=True))
    save(out, iterator, batch)
    if index == "0":
        np.save(os.path.join(out, "seen.npy"), np.stack(seen))


def save(out, iterator, params):
    """Writes the state in both ways, beside a global array."""
    items = ocp.args.Composite(
        params=ocp.args.StandardSave({"weights": params}),
        grains=grain.checkpoint.CheckpointSave(iterator),
        data=ocp.args.JsonSave(iterator.get_state()),
    )
    with ocp.CheckpointManager(os.path.join(out, "run")) as manager:
        manager.save(NUM_STEPS, args=items)


if __name__ == "__main__":
    main(*sys.argv[1:])
