"""Layout, mask and packing against their definitions, token by token."""

from array import array

import pytest

from erjepa.datasets import Pair
from erjepa.packing import (
    PADDING,
    PairCollator,
    attention_area,
    dense_mask,
    lay_out,
)
from tests.models_for_tests import PREDICTOR_IDS, random_pairs

PAIR = Pair(
    7,
    source=array("i", [1, 10, 11]),
    bridge=array("i", [2, 3]),
    target=array("i", [20, 21, 4]),
    source_view=array("i", [1, 11]),
    target_view=array("i", [1, 20, 21]),
)


def test_shared_layout_by_hand():
    batch = PairCollator(predictor_ids=[94, 95], pad_id=9, row_length=16)([PAIR])
    #  S S S Q Q A A A P P T T T
    assert batch.tokens.tolist() == [
        [1, 10, 11, 2, 3, 20, 21, 4, 94, 95, 1, 20, 21, 9, 9, 9]
    ]
    assert batch.input_pos.tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 7, 3, 4, 0, 1, 2, 0, 0, 0]
    ]
    assert batch.label_pos.tolist() == [4, 5, 6]
    assert batch.labels.tolist() == [20, 21, 4]
    assert batch.source_pos.tolist() == [2]
    assert batch.predicted_pos.tolist() == [9]
    assert batch.predictor_pos.tolist() == [[8, 9]]
    assert batch.target_pos.tolist() == [12]
    assert batch.document[0, -3:].tolist() == [PADDING] * 3
    rows = [
        "".join("x" if sees else "." for sees in row)
        for row in dense_mask(batch.document, batch.branch)[0, :13, :13].tolist()
    ]
    assert rows == [
        "x............",
        "xx...........",
        "xxx..........",
        "xxxx.........",
        "xxxxx........",
        "xxxxxx.......",
        "xxxxxxx......",
        "xxxxxxxx.....",
        "xxx.....x....",
        "xxx.....xx...",
        "..........x..",
        "..........xx.",
        "..........xxx",
    ]
    assert batch.num_tokens == 13
    assert batch.attention_area == sum(row.count("x") for row in rows)


def test_standalone_layout_by_hand():
    batch = PairCollator(views="standalone", predictor_ids=[94])([PAIR])
    assert batch.tokens.tolist() == [[1, 10, 11, 2, 3, 20, 21, 4, 1, 11, 94, 1, 20, 21]]
    assert batch.input_pos.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 0, 1, 2]]
    assert batch.source_pos.tolist() == [9]
    assert batch.predicted_pos.tolist() == [10]
    assert batch.target_pos.tolist() == [13]
    mask = dense_mask(batch.document, batch.branch)[0]
    assert not mask[8:11, :8].any() and not mask[11:, :11].any()
    assert mask[10, 8:11].all() and mask[7, :8].all()


def test_without_predictor_tokens_the_source_is_the_prediction():
    batch = PairCollator()([PAIR])
    assert batch.predicted_pos.tolist() == batch.source_pos.tolist() == [2]
    assert batch.predictor_pos.numel() == 0


def test_train_on_input_predicts_the_source_too():
    batch = PairCollator(train_on_input=True)([PAIR])
    assert batch.label_pos.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert batch.labels.tolist() == [10, 11, 2, 3, 20, 21, 4]


@pytest.mark.parametrize("views", ["shared", "standalone", "none"])
@pytest.mark.parametrize("row_length", [None, 128])
def test_rows_keep_every_token_and_the_mask_its_area(views, row_length):
    pairs = random_pairs(23)
    collator = PairCollator(
        views=views, predictor_ids=PREDICTOR_IDS, row_length=row_length
    )
    batch = collator(pairs)
    lengths = [collator.length(pair) for pair in pairs]
    assert batch.num_tokens == sum(lengths) == (batch.document != PADDING).sum()
    assert batch.example_ids.tolist() == [pair.example_id for pair in pairs]
    mask = dense_mask(batch.document, batch.branch)
    real = batch.document != PADDING
    assert batch.attention_area == mask[real].sum()
    assert batch.attention_area == sum(
        attention_area(lay_out(pair, views, collator.predictor_ids)) for pair in pairs
    )
    flat = batch.tokens.flatten()
    if views != "none":
        assert flat[batch.target_pos].tolist() == [p.target_view[-1] for p in pairs]
        source = "source" if views == "shared" else "source_view"
        assert flat[batch.source_pos].tolist() == [
            getattr(p, source)[-1] for p in pairs
        ]
        assert flat[batch.predictor_pos].tolist() == [PREDICTOR_IDS] * len(pairs)
    assert flat[batch.label_pos + 1].tolist() == batch.labels.tolist()
    assert batch.labels.tolist() == [t for pair in pairs for t in pair.target]


def test_a_pair_longer_than_a_row_is_an_error():
    with pytest.raises(ValueError, match="example 7 takes 11 tokens"):
        PairCollator(row_length=10)([PAIR])
    with pytest.raises(ValueError, match="views=both"):
        PairCollator(views="both")([PAIR])
