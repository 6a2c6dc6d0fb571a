"""Each trainer's batch written out by hand, and beside it a slow oracle over documents."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packcore
from packcore import trainers
from packcore.errors import ArgumentError, ArgumentTypeError

# Documents of 2, 3 and 1 tokens; one that fills its row; fill.
TOKENS = np.array([[10, 11, 20, 21, 22, 30], [40, 41, 42, 43, 44, 45], [0] * 6], np.uint16)
STARTS = np.array([[0, 2, 5], [0, 6, 6], [6, 6, 6]], np.int32)
BATCH = {"tokens": TOKENS, "document_starts": STARTS, "mask": np.array([True, True, False])}

CONVERTERS = [getattr(trainers, name) for name in trainers.__all__]


def described(made):
    """dtype and shape of each array; the type of what is none."""
    return {
        key: (str(value.dtype), value.shape) if isinstance(value, np.ndarray) else type(value)
        for key, value in made.items()
    }


def test_megatrons_batch_by_hand():
    made = trainers.megatron_batch(BATCH)
    assert described(made) == {
        "tokens": ("int64", (3, 5)),
        "labels": ("int64", (3, 5)),
        "loss_mask": ("float32", (3, 5)),
        "position_ids": ("int64", (3, 5)),
        "cu_seqlens": ("int32", (3, 6)),
        "max_seqlen": ("int32", (3,)),
    }
    assert made["tokens"].tolist() == [[10, 11, 20, 21, 22], [40, 41, 42, 43, 44], [0] * 5]
    assert made["labels"].tolist() == [[11, 20, 21, 22, 30], [41, 42, 43, 44, 45], [0] * 5]
    assert made["loss_mask"].tolist() == [[1] * 5, [1] * 5, [0] * 5]
    assert made["position_ids"].tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert made["cu_seqlens"].tolist() == [[0, 2, 5, 5, 5, 5], [0, 5, 5, 5, 5, 5], [0] + [5] * 5]
    assert made["max_seqlen"].tolist() == [3, 5, 5]


def test_megatrons_loss_can_end_with_each_document():
    made = trainers.megatron_batch(BATCH, cross_documents=False)
    assert made["loss_mask"].tolist() == [[1, 0, 1, 1, 0], [1] * 5, [0] * 5]


def test_megatrons_lengths_fit_a_row_of_documents_of_one_token():
    batch = {"tokens": np.array([[1, 2, 3]]), "document_starts": np.array([[0, 1, 2, 3, 3, 3]])}
    made = trainers.megatron_batch(batch)
    assert made["cu_seqlens"].tolist() == [[0, 1, 2]]
    assert made["max_seqlen"].tolist() == [1]


def test_olmo_cores_batch_by_hand():
    made = trainers.olmo_core_batch(BATCH)
    assert described(made) == {
        "input_ids": ("int64", (3, 6)),
        "doc_lens": ("int32", (3, 3)),
        "max_doc_lens": list,
        "label_mask": ("bool", (3, 6)),
    }
    assert made["input_ids"].tolist() == TOKENS.tolist()
    assert made["doc_lens"].tolist() == [[2, 3, 1], [6, 0, 0], [6, 0, 0]]
    assert made["max_doc_lens"] == [3, 6, 6]
    assert all(type(longest) is int for longest in made["max_doc_lens"])
    assert made["label_mask"].astype(int).tolist() == [[0, 1, 1, 1, 1, 1]] * 2 + [[0] * 6]


def test_olmo_cores_labels_can_end_with_each_document():
    made = trainers.olmo_core_batch(BATCH, cross_documents=False)
    assert made["label_mask"].astype(int).tolist()[0] == [0, 1, 0, 1, 1, 0]


def test_torchtitans_batch_by_hand():
    made = trainers.torchtitan_batch(BATCH)
    assert described(made) == dict.fromkeys(("input", "positions", "labels"), ("int64", (3, 5)))
    assert made["input"].tolist() == [[10, 11, 20, 21, 22], [40, 41, 42, 43, 44], [0] * 5]
    assert made["positions"].tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert made["labels"].tolist() == [
        [11, -100, 21, 22, -100],
        [41, 42, 43, 44, 45],
        [-100] * 5,
    ]


def test_torchtitans_rows_can_be_flattened():
    made = trainers.torchtitan_batch(BATCH, flatten=True, cross_documents=True)
    assert described(made) == dict.fromkeys(("input", "positions", "labels"), ("int64", (15,)))
    assert made["labels"].tolist() == [11, 20, 21, 22, 30, 41, 42, 43, 44, 45] + [-100] * 5
    assert made["positions"].tolist() == [0, 1, 0, 1, 2] + [0, 1, 2, 3, 4] * 2


def test_hugging_faces_batch_by_hand():
    made = trainers.hugging_face_batch(BATCH, flash_attn_kwargs=True, seq_idx=True)
    assert described(made) == {
        "input_ids": ("int64", (1, 18)),
        "labels": ("int64", (1, 18)),
        "position_ids": ("int64", (1, 18)),
        "cu_seq_lens_q": ("int32", (6,)),
        "cu_seq_lens_k": ("int32", (6,)),
        "max_length_q": int,
        "max_length_k": int,
        "seq_idx": ("int32", (1, 18)),
    }
    assert made["input_ids"].tolist() == [TOKENS.ravel().tolist()]
    assert made["labels"].tolist() == [
        [-100, 11, -100, 21, 22, -100] + [-100, 41, 42, 43, 44, 45] + [-100] * 6
    ]
    assert made["position_ids"].tolist() == [[0, 1, 0, 1, 2, 0] + [0, 1, 2, 3, 4, 5] * 2]
    assert made["cu_seq_lens_q"].tolist() == [0, 2, 5, 6, 12, 18]
    assert made["cu_seq_lens_k"].tolist() == [0, 2, 5, 6, 12, 18]
    assert (made["max_length_q"], made["max_length_k"]) == (6, 6)
    assert made["seq_idx"].tolist() == [[0, 0, 1, 1, 1, 2] + [3] * 6 + [4] * 6]


def test_hugging_faces_rows_can_be_kept():
    made = trainers.hugging_face_batch(BATCH, flatten=False, cross_documents=True)
    assert described(made) == dict.fromkeys(
        ("input_ids", "labels", "position_ids"), ("int64", (3, 6))
    )
    assert made["labels"].tolist()[0] == [-100, 11, 20, 21, 22, 30]


@pytest.mark.parametrize("name", ["flash_attn_kwargs", "seq_idx"])
def test_lengths_over_all_rows_need_flattened_rows(name):
    with pytest.raises(ArgumentError, match=r"got flatten=False. Leave flatten at True") as caught:
        trainers.hugging_face_batch(BATCH, flatten=False, **{name: True})
    assert (caught.value.name, caught.value.value) == ("flatten", False)


def test_maxtexts_batch_by_hand():
    made = trainers.maxtext_batch(BATCH)
    names = ("inputs", "targets")
    keys = {f"{name}{suffix}" for name in names for suffix in ("", "_segmentation", "_position")}
    assert described(made) == dict.fromkeys(keys, ("int32", (3, 5)))
    assert made["inputs"].tolist() == [[10, 11, 20, 21, 22], [40, 41, 42, 43, 44], [0] * 5]
    assert made["targets"].tolist() == [[11, 20, 21, 22, 30], [41, 42, 43, 44, 45], [0] * 5]
    assert made["inputs_segmentation"].tolist() == [[1, 1, 2, 2, 2], [1] * 5, [0] * 5]
    assert made["targets_segmentation"].tolist() == [[1, 2, 2, 2, 3], [1] * 5, [0] * 5]
    assert made["inputs_position"].tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 3, 4], [0] * 5]
    assert made["targets_position"].tolist() == made["inputs_position"].tolist()


def test_maxtexts_loss_can_end_with_each_document():
    made = trainers.maxtext_batch(BATCH, cross_documents=False)
    assert made["inputs_segmentation"].tolist()[0] == [1, 1, 2, 2, 2]
    assert made["targets_segmentation"].tolist() == [[1, 0, 2, 2, 0], [1] * 5, [0] * 5]


def test_levanters_padding_is_a_segment_of_its_own():
    made = trainers.maxtext_batch(BATCH, cross_documents=False, padding_segment=-1)
    assert made["inputs_segmentation"].tolist() == [[1, 1, 2, 2, 2], [1] * 5, [-1] * 5]
    assert made["targets_segmentation"].tolist() == [[1, -1, 2, 2, -1], [1] * 5, [-1] * 5]
    assert made["inputs_position"].tolist()[2] == [0] * 5


@pytest.mark.parametrize("token", [0, 65535])
def test_no_id_is_taken_for_padding(token):
    batch = {"tokens": np.full((1, 4), token, np.uint16), "document_starts": np.array([[0]])}
    assert trainers.maxtext_batch(batch)["targets_segmentation"].tolist() == [[1, 1, 1]]
    assert trainers.megatron_batch(batch)["loss_mask"].tolist() == [[1, 1, 1]]
    assert trainers.torchtitan_batch(batch)["labels"].tolist() == [[token] * 3]
    assert trainers.hugging_face_batch(batch)["labels"].tolist() == [[-100] + [token] * 3]


@st.composite
def batches(draw, *, shortest=2):
    """A batch as the loader makes it, with the same as a list of rows of documents' tokens."""
    block_size = draw(st.integers(shortest, 9))
    drawn = draw(st.lists(st.none() | st.sets(st.integers(1, block_size - 1)), max_size=5))
    fill = [row is None for row in drawn]
    starts = [[] if row is None else [0, *sorted(row)] for row in drawn]
    width = max(map(len, starts), default=0) + draw(st.integers(0, 2)) or 1
    tokens = np.arange(len(drawn) * block_size).reshape(-1, block_size) % 7
    batch = {
        "tokens": tokens.astype(draw(st.sampled_from([np.uint16, np.int32, np.int64]))),
        "document_starts": np.array(
            [row + [block_size] * (width - len(row)) for row in starts], np.int32
        ).reshape(-1, width),
    }
    if draw(st.booleans()):
        batch["mask"] = ~np.array(fill, bool)
    rows = [
        [row[a:b] for a, b in pairwise([*edges, block_size])]
        for row, edges in zip(tokens.tolist(), starts, strict=True)
    ]
    return batch, rows


