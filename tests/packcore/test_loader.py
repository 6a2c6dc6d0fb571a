"""The loader against the order that its parts define, and across ranks, workers and resumes."""

import itertools
import json
import multiprocessing
import pickle
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packcore
from packcore import Loader, Mixture
from packcore.errors import ArgumentError, ArgumentTypeError, StateError
from packcore.order import Order
from packcore.testing import check_resume

EOD = 9


class Numbers:
    """Blocks whose tokens are all the block's number plus `first`; nothing is stored."""

    dtype = np.dtype("int64")

    def __init__(self, num_blocks, *, block_size=4, num_chunks=1, first=0):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.first = first
        self.fingerprint = f"numbers {num_blocks} {first}"
        self.chunk_bounds = np.linspace(0, num_blocks, num_chunks + 1).astype(np.int64)

    def __len__(self):
        return self.num_blocks

    def gather(self, ids, out):
        out[:] = ids[:, None] + self.first


def numbers(batches):
    """The block number of every row."""
    return np.concatenate([np.empty(0, np.int64), *(batch[:, 0] for batch in batches)]).tolist()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """41 documents in several chunks; token t of document d is 10 * d + t, then EOD."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = [10 + 10 * d + np.arange(d % 7 + 1) for d in range(41)]
    with packcore.PackedDatasetBuilder(folder, "train", 16, EOD, "uint16") as builder:
        for document in documents:
            builder.add_document(document, sep="after")
    return packcore.open(folder)


SHUFFLES = ["global", "window", None]


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_every_epoch_serves_each_block_once_in_the_order_of_the_pure_functions(shuffle):
    source = Numbers(60, num_chunks=7)
    loader = Loader(source, 6, seed=5, shuffle=shuffle, window=2, epochs=3)
    order = Order("data", source.chunk_bounds, seed=5, shuffle=shuffle, window=2)
    served = numbers(loader)
    assert served == order.locate(np.arange(180))[1].tolist()
    epochs = [served[start : start + 60] for start in (0, 60, 120)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(60))] * 3
    assert shuffle is None or epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("world_size", range(1, 9))
def test_the_batches_are_the_same_for_any_ranks_and_workers(shuffle, world_size):
    source = Numbers(50, num_chunks=4)
    options = {"seed": 1, "shuffle": shuffle, "window": 2, "epochs": 2}
    expected = list(Loader(source, 8, prefetch=0, **options))
    for num_workers in range(1, 6):
        ranks = []
        for rank in range(world_size):
            loader = Loader(source, 8, rank=rank, world_size=world_size, **options)
            workers = [loader.batches(worker, every=num_workers) for worker in range(num_workers)]
            turns = itertools.cycle(workers)
            ranks.append([next(next(turns)) for _ in range(len(loader))])
            for worker in workers:
                worker.close()
        for step, batch in enumerate(expected):
            np.testing.assert_array_equal(np.concatenate([rank[step] for rank in ranks]), batch)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_run_is_restored_at_every_step(shuffle, prefetch):
    report = check_resume(
        lambda: Loader(
            Numbers(31, num_chunks=4),
            4,
            seed=2,
            shuffle=shuffle,
            window=2,
            epochs=3,
            prefetch=prefetch,
        ),
        max_state_bytes=1000,
    )
    assert (report.num_steps, report.ended) == (23, True)


def test_a_mixture_with_fields_and_skipped_steps_is_restored_at_every_step(corpus):
    mixture = Mixture(
        {"a": (corpus.blocks(8), 0.8), "b": (corpus.blocks(8, stride=5), 0.2)},
        schedule=[(20, {"b": 0.0}), (36, {"b": 3.0})],
        on_exhausted="remove",
    )
    report = check_resume(
        lambda: Loader(mixture, 4, seed=0, fields=["tokens", "segment_ids"], skip=[(3, 5)])
    )
    assert report.ended


def resumed(arguments):
    """Runs in another process: the rest of a run, from a state as JSON."""
    state, rank, world_size, num_workers, prefetch = arguments
    loader = Loader(
        Numbers(77, num_chunks=5),
        12,
        seed=4,
        epochs=3,
        rank=rank,
        world_size=world_size,
        prefetch=prefetch,
    )
    loader.load_state_dict(json.loads(state))
    workers = [loader.batches(loader.step + w, every=num_workers) for w in range(num_workers)]
    turns = itertools.cycle(workers)
    return [next(next(turns)) for _ in range(len(loader) - loader.step)]


@pytest.mark.parametrize("stop", [0, 1, 6, 7, 12, 18])
def test_a_run_goes_on_in_other_processes_at_another_number_of_ranks_and_workers(stop):
    loader = Loader(Numbers(77, num_chunks=5), 12, seed=4, epochs=3)
    expected = list(loader)
    loader = Loader(Numbers(77, num_chunks=5), 12, seed=4, epochs=3)
    first = list(itertools.islice(loader, stop))
    state = json.dumps(loader.state_dict())
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        ranks = pool.map(resumed, [(state, rank, 3, 2, rank) for rank in range(3)])
    rest = [np.concatenate(rows) for rows in zip(*ranks, strict=True)]
    np.testing.assert_array_equal(np.concatenate([*first, *rest]), np.concatenate(expected))


def test_the_state_tells_what_was_served_and_not_what_was_read_ahead():
    loader = Loader(Numbers(1000), 10, seed=0, prefetch=3)
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    assert (loader.step, loader.position) == (7, 70)
    assert loader.state_dict()["position"] == 70
    iterator.close()
    assert loader.position == 70


def test_a_loop_that_was_left_goes_on_and_a_finished_run_begins_anew():
    loader = Loader(Numbers(40), 4, seed=0, epochs=1)
    expected = numbers(Loader(Numbers(40), 4, seed=0, epochs=1))
    first = numbers(itertools.islice(loader, 3))
    assert first + numbers(loader) == expected
    assert numbers(loader) == expected


def test_a_finished_iterator_stays_finished():
    iterator = iter(Loader(Numbers(8), 4, seed=0, epochs=1))
    assert len(list(iterator)) == 2
    assert list(iterator) == []


def test_a_new_iterator_closes_the_one_before():
    loader = Loader(Numbers(40), 4, seed=0, epochs=1)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert list(first) == []
    assert len(list(second)) == 9


@pytest.mark.parametrize(("remainder", "num_steps"), [("drop", 2), ("pad", 3)], ids=["drop", "pad"])
def test_the_last_rows_are_dropped_or_padded(remainder, num_steps):
    loader = Loader(Numbers(10), 4, seed=0, epochs=1, remainder=remainder)
    assert len(loader) == len(list(loader)) == num_steps


def test_padding_counts_each_block_once_on_every_number_of_ranks():
    served, rows = [], 0
    for rank in range(8):
        loader = Loader(
            Numbers(100), 32, seed=1, epochs=1, remainder="pad", rank=rank, world_size=8
        )
        batches = list(loader)
        assert len(batches) == len(loader) == 4
        for batch in batches:
            assert batch["tokens"].shape == (4, 4)
            assert not batch["tokens"][~batch["mask"]].any()
            served += batch["tokens"][batch["mask"]][:, 0].tolist()
            rows += int(batch["mask"].sum())
    assert rows == 100
    assert sorted(served) == list(range(100))


def test_rows_of_fill_have_no_documents(corpus):
    loader = Loader(
        corpus.blocks(8),
        16,
        seed=0,
        epochs=1,
        remainder="pad",
        fields=["document_starts", "segment_ids", "positions", "loss_mask"],
    )
    last = list(loader)[-1]
    fill = ~last["mask"]
    assert fill.any()
    assert (last["document_starts"][fill] == 8).all()
    for field in ("segment_ids", "positions", "loss_mask"):
        assert not last[field][fill].any()


def test_a_remainder_can_be_an_error():
    with pytest.raises(ArgumentError, match="2 are left over") as caught:
        Loader(Numbers(10), 4, seed=0, epochs=1, remainder="error")
    assert (caught.value.name, caught.value.value) == ("remainder", 2)
    assert len(Loader(Numbers(12), 4, seed=0, epochs=1, remainder="error")) == 3


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_fields_agree_with_a_slow_reading_of_the_documents(corpus, shuffle):
    blocks = corpus.blocks(8)
    loader = Loader(
        blocks,
        4,
        seed=3,
        shuffle=shuffle,
        window=2,
        epochs=1,
        fields=["tokens", "document_starts", "segment_ids", "positions"],
    )
    starts = set(corpus.document_starts(0, corpus.num_tokens).tolist())
    for step, batch in enumerate(loader):
        for row, origin in enumerate(loader.locate(step)):
            first = origin.block * 8
            segments, positions = [], []
            for token in range(first, first + 8):
                begins = token == first or token in starts
                segments.append((segments[-1] if segments else 0) + begins)
                positions.append(0 if begins else positions[-1] + 1)
            np.testing.assert_array_equal(batch["tokens"][row], corpus.tokens(first, first + 8))
            assert batch["segment_ids"][row].tolist() == segments
            assert batch["positions"][row].tolist() == positions
            begins = [index for index, position in enumerate(positions) if position == 0]
            padded = batch["document_starts"][row].tolist()
            assert padded == begins + [8] * (len(padded) - len(begins))


def test_a_row_is_located_by_file_offset_and_documents(corpus):
    loader = Loader(corpus.blocks(8), 4, seed=0, epochs=1)
    for step in range(len(loader)):
        batch = loader.batch_at(step)
        for row, origin in enumerate(loader.locate(step)):
            file = packcore.open([origin.file])
            stop = min(origin.offset + 8, file.num_tokens)
            begun = file.tokens(origin.offset, stop)
            np.testing.assert_array_equal(begun, batch[row][: len(begun)])
            text = np.concatenate([corpus.document(d) for d in origin.documents]).tolist()
            assert str(batch[row].tolist())[1:-1] in str(text)
            assert (origin.source, origin.epoch) == ("data", 0)


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_batch_at_is_pure_and_agrees_with_iterating(corpus, remainder):
    def make():
        fields = ["tokens", "document_starts", "positions", "loss_mask"]
        return Loader(corpus.blocks(8), 4, seed=7, epochs=2, fields=fields, remainder=remainder)

    expected = list(make())
    loader = make()
    for step in np.random.default_rng(0).permutation(len(expected)).tolist():
        got = loader.batch_at(step)
        assert got.keys() == expected[step].keys()
        for field in got:
            np.testing.assert_array_equal(got[field], expected[step][field])
    assert loader.position == 0


def test_skipped_steps_are_left_out_and_the_others_unchanged():
    source = Numbers(40)
    whole = list(Loader(source, 4, seed=0, epochs=1))
    loader = Loader(source, 4, seed=0, epochs=1, skip=[(8, 10), range(2, 4), (3, 5), (6, 6)])
    assert len(loader) == 5
    assert numbers(loader) == numbers(whole[step] for step in (0, 1, 5, 6, 7))


@pytest.mark.parametrize(
    ("dtype", "expected"), [(None, "uint16"), ("int32", "int32"), (np.int64, "int64")]
)
def test_tokens_come_in_the_dtype_that_was_asked_for(corpus, dtype, expected):
    loader = Loader(corpus.blocks(8), 4, seed=0, dtype=dtype)
    batch = next(iter(loader))
    assert batch.dtype == expected
    np.testing.assert_array_equal(batch, Loader(corpus.blocks(8), 4, seed=0).batch_at(0))


def test_a_batch_that_was_handed_out_is_never_written_again():
    loader = Loader(Numbers(500), 5, seed=0, epochs=4, prefetch=2)
    kept = [(batch, batch.copy()) for batch in loader]
    assert all((batch == copy).all() for batch, copy in kept)


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.01, 10), min_size=4, max_size=4),
    batch=st.integers(1, 9),
    stop=st.integers(0, 200),
    seed=st.integers(0, 2**63 - 1),
)
@settings(max_examples=60)
def test_changing_weights_in_mid_run_loses_and_repeats_nothing(sizes, weights, batch, stop, seed):
    if not any(sizes):
        return
    sources = {f"s{i}": (Numbers(n, first=1000 * i), weights[i]) for i, n in enumerate(sizes)}
    mixture = Mixture(sources, on_exhausted="remove")
    loader = Loader(mixture, batch, seed=seed, prefetch=0)
    first = list(itertools.islice(loader, stop))
    state = json.loads(json.dumps(loader.state_dict()))
    changed = mixture.reweight(loader.position, {"s0": 7.5})
    changed = changed.add(loader.position, "new", Numbers(20, first=9000), 1.0)
    following = Loader(changed, batch, seed=seed, prefetch=0, remainder="drop")
    following.load_state_dict(state)
    served = numbers(first) + numbers(following)
    everything = [1000 * i + k for i, n in enumerate(sizes) for k in range(n)]
    everything += [9000 + k for k in range(20)]
    assert len(served) == len(set(served))
    assert set(served) <= set(everything)
    assert len(served) == len(everything) // batch * batch


def test_the_state_brings_the_weights_that_the_restarted_script_does_not_know():
    sources = {"a": (Numbers(50), 1.0), "b": (Numbers(50, first=100), 1.0)}
    changed = Mixture(sources).reweight(20, {"b": 5.0})
    loader = Loader(changed, 4, seed=0)
    list(itertools.islice(loader, 7))
    restarted = Loader(Mixture(sources), 4, seed=0)
    restarted.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert restarted.mixture.weights == changed.weights
    np.testing.assert_array_equal(restarted.batch_at(7), loader.batch_at(7))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 1}, "seed"),
        ({"shuffle": None}, "shuffle"),
        ({"shuffle": "window"}, "shuffle"),
        ({"source": Numbers(100, first=1)}, "fingerprint"),
        ({"source": Numbers(100, block_size=5)}, "block_size"),
        ({"source": Mixture({"other": (Numbers(100), 1.0)})}, "fingerprint"),
        ({"global_batch_size": 7}, "global_batch_size"),
    ],
    ids=["seed", "no shuffle", "window", "data", "block size", "names", "batch"],
)
def test_a_state_of_something_else_is_refused_by_the_field(change, field):
    options = {"source": Numbers(100), "global_batch_size": 4, "seed": 0}
    loader = Loader(**options)
    list(itertools.islice(loader, 3))
    with pytest.raises(StateError) as caught:
        Loader(**{**options, **change}).load_state_dict(loader.state_dict())
    assert caught.value.field == field
    assert field in str(caught.value)


def test_a_change_that_began_early_belongs_to_the_past():
    sources = {"a": (Numbers(10), 1.0), "b": (Numbers(50, first=100), 0.0)}
    mixture = Mixture(sources, on_exhausted="remove")
    loader = Loader(mixture.reweight(30, {"b": 1.0}), 5, seed=0)
    assert min(numbers(itertools.islice(loader, 3))[10:]) >= 100  # all of a ran out at 10
    other = Loader(mixture.reweight(40, {"b": 1.0}), 5, seed=0)
    with pytest.raises(StateError, match="weights"):
        other.load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    "change",
    [lambda mixture: mixture.reweight(10, {"a": 5.0}),
     lambda mixture: mixture.add(11, "c", Numbers(50, first=200), 3.0)],
    ids=["reweight", "add"],
)  # fmt: skip
def test_a_change_of_weights_in_the_past_is_refused(change):
    sources = {"a": (Numbers(50), 1.0), "b": (Numbers(50, first=100), 2.0)}
    loader = Loader(Mixture(sources), 4, seed=0)
    list(itertools.islice(loader, 3))
    other = Loader(change(Mixture(sources)), 4, seed=0)
    with pytest.raises(StateError, match="weights") as caught:
        other.load_state_dict(loader.state_dict())
    assert caught.value.field == "weights"
    assert other.step == 0


def test_the_same_sources_in_another_order_are_refused():
    sources = {"a": (Numbers(50), 1.0), "b": (Numbers(50, first=100), 2.0)}
    loader = Loader(Mixture(sources), 4, seed=0)
    list(itertools.islice(loader, 3))
    state = json.loads(json.dumps(loader.state_dict(), sort_keys=True))
    swapped = Loader(Mixture(dict(reversed(sources.items()))), 4, seed=0)
    with pytest.raises(StateError, match="sources") as caught:
        swapped.load_state_dict(state)
    assert caught.value.field == "sources"
    same = Loader(Mixture(sources), 4, seed=0)
    same.load_state_dict(state)
    np.testing.assert_array_equal(same.batch_at(3), loader.batch_at(3))


@pytest.mark.parametrize("method", ["batch_at", "locate"])
def test_a_step_that_int64_positions_cannot_count_is_refused(method):
    loader = Loader(Numbers(100), 4, seed=0)
    assert getattr(loader, method)(2**60 - 1) is not None
    for step in (2**60, 2**61, 2**70):
        with pytest.raises(ArgumentError, match=r"step must be in \[0, ") as caught:
            getattr(loader, method)(step)
        assert caught.value.name == "step"


def test_a_state_of_other_weights_is_refused():
    sources = {"a": (Numbers(50), 1.0), "b": (Numbers(50), 2.0)}
    loader = Loader(Mixture(sources), 4, seed=0)
    list(itertools.islice(loader, 3))
    other = Mixture({**sources, "a": (Numbers(50), 1.5)})
    with pytest.raises(StateError, match="weights") as caught:
        Loader(other, 4, seed=0).load_state_dict(loader.state_dict())
    assert caught.value.field == "weights"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("position", -1),
        ("position", 1.5),
        ("position", True),
        ("position", None),
        ("weights", []),
        ("weights", [[0]]),
        ("num_changes", 2),
        ("num_changes", None),
        ("position", 2**70),
        ("fingerprint", "x"),
        ("fingerprint", {}),
        ("sources", []),
        ("sources", None),
    ],
)
def test_a_damaged_state_is_refused_by_the_field_and_changes_nothing(field, value):
    loader = Loader(Numbers(100), 4, seed=0)
    list(itertools.islice(loader, 3))
    with pytest.raises(StateError) as caught:
        loader.load_state_dict({**loader.state_dict(), field: value})
    assert caught.value.field == field
    assert loader.step == 3


def test_a_state_that_is_no_dict_is_refused():
    with pytest.raises(ArgumentTypeError, match="must be a dict"):
        Loader(Numbers(100), 4, seed=0).load_state_dict([1, 2])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"global_batch_size": 0}, ArgumentError, "global_batch_size must be at least 1"),
        ({"global_batch_size": 2.0}, ArgumentTypeError, "must be an integer; got 2.0"),
        ({"global_batch_size": 2, "world_size": 3}, ArgumentError, "at least world_size, 3"),
        ({"rank": 1}, ArgumentError, r"rank must be in \[0, 0\]; got 1"),
        ({"seed": -1}, ArgumentError, "seed must be at least 0"),
        ({"seed": None}, ArgumentTypeError, "seed must be an integer"),
        ({"shuffle": "local"}, ArgumentError, "must be 'global', 'window' or None"),
        ({"shuffle": True}, ArgumentError, "must be 'global', 'window' or None"),
        ({"window": 0}, ArgumentError, "window must be at least 1"),
        ({"epochs": 0}, ArgumentError, "epochs must be at least 1"),
        ({"epochs": float("nan")}, ArgumentTypeError, "epochs must be an integer"),
        ({"remainder": "keep"}, ArgumentError, "one of 'drop', 'pad', 'error'"),
        ({"dtype": "int16"}, ArgumentError, "dtype must hold every id"),
        ({"dtype": "tokens"}, ArgumentError, "must be a NumPy dtype"),
        ({"fields": "tokens"}, ArgumentTypeError, "fields must be a list"),
        ({"fields": ["token"]}, ArgumentError, "fields must be one of 'tokens'"),
        ({"fields": ["positions"]}, ArgumentTypeError, "know no documents"),
        ({"prefetch": -1}, ArgumentError, r"prefetch must be in \[0, 1000\]; got -1 \(slabs\)"),
        ({"prefetch": 2**40}, ArgumentError, r"prefetch must be in \[0, 1000\]"),
        ({"epochs": 2**62}, ArgumentError, r"at most 2\^62 blocks, repeats included"),
        ({"skip": [(3, 2)]}, ArgumentError, "skip stop must be at least 3"),
        ({"skip": 3}, ArgumentTypeError, "skip must be a list"),
        ({"skip": [3]}, ArgumentTypeError, "pairs of steps"),
        ({"source": "corpus"}, ArgumentTypeError, "source must be blocks"),
        ({"source": Numbers(0)}, ArgumentError, "at least one block"),
        (
            {"source": Mixture({"a": (Numbers(4), 1)}), "epochs": 1},
            ArgumentError,
            "a mixture says max_epochs",
        ),
    ],
)
def test_a_wrong_argument_is_refused_at_construction(change, error, message):
    options = {"source": Numbers(10), "global_batch_size": 4, "seed": 0}
    with pytest.raises(error, match=message):
        Loader(**{**options, **change})


def test_an_endless_loader_has_no_length_and_needs_a_horizon_to_plan():
    loader = Loader(Numbers(10), 4, seed=0)
    with pytest.raises(TypeError, match="no end"):
        len(loader)
    with pytest.raises(ArgumentError, match="num_steps must be given"):
        loader.plan()


def test_a_step_past_the_end_is_refused():
    loader = Loader(Numbers(10), 4, seed=0, epochs=1)
    for ask in (loader.batch_at, loader.locate):
        with pytest.raises(ArgumentError, match=r"step must be in \[0, 1\]; got 2"):
            ask(2)


class Broken(Numbers):
    def gather(self, ids, out):
        if 17 in ids:
            raise OSError("the disk is gone")
        super().gather(ids, out)


def prefetch_threads():
    return [thread for thread in threading.enumerate() if "packcore" in thread.name]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_exception_while_reading_ahead_is_raised_in_the_loop_and_no_thread_is_left(prefetch):
    loader = Loader(Broken(40), 4, seed=0, shuffle=None, prefetch=prefetch)
    with pytest.raises(OSError, match="the disk is gone"):
        list(loader)
    assert prefetch_threads() == []


def interrupt_a_loop_over(loader):
    for _ in loader:
        raise KeyboardInterrupt


def test_leaving_a_loop_closing_and_ctrl_c_leave_no_thread():
    loader = Loader(Numbers(400), 4, seed=0)
    for _ in loader:
        break
    assert prefetch_threads() == []
    iterator = iter(loader)
    next(iterator)
    assert len(prefetch_threads()) == 1
    loader.close()
    assert prefetch_threads() == []
    with pytest.raises(KeyboardInterrupt):
        interrupt_a_loop_over(loader)
    assert prefetch_threads() == []


def test_a_loader_pickles_small_and_goes_on_where_it_stood(corpus):
    loader = Loader(corpus.blocks(8), 4, seed=0, epochs=1)
    next(iter(loader))
    data = pickle.dumps(loader)
    assert len(data) < 20_000
    restored = pickle.loads(data)
    assert restored.position == 4
    np.testing.assert_array_equal(np.concatenate(list(restored)), np.concatenate(list(loader)))


def test_ten_thousand_million_blocks_cost_no_memory_and_a_far_position_is_one_of_many():
    tracemalloc.start()
    loader = Loader(Numbers(10**10), 1000, seed=0)
    loader.load_state_dict({**loader.state_dict(), "position": 10**9})
    batch = next(iter(loader))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 * 2**20
    np.testing.assert_array_equal(batch, loader.batch_at(10**6))


class Warmed(Numbers):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.warmed = []

    def warm(self, chunks):
        self.warmed += chunks


def test_the_thread_warms_each_window_before_it_is_served_and_none_twice():
    source = Warmed(70, num_chunks=7, block_size=2**16)  # so large that each step is a slab
    for _ in Loader(source, 5, seed=3, shuffle="window", window=2, epochs=2, prefetch=1):
        pass
    order = Order("data", source.chunk_bounds, seed=3, shuffle="window", window=2)
    windows = [order.window_chunks(epoch, number) for epoch in (0, 1) for number in range(4)]
    # The window after the last one may or may not have been begun when the run ended.
    expected = list(itertools.chain.from_iterable(windows))
    assert source.warmed[: len(expected)] == expected


def test_without_a_thread_or_without_windows_nothing_is_warmed():
    source = Warmed(70, num_chunks=7)
    list(Loader(source, 5, seed=3, shuffle="window", window=2, epochs=1, prefetch=0))
    list(Loader(source, 5, seed=3, shuffle="global", epochs=1, prefetch=1))
    assert source.warmed == []


def test_the_plan_counts_what_is_served_dropped_repeated_skipped_and_padded():
    mixture = Mixture(
        {"a": (Numbers(30), 3.0), "b": (Numbers(10, first=100), 1.0), "none": (Numbers(0), 1.0)},
        max_epochs={"b": 2},
    )
    loader = Loader(mixture, 8, seed=0, world_size=2, skip=[(1, 3)])
    plan = loader.plan(12)
    drawn = numbers(batch[:, :1] for batch in map(Loader(mixture, 8, seed=0).batch_at, range(12)))
    skipped = drawn[8:24]
    for source, low, high in zip(plan.sources[:2], (0, 100), (100, 200), strict=True):
        count = sum(low <= number < high for number in drawn)
        left_out = sum(low <= number < high for number in skipped)
        assert source.blocks_served == count - left_out
        assert source.tokens_skipped == 4 * left_out
        assert source.tokens_repeated == 4 * max(0, count - source.num_blocks)
        assert source.tokens_dropped == 4 * max(0, source.num_blocks - count)
        assert source.epochs == pytest.approx(count / source.num_blocks)
    assert (plan.num_steps, plan.num_skipped_steps) == (10, 2)
    assert [rank.rows_per_step for rank in plan.ranks] == [4, 4]
    assert plan.tokens_served == 10 * 8 * 4 == sum(rank.tokens_served for rank in plan.ranks)
    assert "source b: " in str(plan)


def test_the_plan_of_a_padded_run_counts_the_fill_of_each_rank():
    options = {"seed": 0, "epochs": 1, "remainder": "pad", "world_size": 3}
    plan = Loader(Numbers(100), 9, **options).plan()
    masks = [Loader(Numbers(100), 9, rank=rank, **options) for rank in range(3)]
    fill = [sum(int((~batch["mask"]).sum()) for batch in loader) for loader in masks]
    assert [rank.tokens_padded for rank in plan.ranks] == [4 * rows for rows in fill]
    assert plan.tokens_served == 400


def test_sources_of_several_dtypes_are_served_in_one_that_holds_all(corpus, tmp_path):
    with packcore.PackedDatasetBuilder(tmp_path, "wide", 16, 0, "int32") as builder:
        builder.add_document(np.arange(64) + 100_000)
    wide = packcore.open(tmp_path).blocks(8)
    loader = Loader(Mixture({"a": (corpus.blocks(8), 1), "b": (wide, 1)}), 8, seed=0)
    batch = loader.batch_at(0)
    assert batch.dtype == np.int32
    for row, origin in zip(batch, loader.locate(0), strict=True):
        blocks = loader.mixture.blocks[origin.source]
        np.testing.assert_array_equal(row, blocks[origin.block])


def test_the_state_at_a_count_is_the_state_that_a_run_has_there():
    loader = Loader(Numbers(40), 4, seed=1, epochs=1, skip=[(2, 4), (9, 10)])
    states = [loader.state_dict()]
    states.extend(loader.state_dict() for _ in loader)
    assert [loader.state_at(count) for count in range(len(states))] == states
    assert [loader.served_step(count) for count in range(7)] == [0, 1, 4, 5, 6, 7, 8]
    with pytest.raises(ArgumentError, match=r"index must be at least 0; got -1 \(steps\)"):
        loader.state_at(-1)


@pytest.mark.parametrize("skip", [(), [(1, 3), (6, 7)]])
def test_seeking_leads_to_where_a_run_stands_that_has_served_as_much(skip):
    loader = Loader(Numbers(30), 3, seed=5, epochs=1, skip=skip)
    every = [numbers([batch]) for batch in loader]
    for count in reversed(range(len(every) + 1)):
        running = iter(loader)
        loader.seek(count)
        assert (loader.num_served, next(running, None)) == (count, None)
        assert loader.state_dict() == loader.state_at(count)
        assert [numbers([batch]) for batch in loader] == every[count:]
    with pytest.raises(ArgumentError, match="index must be at least 0; got -1"):
        loader.seek(-1)


def test_the_number_of_served_steps_begins_anew_after_the_end():
    loader = Loader(Numbers(12), 4, seed=1, epochs=1, skip=[(0, 1)])
    assert [loader.num_served, *(loader.num_served for _ in loader)] == [0, 1, 2]
    assert (loader.num_served, loader.step) == (0, 3)
    loader.load_state_dict(loader.state_dict())
    assert loader.num_served == 2


def test_the_loader_of_another_rank_is_as_if_made_for_it_and_independent():
    loader = Loader(Numbers(40), 8, seed=1, epochs=1)
    next(iter(loader))
    others = [loader.for_rank(rank=rank, world_size=3) for rank in range(3)]
    made = Loader(Numbers(40), 8, seed=1, epochs=1, rank=1, world_size=3)
    made.load_state_dict(loader.state_dict())
    assert [numbers(other) for other in others][1] == numbers(made)
    assert (loader.step, loader.world_size, others[1].rank, others[1].world_size) == (1, 1, 1, 3)
    with pytest.raises(ArgumentError, match=r"rank must be in \[0, 1\]; got 2"):
        loader.for_rank(rank=2, world_size=2)
