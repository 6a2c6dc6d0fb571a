"""A loader's batches as tensors, from this process and from workers."""

import multiprocessing
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="packcore_torch needs PyTorch")

from torch.utils.data import DataLoader  # noqa: E402  # after the skip
from torch_runs import (  # noqa: E402
    IGNORED,
    as_lists,
    expected,
    global_batches,
    joined,
    make_loader,
    write_corpus,
)

import packcore  # noqa: E402
from packcore.errors import ArgumentError, ArgumentTypeError, StateError  # noqa: E402
from packcore.testing import check_resume  # noqa: E402
from packcore_torch import BatchDataset, BatchLoader  # noqa: E402

pytestmark = IGNORED

FIELDS = ("tokens", "document_starts", "segment_ids", "positions", "loss_mask")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def plain_loader(loader, **options):
    return DataLoader(BatchDataset(loader), batch_size=None, **options)


# --- The order -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [plain_loader, BatchLoader])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_the_stream_is_the_same_for_any_number_of_workers(corpus, kind, num_workers):
    assert as_lists(kind(make_loader(corpus), num_workers=num_workers)) == expected(corpus)


@pytest.mark.parametrize("num_steps", [1, 3, 4, 6])
def test_workers_that_have_less_to_do_or_nothing_neither_hang_nor_repeat(corpus, num_steps):
    size = 88 // num_steps
    got = as_lists(plain_loader(make_loader(corpus, global_batch_size=size), num_workers=4))
    assert got == expected(corpus, global_batch_size=size)
    assert len(got) == num_steps


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_rows_of_all_ranks_are_the_global_batch(corpus, num_workers):
    ranks = [
        as_lists(BatchLoader(make_loader(corpus, rank=rank, world_size=3), num_workers=num_workers))
        for rank in range(3)
    ]
    assert global_batches(ranks) == expected(corpus)


@pytest.mark.parametrize(
    "method", sorted({"spawn", "forkserver"} & set(multiprocessing.get_all_start_methods()))
)
def test_workers_start_in_every_way(corpus, method):
    loader = make_loader(corpus, skip=[(2, 5)])
    batches = BatchLoader(loader, num_workers=1, multiprocessing_context=method)
    whole = expected(corpus)
    assert as_lists(batches) == whole[:2] + whole[5:]


def test_epochs_are_shuffled_anew_without_set_epoch(corpus):
    batches = BatchLoader(make_loader(corpus, epochs=3), num_workers=2)
    rows = joined(as_lists(batches))
    passes = [rows[at : at + 88] for at in (0, 88, 176)]
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(passes[2])
    assert len({tuple(row) for row in passes[0]}) == 88


def test_a_mixture_is_served_alike(corpus):
    blocks = packcore.open(corpus).blocks(8)
    halves = {"a": (blocks[:40], 3.0), "b": (blocks[40:], 1.0)}
    mixture = packcore.Mixture(halves, on_exhausted="remove")
    loader = packcore.Loader(mixture, 8, seed=1)
    want = [loader.batch_at(step).tolist() for step in range(len(loader))]
    assert as_lists(BatchLoader(loader, num_workers=2)) == want


# --- What a batch is -----------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("dtype", [None, "int32", "int64", "uint16"])
def test_tokens_are_int64_whatever_is_stored_or_read(corpus, num_workers, dtype):
    batches = BatchLoader(make_loader(corpus, dtype=dtype), num_workers=num_workers)
    assert as_lists(batches) == expected(corpus)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_other_fields_keep_their_dtypes(corpus, num_workers):
    options = {"fields": FIELDS, "remainder": "pad", "global_batch_size": 9}
    got = list(BatchLoader(make_loader(corpus, **options), num_workers=num_workers))
    loader = make_loader(corpus, **options)
    assert len(got) == len(loader) == 10
    for step, batch in enumerate(got):
        assert type(batch) is dict
        want = loader.batch_at(step)
        assert list(batch) == list(want) == [*FIELDS, "mask"]
        for name, value in batch.items():
            assert type(value) is torch.Tensor
            dtype = np.int64 if name == "tokens" else want[name].dtype
            assert value.numpy().dtype == dtype
            np.testing.assert_array_equal(value.numpy(), want[name])


class Halves:
    """Blocks of float32 tokens."""

    dtype = np.dtype("float32")
    block_size = 4
    fingerprint = "halves"
    chunk_bounds = np.array([0, 12])

    def __len__(self):
        return 12

    def gather(self, ids, out):
        out[:] = ids[:, None] + 0.5


@pytest.mark.parametrize("num_workers", [0, 2])
def test_float_tokens_stay_what_they_are(num_workers):
    loader = packcore.Loader(Halves(), 4, seed=1, epochs=1)
    batches = list(BatchLoader(loader, num_workers=num_workers))
    assert {batch.dtype for batch in batches} == {torch.float32}
    assert sorted(torch.cat(batches)[:, 0].tolist()) == [number + 0.5 for number in range(12)]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("dtype", [None, "int64"])