def targets(rows, *, cross_documents):
    """For each row, for each of its tokens but the last, the next one, or None."""
    for documents in rows:
        flat = [
            (token, index, position)
            for index, document in enumerate(documents)
            for position, token in enumerate(document)
        ]
        yield [token if position or cross_documents else None for token, _, position in flat[1:]]


@pytest.mark.parametrize("cross_documents", [False, True])
@given(batches())
def test_every_trainer_has_the_same_targets(cross_documents, drawn):
    batch, rows = drawn
    length = batch["tokens"].shape[1] - 1
    found = list(targets(rows, cross_documents=cross_documents))
    wanted = [
        [-100 if token is None else token for token in row] or [-100] * length for row in found
    ]
    option = {"cross_documents": cross_documents}

    torchtitan = trainers.torchtitan_batch(batch, **option)
    assert torchtitan["labels"].tolist() == wanted
    megatron = trainers.megatron_batch(batch, **option)
    assert np.where(megatron["loss_mask"] > 0, megatron["labels"], -100).tolist() == wanted
    maxtext = trainers.maxtext_batch(batch, **option)
    trained = maxtext["targets_segmentation"] != 0
    assert np.where(trained, maxtext["targets"], -100).tolist() == wanted
    levanter = trainers.maxtext_batch(batch, padding_segment=-1, **option)
    np.testing.assert_array_equal(levanter["targets_segmentation"] != -1, trained)
    olmo = trainers.olmo_core_batch(batch, **option)
    labels = np.where(olmo["label_mask"], olmo["input_ids"], -100)
    assert labels[:, 1:].tolist() == wanted
    hugging_face = trainers.hugging_face_batch(batch, flatten=False, **option)
    assert hugging_face["labels"][:, 1:].tolist() == wanted
    assert (hugging_face["labels"][:, :1] == -100).all()


