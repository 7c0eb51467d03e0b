"""Layout, mask and packing, checked token by token against their definitions."""

from array import array

import pytest
import torch

from erjepa.datasets import Pair
from erjepa.packing import PairCollator, dense_mask, lay_out
from tests.harness.models import PREDICTOR_IDS, VOCAB, related_pairs
from tests.reference.slow_tree import sees, slow_tree

PAIR = Pair(
    7,
    source=array("i", [1, 10, 11]),
    bridge=array("i", [2, 3]),
    target=array("i", [20, 21, 4]),
    source_view=array("i", [1, 11]),
    target_view=array("i", [1, 20, 21]),
)


def drawn(batch):
    return [
        "".join("x" if seen else "." for seen in row)
        for row in dense_mask(batch.end)[0].tolist()
    ]


def test_shared_layout_by_hand():
    batch = PairCollator(predictor_ids=[94, 95], pad_id=9, row_length=15)([PAIR])
    # Source of three, two predictor tokens and the rest of the chat after it; the target
    # alone begins with the same token.
    assert batch.tokens.tolist() == [
        [1, 10, 11, 94, 95, 2, 3, 20, 21, 4, 20, 21, 9, 9, 9]
    ]
    assert batch.input_pos.tolist() == [[0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 1, 2, 0, 0, 0]]
    assert batch.end.tolist() == [
        [12, 10, 10, 5, 5, 10, 10, 10, 10, 10, 12, 12, 13, 14, 15]
    ]
    assert batch.label_pos.tolist() == [6, 7, 8]
    assert batch.labels.tolist() == [20, 21, 4]
    assert batch.label_logit.tolist() == [0, 1, 2]
    assert batch.label_pair.tolist() == [0, 0, 0]
    assert batch.source_pos.tolist() == [2]
    assert batch.predicted_pos.tolist() == [[4]]
    assert batch.predictor_pos.tolist() == [3, 4]
    assert batch.predictor_index.tolist() == [0, 1]
    assert batch.target_pos.tolist() == [[11]]
    assert drawn(batch) == [
        "x..............",
        "xx.............",
        "xxx............",
        "xxxx...........",
        "xxxxx..........",
        "xxx..x.........",
        "xxx..xx........",
        "xxx..xxx.......",
        "xxx..xxxx......",
        "xxx..xxxxx.....",
        "x.........x....",
        "x.........xx...",
        "............x..",
        ".............x.",
        "..............x",
    ]
    assert batch.num_tokens == 12 and batch.num_projected == 3
    assert batch.attention_area == sum(row.count("x") for row in drawn(batch)[:12])


def test_two_pairs_by_hand():
    """One begins with the other's source, and has its target."""
    other = PAIR._replace(
        example_id=8,
        source=array("i", [1, 10, 11, 12]),
        target=array("i", [20, 22, 4]),
    )
    batch = PairCollator(predictor_ids=[94])([PAIR, other])
    assert batch.tokens.tolist() == [
        [1, 10, 11, 94, 2, 3, 20, 21, 4, 12, 94, 2, 3, 20, 22, 4, 20, 21]
    ]
    assert batch.source_pos.tolist() == [2, 9]
    assert batch.predicted_pos.tolist() == [[3, 10]]
    assert batch.target_pos.tolist() == [[17, 17]]
    assert batch.label_pos.tolist() == [5, 6, 7, 12, 13, 14]
    assert batch.label_pair.tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.example_ids.tolist() == [7, 8]


def test_equal_pairs_take_the_tokens_of_one():
    one, two = (PairCollator(predictor_ids=[94])([PAIR] * n) for n in (1, 2))
    assert two.tokens.tolist() == one.tokens.tolist()
    assert two.predictor_pos.tolist() == one.predictor_pos.tolist()
    assert two.source_pos.tolist() == one.source_pos.tolist() * 2
    assert two.label_pos.tolist() == one.label_pos.tolist()
    assert two.labels.tolist() == one.labels.tolist() * 2
    assert two.label_logit.tolist() == [0, 1, 2, 0, 1, 2]
    assert two.label_pair.tolist() == [0, 0, 0, 1, 1, 1]
    assert (two.num_labels, two.num_projected, two.num_pairs) == (6, 3, 2)


def test_standalone_layout_by_hand():
    batch = PairCollator(views="standalone", predictor_ids=[94])([PAIR])
    assert batch.tokens.tolist() == [[1, 10, 11, 2, 3, 20, 21, 4, 11, 94, 20, 21]]
    assert batch.input_pos.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 1, 2, 1, 2]]
    assert batch.source_pos.tolist() == [8]
    assert batch.predicted_pos.tolist() == [[9]]
    assert batch.target_pos.tolist() == [[11]]
    rows = drawn(batch)
    assert rows[7] == "xxxxxxxx...."
    assert rows[9] == "x.......xx.."
    assert rows[11] == "x.........xx"


def test_a_predictor_token_is_no_token_of_a_text():
    """Else a text that holds the reserved token would be read with the trained embedding."""
    pair = PAIR._replace(bridge=array("i", [94, 3]))
    batch = PairCollator(predictor_ids=[94])([pair])
    assert batch.tokens[0, 3:5].tolist() == [94, 94]
    assert batch.input_pos[0, 3:5].tolist() == [3, 3]
    assert batch.predictor_pos.tolist() == [3]


def test_without_predictor_tokens_the_source_is_the_prediction():
    batch = PairCollator()([PAIR])
    assert batch.predicted_pos.tolist() == [batch.source_pos.tolist()] == [[2]]
    assert batch.predictor_pos.numel() == 0


