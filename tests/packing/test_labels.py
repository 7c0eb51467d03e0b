"""Which tokens of a pair are labels."""

from array import array

import pytest

from erjepa.datasets import Pair
from erjepa.packing import PairCollator

END = 9  # of a turn
PAIR = Pair(
    0,
    source=array("i", [1, 2, END, 3, 4]),  # a system prompt, ended, and a question
    bridge=array("i", [END, 5]),
    target=array("i", [6, 7, END]),
    source_view=array("i", [1, 3, 4]),
    target_view=array("i", [1, 6, 7]),
)


@pytest.mark.parametrize(
    ("train_on_input", "train_end_of_turn", "labels"),
    [
        (False, True, [6, 7, END]),
        (False, False, [6, 7]),
        (True, True, [2, END, 3, 4, END, 5, 6, 7, END]),
        (True, False, [2, 3, 4, 5, 6, 7]),  # LLM-JEPA's code
    ],
)
@pytest.mark.parametrize("views", ["shared", "standalone", "none"])
def test_labels(views, train_on_input, train_end_of_turn, labels):
    collator = PairCollator(
        views=views,
        train_on_input=train_on_input,
        train_end_of_turn=train_end_of_turn,
    )
    batch = collator([PAIR])
    assert batch.labels.tolist() == labels
    assert batch.labels_of_pairs.tolist() == [len(labels)]
    full = [*PAIR.source, *PAIR.bridge, *PAIR.target]
    # Each is predicted where the token before it stands.
    before = batch.tokens.flatten()[batch.label_pos].tolist()
    places = [i for i in range(1, len(full)) if full[i] != END or train_end_of_turn]
    places = [i for i in places if train_on_input or i >= len(full) - 3]
    assert before == [full[i - 1] for i in places]