@given(batches())
def test_every_trainer_sees_the_same_documents(drawn):
    batch, rows = drawn
    block_size = batch["tokens"].shape[1]
    lengths = [[len(document) for document in row] or [block_size] for row in rows]
    # Of L + 1 tokens, a trainer that is given the targets has L as inputs.
    cut = [[*row[:-1], row[-1] - 1] for row in lengths]
    cut = [[length for length in row if length] for row in cut]
    places = [[place for length in row for place in range(length)] for row in cut]

    megatron = trainers.megatron_batch(batch)
    found = [[n for n in np.diff(row).tolist() if n] for row in megatron["cu_seqlens"]]
    assert found == cut
    assert megatron["max_seqlen"].tolist() == [max(row) for row in cut]
    assert megatron["position_ids"].tolist() == places
    assert trainers.torchtitan_batch(batch)["positions"].tolist() == places

    olmo = trainers.olmo_core_batch(batch)
    assert [[n for n in row if n] for row in olmo["doc_lens"].tolist()] == lengths
    assert olmo["max_doc_lens"] == [max(row) for row in lengths]
    hugging_face = trainers.hugging_face_batch(batch, flash_attn_kwargs=True, seq_idx=True)
    flat = [length for row in lengths for length in row]
    assert np.diff(hugging_face["cu_seq_lens_q"]).tolist() == flat
    assert hugging_face["max_length_q"] == max(flat, default=0)
    assert hugging_face["position_ids"].tolist() == [[n for length in flat for n in range(length)]]
    assert hugging_face["seq_idx"].tolist() == [[i for i, n in enumerate(flat) for _ in range(n)]]

    maxtext = trainers.maxtext_batch(batch)
    real = [bool(row) for row in rows]
    numbers = [[i for i, n in enumerate(row, 1) for _ in range(n)] for row in cut]
    for row, is_real in enumerate(real):
        assert maxtext["inputs_segmentation"][row].tolist() == (
            numbers[row] if is_real else [0] * (block_size - 1)
        )
        assert maxtext["inputs_position"][row].tolist() == (
            places[row] if is_real else [0] * (block_size - 1)
        )