@pytest.mark.parametrize("views", ["shared", "standalone", "none"])
@pytest.mark.parametrize("row_length", [None, 128])
@pytest.mark.parametrize("seed", range(4))
def test_rows_hold_the_trees_of_their_pairs(views, row_length, seed):
    """Every token sees its ancestors, and each pair finds its paths."""
    pairs = related_pairs(23, seed)
    collator = PairCollator(
        views=views, predictor_ids=PREDICTOR_IDS, pad_id=VOCAB, row_length=row_length
    )
    batch = collator(pairs)
    assert batch.example_ids.tolist() == [pair.example_id for pair in pairs]
    mask, length = dense_mask(batch.end), batch.tokens.shape[1]
    predictors = dict(
        zip(batch.predictor_pos.tolist(), batch.predictor_index.tolist(), strict=True)
    )

    def path_to(position):
        """What the token at a flat position sees, itself last; predictors as in paths."""
        row, column = divmod(position, length)
        seen = mask[row, column].nonzero().flatten()
        assert batch.input_pos[row, seen].tolist() == list(range(len(seen)))
        return tuple(
            -1 - predictors[row * length + c]
            if row * length + c in predictors
            else batch.tokens[row, c].item()
            for c in seen.tolist()
        )

    nodes = []
    for row in range(len(batch.tokens)):
        used = (batch.tokens[row] != VOCAB).nonzero().flatten().tolist()
        assert used == list(range(len(used)))
        paths = [path_to(row * length + column) for column in used]
        assert paths == slow_tree(paths)  # depth-first, and no node twice
        for query in range(len(paths)):
            expected = [sees(paths[query], key) for key in paths]
            assert mask[row, query, : len(paths)].tolist() == expected
        for column in range(len(used), length):
            assert mask[row, column].nonzero().flatten().tolist() == [column]
        nodes += paths
    assert batch.num_tokens == len(nodes) <= sum(map(collator.length, pairs))
    assert batch.attention_area == sum(map(len, nodes))

    labels = iter(zip(batch.labels.tolist(), batch.label_logit.tolist(), strict=True))
    for i, pair in enumerate(pairs):
        k = len(collator.predictor_ids)
        paths = lay_out(pair, views, k)
        assert collator.length(pair) == len(slow_tree(path.tokens for path in paths))
        full = (*pair.source, *pair.bridge, *pair.target)
        for at in range(len(full) - len(pair.target), len(full)):
            token, logit = next(labels)
            assert path_to(batch.label_pos[logit].item()) == full[:at]
            assert token == full[at]
        if views != "none":
            source = tuple(pair.source if views == "shared" else pair.source_view)
            assert path_to(batch.source_pos[i].item()) == source
            predicted = (*source, *range(-1, -1 - k, -1))
            assert path_to(batch.predicted_pos[0, i].item()) == predicted
            assert path_to(batch.target_pos[0, i].item()) == tuple(pair.target_view)
    assert next(labels, None) is None
    assert batch.label_pair.tolist() == [
        i for i, pair in enumerate(pairs) for _ in pair.target
    ]
    assert len(set(batch.label_pos.tolist())) == batch.num_projected


def test_a_pair_longer_than_a_row_is_an_error():
    with pytest.raises(ValueError, match="example 7 takes 10 tokens"):
        PairCollator(row_length=9)([PAIR])
    assert PairCollator(row_length=10)([PAIR]).num_tokens == 10


def tokens_and_readouts(paths):
    return [(list(path.tokens), dict(path.readouts)) for path in paths[1:]]


def test_directions_by_hand():
    source, target = list(PAIR.source), list(PAIR.target_view)
    last_s, last_t = len(source) - 1, len(target) - 1
    back = lay_out(PAIR, "shared", 2, direction="target_to_source")
    assert tokens_and_readouts(back) == [
        (source, {"source": last_s, "target_0": last_s}),
        ([*target, -1, -2], {"predicted_0": last_t + 2}),
    ]
    both = lay_out(PAIR, "shared", 2, direction="both")
    assert tokens_and_readouts(both) == [
        (
            [*source, -1, -2],
            {"source": last_s, "predicted_0": last_s + 2, "target_1": last_s},
        ),
        ([*target, -1, -2], {"target_0": last_t, "predicted_1": last_t + 2}),
    ]


def test_predictor_tokens_in_front_by_hand():
    source, target = list(PAIR.source), list(PAIR.target_view)
    last_s, last_t = len(source) - 1, len(target) - 1
    front = lay_out(PAIR, "shared", 2, predictor_position="front")
    assert tokens_and_readouts(front) == [
        ([source[0], -1, -2, *source[1:]], {"predicted_0": last_s + 2}),
        (source, {"source": last_s}),
        (target, {"target_0": last_t}),
    ]


@pytest.mark.parametrize("views", ["shared", "spans"])
def test_a_collator_without_views_is_that_of_plain_training(views):
    pairs = related_pairs(9)
    kept = PairCollator(views=views, predictor_ids=PREDICTOR_IDS, row_length=128)
    plain = PairCollator(views="none", row_length=128)
    before = kept(pairs)
    mine, expected = kept.without_views()(pairs), plain(pairs)
    for name in ("tokens", "end", "labels", "label_pos", "source_pos", "steps"):
        assert torch.equal(getattr(mine, name), getattr(expected, name)), name
    assert torch.equal(kept(pairs).tokens, before.tokens)
