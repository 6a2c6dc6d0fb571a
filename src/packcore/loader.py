"""The loader: the steps of a run, one after another, with a state.

The only mutable object of the native path. Reading a step is for `packcore.steps`, what stands
at a position for `packcore.stream`, what a run will serve for `packcore.plan`.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from packcore.checks import check_choice, check_int, check_type
from packcore.errors import ArgumentError, ArgumentTypeError, StateError
from packcore.mixture import Mixture
from packcore.order import SHUFFLES, Shuffle
from packcore.plan import Plan, RowOrigin, make_plan
from packcore.protocols import BlockReader
from packcore.resume import MAX_POSITION, load_position, save_position
from packcore.sharding import ServedSteps, rank_rows
from packcore.steps import FIELDS, Batch, StepReader
from packcore.stream import Stream

__all__ = ["Loader", "check_loader"]

_MAX_PREFETCH = 1000


class Loader:
    """Batches of one rank, in an order that is the same for any number of ranks and workers.

    Step g of a run is positions [g * global_batch_size, (g + 1) * global_batch_size) of one
    endless order; a rank takes its share of these rows. Nothing else is needed to find a batch,
    so a run resumes at once, at any number of ranks, workers and prefetched batches.

    Iterating goes on from `position`, so a loop that was left with `break` can be taken up
    again; after the end of a finite run the next loop begins anew. A loader has one running
    iterator; a new one closes the one before.

    A batch is an array, `(rows, block_size)`, or, with `fields` or `remainder="pad"`, a dict:

    - `tokens`: `(rows, block_size)`, `dtype`;
    - `document_starts`: `(rows, max_documents)`, int32, padded with block_size;
    - `segment_ids`: `(rows, block_size)`, int32, the document within the row, from 1; 0 is fill;
    - `positions`: `(rows, block_size)`, int32, from 0 in each document;
    - `loss_mask`: `(rows, block_size)`, bool, False where no token of the same document is before;
    - `mask`: `(rows,)`, bool, False for rows of fill; always there with `remainder="pad"`.

    An array that was handed out is never written again.

    Args:
        source: blocks, or a mixture of several.
        global_batch_size: rows of a step over all ranks.
        seed: any integer of at least 0; the order is a pure function of it.
        shuffle: "global" over all blocks; "window", which reads `window` chunks at a time; None.
        window: chunks in a window, for shuffle="window".
        epochs: passes over the blocks; None for no end. A mixture has `max_epochs` instead.
        remainder: what becomes of the last rows if they do not fill a step: "drop" them, "pad"
            the step with rows of fill, or "error".
        rank: this process, in [0, world_size).
        world_size: data-parallel processes. Where it does not divide global_batch_size, ranks
            differ by one row.
        dtype: of the tokens; the stored one by default. It must hold every id.
        fields: what a batch holds, from `FIELDS`; None for the plain array.
        prefetch: how far a thread makes batches ahead, in slabs of whole steps of about 4 MiB,
            at least one; 0 for no thread.
        skip: (start, stop) ranges of steps that are never served.

    Raises:
        ArgumentError: an argument breaks a rule; the message says which.
        ArgumentTypeError: an argument is of a wrong type.
    """

    def __init__(
        self,
        source: BlockReader | Mixture,
        global_batch_size: int,
        *,
        seed: int,
        shuffle: Shuffle = "global",
        window: int = 8,
        epochs: int | None = None,
        remainder: str = "drop",
        rank: int = 0,
        world_size: int = 1,
        dtype: npt.DTypeLike | None = None,
        fields: Iterable[str] | None = None,
        prefetch: int = 2,
        skip: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.seed = check_int("seed", seed, low=0)
        self.shuffle: Shuffle = _check_shuffle(shuffle)
        self.window = check_int("window", window, low=1, unit="chunks")
        self.remainder = check_choice("remainder", remainder, ("drop", "pad", "error"))
        self.rows = rank_rows(global_batch_size, rank=rank, world_size=world_size)
        """Which rows of each global batch are this rank's."""
        self.global_batch_size = int(global_batch_size)
        self.rank, self.world_size = int(rank), int(world_size)
        self.prefetch = check_int("prefetch", prefetch, low=0, high=_MAX_PREFETCH, unit="slabs")
        self.fields = _check_fields(fields, self.remainder)
        self.skip = ServedSteps.without(skip)
        self._wanted_dtype = dtype
        self._use(_as_mixture(source, epochs))
        self._step = 0
        self._ended = False
        # Weak, so that a loop that is left with `break` frees its iterator, and so its thread.
        self._running: weakref.ref[Generator[Batch, None, None]] | None = None

    def _use(self, mixture: Mixture) -> None:
        self.stream = Stream(mixture, seed=self.seed, shuffle=self.shuffle, window=self.window)
        self.num_steps = self._count_steps(self.stream.num_positions)
        """Steps of the run, skipped ones included; None if there is no end."""
        self.dtype = self.stream.check_dtype(self._wanted_dtype)
        """The dtype of the tokens that are served."""
        self._reader = StepReader(
            self.stream,
            global_batch_size=self.global_batch_size,
            rows=self.rows,
            dtype=self.dtype,
            fields=self.fields,
        )

    def _count_steps(self, num_positions: int | None) -> int | None:
        if num_positions is None:
            return None
        if num_positions > MAX_POSITION:
            raise ArgumentError(
                f"A run must have at most 2^62 blocks, repeats included; got {num_positions}. Use "
                "fewer epochs, or None for no end.",
                name="epochs",
                value=num_positions,
            )
        steps, rest = divmod(num_positions, self.global_batch_size)
        if rest and self.remainder == "error":
            raise ArgumentError(
                f"With remainder='error' the blocks must fill whole steps; got {num_positions} "
                f"blocks for a global_batch_size of {self.global_batch_size}: {rest} are left "
                'over. Use another size, or remainder="drop" or "pad".',
                name="remainder",
                value=rest,
            )
        return steps + (1 if rest and self.remainder == "pad" else 0)

    @property
    def mixture(self) -> Mixture:
        """The sources; after `load_state_dict` with the weights that the state brought."""
        return self.stream.mixture

    @property
    def num_served(self) -> int:
        """Served steps before the one that the next loop begins with; 0 again after the end."""
        return 0 if self._ended else self.skip.num_before(self._step)

    @property
    def step(self) -> int:
        """The next step to be served."""
        return self.served_step(self.skip.num_before(self._step))

    def served_step(self, index: int) -> int:
        """Returns the step that is served as number `index`, from 0: without `skip`, the same.

        Raises:
            ArgumentError: `index` is negative.
        """
        index = check_int("index", index, low=0, unit="steps")
        if not len(self.skip.starts):  # as mostly; whoever counts batches asks with each
            return index
        return int(self.skip.steps(np.array([index]))[0])

    def seek(self, num_served: int) -> None:
        """Goes to where a run stands that has served so many steps.

        Raises:
            ArgumentError: `num_served` is negative.
        """
        step = self.served_step(num_served)
        self.close()
        self._step, self._ended = step, False

    @property
    def position(self) -> int:
        """Blocks of the order that come before the next step, over all ranks."""
        return self.step * self.global_batch_size

    @property
    def block_size(self) -> int:
        """Tokens in a row."""
        return self.mixture.block_size

    def __len__(self) -> int:
        """Steps that a whole run serves.

        Raises:
            TypeError: the run has no end.
        """
        if self.num_steps is None:
            raise TypeError("This loader has no end, so it has no len(); give it epochs.")
        return self.skip.num_before(self.num_steps)

    def __iter__(self) -> Generator[Batch, None, None]:
        self.close()
        if self._ended:
            self._step, self._ended = 0, False
        running = self._run()
        self._running = weakref.ref(running)
        return running

    def _run(self) -> Generator[Batch, None, None]:
        for step, batch in self._numbered(self.skip.num_before(self._step), every=1):
            self._step = step + 1
            yield batch
        self._ended = True

    def batches(self, first: int = 0, *, every: int = 1) -> Iterator[Batch]:
        """Yields the batches from served step `first` on, without touching `position`.

        Worker w of N takes `batches(start + w, every=N)`.

        Args:
            first: counts served steps, from 0: without `skip`, steps.
            every: from one batch to the next, in served steps.

        Raises:
            ArgumentError: `first` is negative or `every` is not positive.
        """
        first = check_int("first", first, low=0, unit="steps")
        every = check_int("every", every, low=1, unit="steps")
        return (batch for _, batch in self._numbered(first, every=every))

    def _numbered(self, first: int, *, every: int) -> Iterator[tuple[int, Batch]]:
        return self._reader.batches(self._step_runs(first, every), prefetch=self.prefetch)

    def _step_runs(self, first: int, every: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yields the steps from served step `first` on, many at a time."""
        last = self._max_steps if self.num_steps is None else self.skip.num_before(self.num_steps)
        length = every * self._reader.num_located
        while first < last:
            yield self.skip.steps(np.arange(first, min(last, first + length), every))
            first += length

    def batch_at(self, step: int) -> Batch:
        """Returns the batch of any step; a pure function, nothing moves.

        Args:
            step: counts all steps, skipped ones too.

        Raises:
            ArgumentError: the run has no such step.
        """
        return self._reader.batch_at(self._check_step(step))

    def locate(self, step: int) -> list[RowOrigin]:
        """Returns where each of this rank's rows of a step comes from; rows of fill are left out.

        Raises:
            ArgumentError: the run has no such step.
        """
        located = self._reader.locate(self._check_step(step))
        names, readers = self.stream.names, self.stream.readers
        return [
            RowOrigin.of(names[source], readers[source], epoch, block)
            for source, epoch, block in zip(*(array.tolist() for array in located), strict=True)
        ]

    @property
    def _max_steps(self) -> int:
        """Steps that a run without an end may have."""
        return MAX_POSITION // self.global_batch_size

    def _check_step(self, step: int) -> int:
        if self.num_steps is None:
            return check_int("step", step, low=0, high=self._max_steps - 1)
        if self.num_steps == 0:
            raise ArgumentError("The run has no step.", name="step", value=step)
        return check_int("step", step, low=0, high=self.num_steps - 1)

    def for_rank(self, *, rank: int, world_size: int) -> Self:
        """Returns the loader of any rank of this run, at this position; the two are independent.

        Raises:
            ArgumentError: the rank is not below world_size, or a rank would have no row.
        """
        rows = rank_rows(self.global_batch_size, rank=rank, world_size=world_size)
        share = {"rows": rows, "rank": int(rank), "world_size": int(world_size)}
        other = type(self).__new__(type(self))
        other.__setstate__(self.__getstate__() | share)
        return other

    def plan(self, num_steps: int | None = None) -> Plan:
        """Returns what a run serves, drops, pads and repeats; no token is read.

        Args:
            num_steps: steps of the run, from step 0; all of them by default.

        Raises:
            ArgumentError: the run has no end and num_steps is not given, or it has fewer steps.
        """
        if num_steps is None and self.num_steps is None:
            raise ArgumentError(
                "num_steps must be given for a run that has no end.", name="num_steps"
            )
        limit = self._max_steps if self.num_steps is None else self.num_steps
        return make_plan(
            self.stream,
            num_steps=check_int(
                "num_steps", limit if num_steps is None else num_steps, low=0, high=limit
            ),
            global_batch_size=self.global_batch_size,
            world_size=self.world_size,
            skip=self.skip,
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the state: the position that was reached, and what it belongs to.

        It tells what was served, not what was read ahead. It is the same on every rank, small,
        and JSON holds it.
        """
        return self.state_at(self.skip.num_before(self._step))

    def state_at(self, num_served: int) -> dict[str, Any]:
        """Returns the state of a run that has served so many steps; nothing moves.

        For whoever counts the batches of `batches` and has to save where they are.

        Raises:
            ArgumentError: `num_served` is negative.
        """
        position = self.served_step(num_served) * self.global_batch_size
        num_changes = self.stream.order.num_changes(position)
        return save_position(self.mixture, self._identity(), position, num_changes=num_changes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken, at any number of ranks and workers.

        The weights that the state knows and this loader's mixture does not are taken over. The
        mixture may change weights, or have new sources, from the state's position on.

        Raises:
            StateError: the state is of other data, another seed, order or version, or its
                position is inside a step; `field` names what differs.
            ArgumentTypeError: the state is not a dict.
        """
        mixture, position = load_position(self.mixture, self._identity(), state)
        step = self._step_at(position)
        self.close()
        if mixture is not self.mixture:
            self._use(mixture)
        self._step, self._ended = step, False

    def _step_at(self, position: int) -> int:
        step, rest = divmod(position, self.global_batch_size)
        if rest:
            raise StateError(
                f"The state's position, {position} blocks, is inside a step of global_batch_size "
                f"{self.global_batch_size}. Use the global_batch_size that it was saved with, or "
                "one that divides the position.",
                field="global_batch_size",
                expected=self.global_batch_size,
                got=position,
            )
        return step

    def _identity(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "window": self.window if self.shuffle == "window" else None,
        }

    def close(self) -> None:
        """Stops the running iterator, if there is one, and its thread."""
        running = None if self._running is None else self._running()
        self._running = None
        if running is not None:
            running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # What is derived from the mixture and the running iterator stay behind.
        state = {**self.__dict__, "stream": self.mixture, "_running": None}
        del state["_reader"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._use(state["stream"])


def check_loader(value: object) -> Loader:
    """Returns `value` if it is a loader.

    Raises:
        ArgumentTypeError: it is something else; the message says how to make one.
    """
    way = "Make one of blocks: packcore.Loader(blocks, global_batch_size, seed=...)."
    return check_type("loader", value, Loader, "a packcore.Loader", way)


def _as_mixture(source: BlockReader | Mixture, epochs: int | None) -> Mixture:
    if isinstance(source, Mixture):
        if epochs is not None:
            raise ArgumentError(
                "epochs is for a single source; a mixture says max_epochs={name: epochs} and "
                f"on_exhausted. Got epochs={epochs!r}.",
                name="epochs",
                value=epochs,
            )
        return source
    if not hasattr(source, "gather"):
        raise ArgumentTypeError(
            "source must be blocks, from packcore.open(...).blocks(block_size), or a "
            f"packcore.Mixture; got {type(source).__name__}.",
            name="source",
            value=source,
        )
    if not len(source):
        raise ArgumentError(
            f"source must have at least one block; got {source!r}. Use a smaller block_size.",
            name="source",
            value=source,
        )
    if epochs is None:
        return Mixture({"data": (source, 1.0)})
    limit = check_int("epochs", epochs, low=1)
    return Mixture({"data": (source, 1.0)}, on_exhausted="stop", max_epochs={"data": limit})


def _check_shuffle(shuffle: object) -> Shuffle:
    if shuffle is None or (isinstance(shuffle, str) and shuffle in SHUFFLES):
        return cast("Shuffle", shuffle)
    raise ArgumentError(
        f"shuffle must be 'global', 'window' or None; got {shuffle!r}.",
        name="shuffle",
        value=shuffle,
    )


def _check_fields(fields: Iterable[str] | None, remainder: str) -> tuple[str, ...] | None:
    if fields is None:
        return ("tokens", "mask") if remainder == "pad" else None
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise ArgumentTypeError(
            f"fields must be a list of names; got {fields!r}.", name="fields", value=fields
        )
    wanted = [check_choice("fields", field, FIELDS) for field in fields]
    padded = ["mask"] if remainder == "pad" else []
    return tuple(dict.fromkeys([*wanted, *padded]))