@pytest.mark.parametrize("convert", CONVERTERS)
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_a_result_is_no_view_of_the_batch_nor_of_another(convert, dtype):
    batch = {
        "tokens": TOKENS[:2].astype(dtype),
        "document_starts": STARTS[:2].copy(),
        "mask": np.array([True, True]),
    }
    for array in batch.values():
        array.flags.writeable = False
    arrays = [value for value in convert(batch).values() if isinstance(value, np.ndarray)]
    for index, array in enumerate(arrays):
        assert array.flags.c_contiguous
        assert array.flags.writeable
        for other in [*batch.values(), *arrays[:index]]:
            assert not np.shares_memory(array, other)


@pytest.mark.parametrize("convert", CONVERTERS)
def test_a_masked_row_is_fill_whatever_its_starts(convert):
    masked = {"tokens": TOKENS, "document_starts": np.array([[0, 2, 5], [0, 6, 6], [0, 3, 4]])}
    masked["mask"] = np.array([True, True, False])
    np.testing.assert_equal(convert(masked), convert(BATCH))


@pytest.mark.parametrize("convert", CONVERTERS)
def test_without_a_mask_a_row_without_starts_is_fill(convert):
    batch = {"tokens": TOKENS, "document_starts": STARTS}
    np.testing.assert_equal(convert(batch), convert(BATCH))


@pytest.mark.parametrize("convert", CONVERTERS)
def test_a_batch_lacking_a_field_is_refused(convert):
    with pytest.raises(ArgumentError, match=r"this one has tokens, mask. Ask the loader") as caught:
        convert({"tokens": TOKENS, "mask": BATCH["mask"]})
    assert (caught.value.name, caught.value.value) == ("batch", ["tokens", "mask"])


@pytest.mark.parametrize("convert", CONVERTERS)
@pytest.mark.parametrize(
    ("changed", "message", "name"),
    [
        ({"tokens": TOKENS[0]}, r"tokens must be 2-dim.* got uint16 of shape \(6,\)", "tokens"),
        ({"tokens": TOKENS * 1.0}, "tokens must be 2-dim.* got float64", "tokens"),
        ({"document_starts": STARTS[0]}, "document_starts must be 2-dim", "document_starts"),
        ({"document_starts": STARTS[:2]}, r"shapes \(3, 6\) and \(2, 3\)", "batch"),
        ({"document_starts": STARTS[:, :0]}, r"shapes \(3, 6\) and \(3, 0\)", "batch"),
        ({"tokens": TOKENS[:, :0]}, r"shapes \(3, 0\) and \(3, 3\)", "batch"),
        ({"document_starts": STARTS + 1}, "row 1 has", "document_starts"),
        ({"document_starts": np.array([[0, 1], [0, 0], [6, 6]])}, "row 1 has", "starts"),
        ({"mask": np.array([1, 1, 0])}, "mask must be one bool for each of 3 rows", "mask"),
        ({"mask": np.array([True])}, r"3 rows; got bool of shape \(1,\)", "mask"),
        ({"mask": np.array([True] * 3)}, "its mask must be False; row 2 has True", "mask"),
    ],
)
def test_a_batch_that_breaks_a_rule_is_refused_by_name(convert, changed, message, name):
    with pytest.raises(ArgumentError, match=message) as caught:
        convert(BATCH | changed)
    assert caught.value.name == name