def test_a_batch_may_be_written_to_and_the_next_does_not_know(corpus, num_workers, dtype):
    got = []
    for batch in BatchLoader(make_loader(corpus, dtype=dtype), num_workers=num_workers):
        got.append(batch.tolist())
        batch.fill_(-1)
    assert got == expected(corpus)


def inputs_and_targets(tokens):
    return tokens[:, :-1], tokens[:, 1:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_slices_made_by_a_collate_function_arrive_as_int64(corpus, num_workers):
    batches = BatchLoader(
        make_loader(corpus), num_workers=num_workers, collate_fn=inputs_and_targets
    )
    inputs, targets = zip(*batches, strict=True)
    want = expected(corpus)
    assert as_lists(inputs) == [[row[:-1] for row in batch] for batch in want]
    assert as_lists(targets) == [[row[1:] for row in batch] for batch in want]


def dtype_and_size(batch):
    return str(batch.dtype), len(ForkingPickler.dumps(batch))


def test_a_batch_travels_in_the_dtype_that_is_stored(corpus):
    loader = make_loader(corpus, global_batch_size=88)
    ((dtype, num_bytes),) = BatchLoader(loader, num_workers=1, collate_fn=dtype_and_size)
    assert dtype == "torch.uint16"
    assert 88 * 8 * 2 < num_bytes < 88 * 8 * 2 + 200


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_transform_is_given_arrays_and_its_words_arrive(corpus, num_workers):
    make = packcore.trainers.olmo_core_batch
    loader = make_loader(corpus, fields=["tokens", "document_starts"])
    got = list(BatchLoader(loader, transform=make, num_workers=num_workers))
    for step, batch in enumerate(got):
        want = make(loader.batch_at(step))
        assert batch["max_doc_lens"] == want["max_doc_lens"]
        assert batch["input_ids"].tolist() == want["input_ids"].tolist()
        assert batch["label_mask"].dtype == torch.bool
    assert len(got) == 11


class RaiseAtOnce:
    def __call__(self, batch):
        raise ValueError(f"no use for {batch.shape}")


def test_an_error_here_arrives_in_the_loop(corpus):
    batches = iter(BatchLoader(make_loader(corpus), transform=RaiseAtOnce()))
    with pytest.raises(ValueError, match=r"no use for \(8, 8\)"):
        next(batches)


def test_an_error_in_a_worker_arrives_in_the_loop(corpus):
    batches = plain_loader(make_loader(corpus), num_workers=2)
    batches.dataset.transform = RaiseAtOnce()
    running = iter(batches)
    with pytest.raises(ValueError, match=r"no use for \(8, 8\)"):
        next(running)
    running._shutdown_workers()  # left to the garbage collector, torch waits 10 s for them


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_pinned_memory_changes_nothing_else(corpus, num_workers):
    batches = list(BatchLoader(make_loader(corpus), num_workers=num_workers, pin_memory=True))
    assert as_lists(batches) == expected(corpus)
    assert all(batch.is_pinned() for batch in batches) == torch.accelerator.is_available()


# --- Lengths -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_asking_for_the_length_brings_no_warning(corpus, num_workers):
    for kind in (plain_loader, BatchLoader):
        batches = kind(make_loader(corpus), num_workers=num_workers)
        assert len(batches) == len(list(batches)) == 11


def test_an_endless_run_has_no_length_and_goes_on(corpus):
    batches = BatchLoader(make_loader(corpus, epochs=None), num_workers=2)
    with pytest.raises(TypeError, match="This loader has no end"):
        len(batches)
    many = [batch for _, batch in zip(range(30), batches, strict=False)]
    assert as_lists(many[:11]) == expected(corpus)


# --- Moving and resuming -------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_begins_where_its_loader_stands_and_does_not_move_it(corpus, num_workers):
    loader = make_loader(corpus)
    batches = plain_loader(loader, num_workers=num_workers)
    for start in (0, 4, 11):
        loader.seek(start)
        assert as_lists(batches) == as_lists(batches) == expected(corpus)[start:]
        assert loader.num_served == start


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_a_batch_loader_tells_what_was_handed_over_and_not_what_is_ahead(corpus, num_workers):
    loader = make_loader(corpus, skip=[(1, 3)])
    batches = BatchLoader(loader, num_workers=num_workers, **ahead(num_workers))
    for count, _ in enumerate(batches, 1):
        assert batches.state_dict() == loader.state_dict() == loader.state_at(count)
        assert loader.num_served == count


def ahead(num_workers):
    return {"prefetch_factor": 4} if num_workers else {}


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_a_batch_loader_resumes_at_every_step(corpus, num_workers):
    def make():
        loader = make_loader(corpus, global_batch_size=29)
        return BatchLoader(loader, num_workers=num_workers, **ahead(num_workers))

    report = check_resume(make, max_state_bytes=400, num_chained=2)
    assert (report.num_steps, report.ended) == (3, True)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loop_that_was_left_is_taken_up_and_a_finished_run_begins_anew(corpus, persistent):
    batches = BatchLoader(make_loader(corpus), num_workers=2, persistent_workers=persistent)
    got = []
    for batch in batches:
        got.append(batch)
        if len(got) == 5:
            break
    got.extend(batches)
    assert as_lists(got) == as_lists(batches) == as_lists(batches) == expected(corpus)


def workers_of(batches):
    return [worker.pid for worker in batches._iterator._workers]


def test_persistent_workers_go_on_from_pass_to_pass(corpus):
    batches = BatchLoader(make_loader(corpus), num_workers=2, persistent_workers=True)
    assert as_lists(batches) == expected(corpus)
    first = workers_of(batches)
    assert as_lists(batches) == expected(corpus)
    assert workers_of(batches) == first


def test_persistent_workers_follow_a_loaded_state(corpus):
    batches = BatchLoader(make_loader(corpus), num_workers=2, persistent_workers=True)
    assert as_lists(batches) == expected(corpus)
    for start in (7, 0, 11):
        batches.load_state_dict(batches.loader.state_at(start))
        assert as_lists(batches) == expected(corpus)[start:]
    assert as_lists(batches) == expected(corpus)


def test_a_new_loop_ends_the_one_before(corpus):
    batches = BatchLoader(make_loader(corpus), num_workers=2)
    first = iter(batches)
    next(first)
    second = iter(batches)
    assert next(first, None) is None
    assert as_lists(second) == expected(corpus)[1:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loading_a_state_ends_the_running_loop(corpus, num_workers):
    batches = BatchLoader(make_loader(corpus), num_workers=num_workers)
    running = iter(batches)
    next(running)
    batches.load_state_dict(batches.loader.state_at(4))
    assert next(running, None) is None
    assert as_lists(batches) == expected(corpus)[4:]


def test_workers_take_over_the_weights_that_a_state_brings(corpus):
    blocks = packcore.open(corpus).blocks(8)

    def make(schedule=()):
        halves = {"a": (blocks[:40], 1.0), "b": (blocks[40:], 1.0)}
        return packcore.Loader(packcore.Mixture(halves, schedule=schedule), 8, seed=1)

    changed = make([(32, {"b": 0.0})])
    want = [changed.batch_at(step).tolist() for step in range(12)]
    batches = BatchLoader(make(), num_workers=2, persistent_workers=True)
    next(iter(batches))
    batches.load_state_dict(changed.state_at(0))
    got = [batch for _, batch in zip(range(12), batches, strict=False)]
    assert as_lists(got) == want


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_goes_on_at_another_number_of_ranks_and_workers(corpus, ranks, num_workers):
    whole = expected(corpus)
    saved = BatchLoader(make_loader(corpus, rank=1, world_size=2), num_workers=1)
    for batch in saved:
        if batch.tolist() == whole[6][4:]:
            break
    parts = []
    for rank in range(ranks):
        loader = make_loader(corpus, rank=rank, world_size=ranks)
        batches = BatchLoader(loader, num_workers=num_workers)
        batches.load_state_dict(saved.state_dict())
        parts.append(as_lists(batches))
    assert global_batches(parts) == whole[7:]


def test_a_state_of_another_seed_is_refused(corpus):
    batches = BatchLoader(make_loader(corpus))
    with pytest.raises(StateError, match="its seed is 4, here it is 3") as caught:
        batches.load_state_dict(make_loader(corpus, seed=4).state_dict())
    assert caught.value.field == "seed"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_iterating_draws_nothing_from_torchs_random_numbers(corpus, num_workers):
    before = torch.get_rng_state()
    assert len(list(BatchLoader(make_loader(corpus), num_workers=num_workers))) == 11
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"in_order": False, "num_workers": 2}])
def test_options_that_would_change_the_order_are_refused(corpus, options):
    with pytest.raises(ArgumentError, match="batch_size and in_order must be left out"):
        BatchLoader(make_loader(corpus), **options)
    with pytest.raises(ValueError, match="IterableDataset"):
        BatchLoader(make_loader(corpus), shuffle=True)


@pytest.mark.parametrize("make", [BatchDataset, BatchLoader])
def test_what_is_no_loader_is_refused_with_the_way(corpus, make):
    for junk in (None, 5, "loader", packcore.open(corpus).blocks(8)):
        with pytest.raises(
            ArgumentTypeError, match=r"loader must be a packcore\.Loader; got .*seed="
        ):
            make(junk)


def test_a_tensor_keeps_the_memory_of_its_batch(corpus):
    loader = make_loader(corpus, prefetch=2, dtype="int64")
    expected = [batch.copy() for batch in loader]
    kept = [torch.from_numpy(batch)[1:] for batch in loader]  # the batches themselves are gone
    for tensor, batch in zip(kept, expected, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), batch[1:])
