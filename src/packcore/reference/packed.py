"""PackedDataset and its iterator: the blocks of chunk files, in lit-gpt's order.

Checks of files and arguments are in `packcore.reference.plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from packcore.checks import check_int
from packcore.format import map_tokens
from packcore.reference.plan import Filenames, make_plan
from packcore.reference.report import PackedReport, make_report
from packcore.sharding import shard_files
from packcore.state import check_identity, check_position, pack_pcg64, unpack_pcg64

__all__ = ["PackedDataset", "PackedDatasetIterator"]


class PackedDataset:
    """Blocks of packed chunk files, in the order of lit-gpt's PackedDataset.

    The files are dealt out round robin to `num_processes * num_workers` shards. A shard goes
    through its files in windows of `n_chunks`; the blocks of a window come shuffled. What does
    not fill up is left out: files that do not go evenly into the shards, files at a shard's end
    that are fewer than `n_chunks`, tokens at a chunk's end that are fewer than `block_size`.
    `report()` counts them.

    Every `iter()` starts anew, in the same order. A dataset can be pickled: it holds paths,
    and opens files as they are needed, at most `n_chunks` at a time.

    Args:
        filenames: chunk files, in the order in which they are dealt out; a file may stand there
            more than once. Names that end in `.docs.npy` or `.manifest.json` are left out before
            anything is counted: these are packcore's sidecars, and `glob(prefix + "*")` finds
            them. A script that shuffles such a list gets another order than one that shuffles
            `glob(prefix + "*.bin")`.
        n_chunks: files in a window.
        block_size: tokens in a block, at most the chunks' `chunk_size`.
        seed: of the shuffle; None takes another one every time.
        shuffle: False serves the blocks in the order in which they are stored.
        wrap: True begins again after the last whole window, with another shuffle, without end.
            False ends there. TinyLlama's copy of the class has this argument but wraps always.
        num_processes: the number of ranks.
        process_rank: this process's rank.
        num_workers: loader processes of one rank.
        worker_id: which of them this is.

    Raises:
        ArgumentError: a number is out of its range, `block_size` is larger than the chunks, or
            there are fewer files than shards times `n_chunks`.
        ArgumentTypeError: `filenames` is one path or an unordered set; a number is no integer.
        NoDataError: there are no files, or one of them does not exist.
        FormatError: a file is not a whole LITPKDS chunk.
        MismatchError: two files differ in dtype or chunk_size.

    Examples:
        >>> import os, tempfile
        >>> from packcore.format import ChunkHeader
        >>> folder = tempfile.TemporaryDirectory()
        >>> names = [os.path.join(folder.name, f"a_{i:010d}.bin") for i in range(2)]
        >>> for i, name in enumerate(names):
        ...     with open(name, "wb") as file:
        ...         _ = file.write(ChunkHeader(1, np.dtype("uint16"), 5).to_bytes())
        ...         _ = file.write(np.arange(10 * i, 10 * i + 5, dtype="uint16").tobytes())
        >>> dataset = PackedDataset(names, n_chunks=2, block_size=2, seed=4)
        >>> [block.tolist() for block in dataset]
        [[12, 13], [0, 1], [2, 3], [10, 11]]
        >>> folder.cleanup()
    """

    def __init__(
        self,
        filenames: Filenames,
        n_chunks: int,
        block_size: int,
        seed: int | None = 12345,
        shuffle: bool = True,
        wrap: bool = False,
        num_processes: int = 1,
        process_rank: int = 0,
        *,
        num_workers: int = 1,
        worker_id: int = 0,
    ) -> None:
        self._num_processes = check_int("num_processes", num_processes, low=1)
        self._process_rank = check_int(
            "process_rank", process_rank, low=0, high=self._num_processes - 1
        )
        self._num_workers = check_int("num_workers", num_workers, low=1)
        self._worker_id = check_int("worker_id", worker_id, low=0, high=self._num_workers - 1)
        self._plan = make_plan(
            filenames,
            n_chunks=n_chunks,
            block_size=block_size,
            seed=seed,
            shuffle=shuffle,
            wrap=wrap,
            num_processes=self._num_processes,
            num_workers=self._num_workers,
        )

    def __iter__(self) -> PackedDatasetIterator:
        plan = self._plan
        shard = shard_files(
            len(plan.chunks.paths),
            rank=self._process_rank,
            world_size=self._num_processes,
            worker=self._worker_id,
            num_workers=self._num_workers,
        )
        return PackedDatasetIterator(
            plan.chunks.select(shard),
            plan.n_chunks,
            plan.block_size,
            plan.seed,
            plan.shuffle,
            plan.wrap,
        )

    def for_worker(self, *, num_workers: int, worker_id: int) -> PackedDataset:
        """Returns this dataset as one of several loader processes serves it.

        No file is read again.

        Args:
            num_workers: loader processes of one rank.
            worker_id: which of them, from 0.

        Raises:
            ArgumentError: there are too few files for so many workers, or `worker_id` is not
                below `num_workers`.
        """
        plan = self._plan
        return PackedDataset(
            plan.chunks,
            plan.n_chunks,
            plan.block_size,
            plan.seed,
            plan.shuffle,
            plan.wrap,
            self._num_processes,
            self._process_rank,
            num_workers=num_workers,
            worker_id=worker_id,
        )

    def report(self) -> PackedReport:
        """Returns what one pass serves, drops and fills, for every shard.

        It covers all ranks and workers, not this one alone. Manifests beside the chunks are
        read, no tokens are.

        Raises:
            FormatError: a manifest beside the chunks is damaged.
        """
        return make_report(self._plan, self._num_processes, self._num_workers)


class PackedDatasetIterator:
    """The blocks of one shard: every file given is its own.

    Each block is a new array, `(block_size,)`, int64, or float32 or float64 if the chunks are.

    Args:
        filenames: as for `PackedDataset`, but not dealt out any more.
        n_chunks: files in a window.
        block_size: tokens in a block.
        seed: of the shuffle.
        shuffle: whether the blocks of a window are shuffled.
        wrap: whether to go on after the last whole window.

    Raises:
        PackcoreError: as for `PackedDataset`.
    """

    def __init__(
        self,
        filenames: Filenames,
        n_chunks: int,
        block_size: int,
        seed: int | None,
        shuffle: bool,
        wrap: bool,
    ) -> None:
        self._plan = plan = make_plan(
            filenames,
            n_chunks=n_chunks,
            block_size=block_size,
            seed=seed,
            shuffle=shuffle,
            wrap=wrap,
        )
        dtype = plan.chunks.header.dtype
        self._dtype: np.dtype[Any] = dtype if dtype.kind == "f" else np.dtype(np.int64)
        self._chunk_blocks = plan.chunk_blocks
        self._generator = np.random.default_rng(plan.seed) if plan.shuffle else None
        self._identity: dict[str, Any] | None = None
        self._enter_window(0)

    def _enter_window(self, file_index: int, block_index: int = 0) -> None:
        """Draws the order of the window that starts at a file; opens nothing yet."""
        num_blocks = self._plan.window_blocks
        self._window: list[npt.NDArray[Any]] = []
        self._num_open = 0
        self._file_index = file_index
        self._block_index = block_index
        self._generator_before = None
        if self._generator is None:
            self._order = np.arange(num_blocks)
        else:
            # With the generator as it was before, loading a state draws the same order again.
            self._generator_before = pack_pcg64(self._generator)
            self._order = self._generator.permutation(num_blocks)

    def __iter__(self) -> PackedDatasetIterator:
        return self

    def __next__(self) -> npt.NDArray[Any]:
        if self._block_index >= self._num_open:
            self._open_window()
        # item() gives an int, which divides faster than a NumPy scalar.
        chunk_index, row = divmod(self._order.item(self._block_index), self._chunk_blocks)
        self._block_index += 1
        # astype() copies: no block holds on to a map.
        block: npt.NDArray[Any] = self._window[chunk_index][row].astype(self._dtype)
        return block

    def _open_window(self) -> None:
        """Maps the files of this window, or of the next one if this one is at its end."""
        # The old maps go first, so that at most n_chunks are alive.
        self._window, self._num_open = [], 0
        plan = self._plan
        if self._block_index >= plan.window_blocks:
            self._enter_window(self._next_file_index())
        paths = plan.chunks.paths[self._file_index : self._file_index + plan.n_chunks]
        num_tokens = plan.chunk_blocks * plan.block_size
        self._window = [
            map_tokens(path, plan.chunks.header)[:num_tokens].reshape(-1, plan.block_size)
            for path in paths
        ]
        self._num_open = plan.window_blocks

    def _next_file_index(self) -> int:
        file_index = self._file_index + self._plan.n_chunks
        if file_index + self._plan.n_chunks <= len(self._plan.chunks.paths):
            return file_index
        if self._plan.wrap:
            return 0
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        """Returns where the iterator is: a small dict that JSON can hold.

        It has the window's first file, the block within the window and the generator as it was
        before the window was shuffled, and what the order depends on. Its size does not grow.
        """
        return self._get_identity() | {
            "file_index": self._file_index,
            "block_index": self._block_index,
            "generator": self._generator_before and dict(self._generator_before),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to where an iterator was when it returned `state`. Reads no tokens.

        Raises:
            ArgumentTypeError: the state is not a dict.
            StateError: the state belongs to other files or arguments, or is damaged; `field`
                says which part. The iterator stays where it is.
        """
        plan = self._plan
        check_identity(state, self._get_identity())
        starts = range(0, len(plan.chunks.paths) - plan.n_chunks + 1, plan.n_chunks)
        file_index = check_position(state, "file_index", _is_in(starts), "a window's first file")
        blocks = range(plan.window_blocks + 1)
        rule = f"in [0, {plan.window_blocks}]"
        block_index = check_position(state, "block_index", _is_in(blocks), rule)
        if self._generator is not None:
            self._generator = unpack_pcg64(state, "generator")
        self._enter_window(file_index, block_index)

    def _get_identity(self) -> dict[str, Any]:
        if self._identity is None:
            self._identity = self._plan.identity()
        return self._identity

    def __getstate__(self) -> dict[str, Any]:
        # Maps cannot be pickled, and the order can be drawn again.
        return {"plan": self._plan, "state": self.state_dict()}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        plan = pickled["plan"]
        PackedDatasetIterator.__init__(
            self,
            plan.chunks,
            plan.n_chunks,
            plan.block_size,
            plan.seed,
            plan.shuffle,
            plan.wrap,
        )
        self.load_state_dict(pickled["state"])


def _is_in(numbers: range) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value in numbers