@pytest.mark.parametrize("name", ["megatron_batch", "torchtitan_batch", "maxtext_batch"])
def test_a_trainer_that_is_given_the_targets_needs_two_tokens(name):
    batch = {"tokens": TOKENS[:, :1], "document_starts": np.zeros((3, 1), np.int32)}
    with pytest.raises(ArgumentError, match="tokens must have rows of at least 2"):
        getattr(trainers, name)(batch)


@pytest.mark.parametrize("convert", CONVERTERS)
@pytest.mark.parametrize("batch", [None, 5, [TOKENS, STARTS], TOKENS])
def test_a_batch_that_is_no_dict_is_refused_by_its_type(convert, batch):
    kind = type(batch).__name__
    with pytest.raises(
        ArgumentTypeError, match=f"A batch must be a dict .*; got {kind}. Ask"
    ) as one:
        convert(batch)
    assert one.value.name == "batch"
    with pytest.raises(ArgumentError, match=r"this one has nothing\. Ask the loader"):
        convert({})


@pytest.mark.parametrize("dtype", ["uint32", "int64", "uint64"])
def test_maxtexts_int32_refuses_larger_ids_and_takes_all_others(dtype):
    segments = {"segment_ids": np.ones((3, 6), np.int32), "positions": np.zeros((3, 6), np.int32)}
    for batch in (BATCH, BATCH | segments):
        tokens = TOKENS.astype(dtype)
        tokens[0, 3] = 2**31 - 1
        made = trainers.maxtext_batch(batch | {"tokens": tokens})
        assert made["inputs"].max() == 2**31 - 1
        tokens[1, 3] = 2**31
        with pytest.raises(ArgumentError, match=f"int32; the largest is {2**31}, the") as caught:
            trainers.maxtext_batch(batch | {"tokens": tokens})
        assert (caught.value.name, caught.value.value) == ("tokens", 2**31)


@pytest.mark.parametrize("name", ["tokens", "segment_ids", "positions"])
def test_maxtexts_int32_refuses_what_is_too_small_and_says_where(name):
    batch = {key: np.ones((3, 6), np.int64) for key in ("tokens", "segment_ids", "positions")}
    batch[name][2, 5] = -(2**40)
    with pytest.raises(
        ArgumentError, match=rf"{name} must be in .*smallest {-(2**40)}\."
    ) as caught:
        trainers.maxtext_batch(batch)
    assert (caught.value.name, caught.value.value) == (name, -(2**40))


@pytest.mark.parametrize("convert", CONVERTERS)
def test_no_id_is_wrapped_to_int64(convert):
    tokens = TOKENS.astype(np.uint64)
    tokens[0, 0] = 2**63
    with pytest.raises(ArgumentError, match=f"int64; the largest is {2**63}"):
        convert(BATCH | {"tokens": tokens})


@pytest.mark.parametrize("convert", CONVERTERS)
def test_a_batch_without_rows_is_converted(convert):
    made = convert({"tokens": TOKENS[:0], "document_starts": STARTS[:0]})
    assert all(not np.size(made[key]) for key in made if not key.startswith(("cu_", "max_len")))


def with_segments(batch):
    """The batch with the loader's segment_ids and positions in place of document_starts."""
    starts, block_size = batch["document_starts"], batch["tokens"].shape[1]
    others = {name: array for name, array in batch.items() if name != "document_starts"}
    return others | {
        "segment_ids": packcore.documents.segment_ids(starts, None, block_size),
        "positions": packcore.documents.positions(starts, None, block_size),
    }


@pytest.mark.parametrize("options", [{}, {"cross_documents": False}, {"padding_segment": -1}])
@given(batches())
def test_maxtexts_batch_is_the_same_from_segments_as_from_starts(options, drawn):
    batch, _ = drawn
    from_starts = trainers.maxtext_batch(batch, **options)
    from_segments = trainers.maxtext_batch(with_segments(batch), **options)
    for name, array in from_starts.items():
        np.testing.assert_array_equal(from_segments[name], array)


def test_a_mask_makes_rows_with_segments_fill():
    batch = with_segments(BATCH) | {"mask": np.array([True, False, False])}
    made = trainers.maxtext_batch(batch)
    assert made["inputs_segmentation"].any(axis=1).tolist() == [True, False, False]
    assert made["inputs_position"].any(axis=1).tolist() == [True, False, False]


def test_segments_of_another_shape_than_the_tokens_are_refused():
    batch = with_segments(BATCH)
    wrong = batch | {"positions": batch["positions"][:, 1:]}
    with pytest.raises(ArgumentError, match="must have the same rows, of at least 2; got the sha"):
        trainers.maxtext_batch(wrong)
