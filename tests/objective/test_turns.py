"""Next-token loss on every assistant turn, ``train_on_turns=all``.

The reference renders each chat turn by turn, runs a forward pass per chat, and takes the
cross-entropy of the tokens that each assistant turn adds. Packed rows of all chats must equal it to
1e-5, for every pair, view and gradient.
"""

import pytest
import torch
import torch.nn.functional as F
from torchtune.data import Message

from erjepa.datasets import paired_dataset
from erjepa.objective.decoder import PackedDecoder
from erjepa.objective.loss import JEPALoss
from erjepa.packing import PairCollator
from tests.harness.data import write_jsonl
from tests.harness.models import small_decoder
from tests.reference.three_forwards import hidden_states

CHATS = [
    [("user", "one"), ("assistant", "1")],
    [("system", "count"), ("user", "one"), ("assistant", "1"), ("user", "two")]
    + [("assistant", "22")],
    [("system", "count"), ("user", "one"), ("assistant", "1"), ("user", "three")]
    + [("assistant", "assistant 3"), ("user", "four"), ("assistant", "4444")],
]


@pytest.fixture
def dataset(tokenizer, tmp_path):
    rows = [
        {"messages": [{"role": r, "content": c} for r, c in chat]} for chat in CHATS
    ]
    file = write_jsonl(tmp_path / "chats.jsonl", rows)
    return paired_dataset(tokenizer, source=file)


def slow_turns(tokenizer, chat, end_of_turn=True):
    """The tokens of a chat, and the places of those that turns of the assistant add."""

    def rendered(*turns):
        messages = [Message(role=role, content=content) for role, content in turns]
        return tokenizer({"messages": messages})["tokens"][:-1]  # the end of text

    places = []
    for i, (role, _) in enumerate(chat):
        if role == "assistant":
            turn = rendered(*chat[: i + 1])
            assert rendered(*chat)[: len(turn)] == turn
            # An empty content leaves the header and the end of turn.
            first = len(rendered(*chat[:i], ("assistant", ""))) - 1
            places += range(first, len(turn) - (not end_of_turn))
    return rendered(*chat), places


@pytest.mark.parametrize("views", ["none", "shared", "standalone"])
@pytest.mark.parametrize("end_of_turn", [True, False])
def test_losses_are_those_of_chats_on_their_own(tokenizer, dataset, views, end_of_turn):
    decoder = small_decoder(vocab_size=300)
    weights = [p for p in decoder.parameters() if p.requires_grad]
    expected = []
    for chat in CHATS:
        tokens, places = slow_turns(tokenizer, chat, end_of_turn)
        logits = decoder.output(hidden_states(decoder, tokens, {}))
        labels = torch.tensor(tokens)[places]
        before = [place - 1 for place in places]
        expected.append(F.cross_entropy(logits[before], labels, reduction="sum"))
    reference = torch.autograd.grad(sum(expected), weights)

    collator = PairCollator(
        views=views,
        predictor_ids=[299],
        train_on_turns="all",
        train_end_of_turn=end_of_turn,
    )
    batch = collator(list(dataset.pairs))
    loss, lm = JEPALoss(jepa_weight=0.0)(PackedDecoder(decoder)(batch), batch, 1, 1)
    torch.testing.assert_close(lm, torch.stack(expected), rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(torch.autograd.grad(loss, weights), reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_last_turn_alone_by_default(dataset):
    batch = PairCollator(views="none")(list(dataset.pairs))
    assert batch.labels_of_pairs.tolist() == [len(p.target) for p in dataset.pairs]


def test_turns_that_are_not_found_are_named(dataset, monkeypatch):
    dataset.require_turns()
    *pairs, last = dataset.pairs
    monkeypatch.setattr(dataset, "pairs", [*pairs, last._replace(bridge=last.target)])
    with pytest.raises(
        ValueError, match="chats.jsonl:3: train_on_turns=all .* 2 .* finds 0"
    ):
        dataset.require_turns()
