"""The adaptive weight: values worked by hand, its bounds, saving and loading."""

import pytest
import torch

from erjepa.replay import EpisodicReplay, ReplayBatch, ReplaySettings
from erjepa.replay.state import NoAddresses, WeightState
from erjepa.replay.weight import ReplayWeight


def test_by_hand():
    weight = ReplayWeight("auto", 0.25, 4.0)
    assert weight.value == 1.0
    weight.update(2.0, 3.0)
    assert weight.value == 1.5
    weight.update(1.0, 5.0)  # means 1.9 and 3.2
    assert weight.value == pytest.approx(3.2 / 1.9)
    for _ in range(100):
        weight.update(1.0, 9.0)
    assert weight.value == 4.0
    for _ in range(100):
        weight.update(9.0, 0.0)
    assert weight.value == 0.25


def test_edges():
    assert ReplayWeight("auto", 2.0, 4.0).value == 2.0  # nothing replayed yet
    assert ReplayWeight(0.5, 2.0, 4.0).value == 0.5  # bounds are those of auto
    weight = ReplayWeight("auto", 0.25, 4.0)
    weight.update(0.0, 0.0)
    assert weight.value == 1.0


def make(**settings):
    settings = ReplaySettings(capacity=4, **settings)
    return EpisodicReplay(settings, embed_dim=8, seed=1)


def test_it_is_saved_and_goes_on():
    replay, fixed = make(weight="auto"), make(weight=0.5)
    assert fixed.state.weight is None and fixed.weight == 0.5
    assert replay.state.weight == WeightState(None)
    batch, nothing = ReplayBatch([3], [([1], [2])], [0]), ReplayBatch([], [], [])
    for one in (replay, fixed):
        one.adapt_weight(batch, torch.tensor(0.3), torch.tensor(0.4))
        one.adapt_weight(nothing, torch.tensor(9.0), torch.tensor(0.0))
    assert fixed.weight == 0.5
    assert replay.weight == pytest.approx(4 / 3)
    other = make(weight="auto")
    other.restore(replay.state, replay.tensors())
    for one in (replay, other):
        one.adapt_weight(batch, torch.tensor(0.7), torch.tensor(0.1))
    assert other.weight == replay.weight != pytest.approx(4 / 3)
    fixed.restore(replay.state, replay.tensors())
    assert fixed.weight == 0.5


def test_a_memory_without_addresses():
    settings = {"selection": "hard", "score": "lm", "address": "none", "budget": 2}
    replay, ids = make(**settings), torch.arange(3)
    segments, none = [([i], [i, i]) for i in range(3)], torch.zeros(0, 8)
    assert replay.encode(none) is None
    replay.write(ids, segments, None, torch.tensor([1.0, 3.0, 2.0]))
    assert replay.draw(torch.tensor([9]), segments[:1], None).slots == [1, 2]
    assert replay.state.memory.addresses == NoAddresses()
    other = make(**settings)
    other.restore(replay.state, replay.tensors())
    assert other.draw(torch.tensor([1]), segments[:1], None).slots == [2, 0]
    with pytest.raises(ValueError, match="replay.address is sparse, but .* with none"):
        make(selection="hard").restore(replay.state, replay.tensors())
    hard = make(selection="hard")
    make(**settings).restore(hard.state, hard.tensors())


def test_a_rate_of_one_follows_the_newest_error():
    replay = make(selection="hard", score_update_rate=1)
    segments = [([1], [2])]
    addresses = replay.encode(torch.ones(1, 8))
    replay.write(torch.tensor([0]), segments, addresses, torch.tensor([5.0]))
    replay.refresh(replay.draw(torch.tensor([1]), segments, addresses), torch.ones(1))
    assert replay.memory.scores.tolist() == [1.0]
