"""Replay scored by token loss, and an adaptive replay weight.

Scores equal the cross-entropy per label of a forward pass of the pair alone; steps that read no
view have the tokens of SFT; ranks and resuming change nothing; beta follows its equation.
"""

import functools
import math

import pytest
import torch

from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS, read_visits
from erjepa.checkpoints.stored_memory import open_memory
from erjepa.commands.memory import main as read_memory
from erjepa.datasets import Pair
from erjepa.replay.weight import ReplayWeight
from tests.harness.runs import (
    assert_close_logs,
    assert_resumes,
    kill_at_step,
    read_metrics,
    slots_of,
    small_config,
    train,
    watch_forwards,
)
from tests.reference.three_forwards import reference_loss

LM = {
    **{"replay__score": "lm", "replay__selection": "prioritized"},
    **{"loss__jepa_weight": 0, "replay__capacity": 30, "replay__budget": 6},
}


def run(base, data, output_dir, ranks=1, inspect=None, **overrides):
    settings = {"batch_size": 8 // ranks, "stop__steps": 4, **LM, **overrides}
    cfg = small_config(base, data, output_dir, **settings)
    return train(cfg, ranks, inspect)[0]


def token_loss(decoder, pair):
    """Cross-entropy a label of one pair, in a forward pass of its own."""
    with torch.no_grad():
        options = {"views": "none", "predictor_ids": [], "predictor_rows": []}
        return reference_loss(decoder, [pair], **options)[1].item()


def test_scores_are_those_of_the_pairs_and_no_view_is_computed(
    base, data, tmp_path, monkeypatch
):
    """With a rate of learning of 0, so that the model at the end is that of every step."""
    seen = watch_forwards(monkeypatch)

    def found(recipe):
        decoder, memory = recipe._model.decoder.eval(), recipe._memory.replay.memory
        pairs = [Pair(0, *cut) for cut in memory.segments(range(len(memory)))]
        scores = memory.scores.tolist(), memory.replay_counts.tolist()
        return [token_loss(decoder, pair) for pair in pairs], scores, seen

    settings = {"optimizer__lr": 0.0, "log_example_errors": True, "stop__steps": 3}
    expected, (scores, counts), seen = run(base, data, tmp_path, 1, found, **settings)
    assert scores == pytest.approx(expected, rel=1e-5) and max(counts) > 0
    assert len(set(scores)) == len(scores) == 24
    assert all(batch.num_views == 0 for batch in seen)
    metrics = read_metrics(tmp_path)
    assert metrics[-1]["replayed"] == 6 and "jepa_loss" not in metrics[-1]
    assert metrics[-1]["replay_lm_loss"] > 0 == metrics[-1]["replay_jepa_loss"]
    # No addresses: what reads the memory does without them.
    assert not open_memory(tmp_path).has_addresses
    read_memory([str(tmp_path)])
    with pytest.raises(SystemExit):
        read_memory([str(tmp_path), "--neighbors", "0"])


@pytest.mark.parametrize("end_of_turn", ["all", "none"])
def test_errors_of_examples_are_of_all_their_labels(base, data, tmp_path, end_of_turn):
    """At every visit that of the memory, where the model stays as it is."""

    def scores(recipe):
        memory = recipe._memory.replay.memory
        ids = memory.example_ids.tolist()
        return dict(zip(ids, memory.scores.tolist(), strict=True))

    settings = {"optimizer__lr": 0.0, "log_example_errors": True, "stop__steps": 3}
    settings |= {"train_on_input": True, "train_end_of_turn": end_of_turn}
    of_example = run(base, data, tmp_path, 1, scores, **settings)
    visits = list(read_visits(tmp_path / EXAMPLE_ERRORS).itertuples())
    assert sum(visit.replayed for visit in visits) == 12
    for visit in visits:
        assert visit.lm_loss == pytest.approx(of_example[visit.example], rel=1e-5)


@pytest.mark.parametrize(
    ("more", "new", "replayed"),
    [
        ({"replay__selection": "content"}, 8, 0),
        ({"loss__jepa_weight": 1.0, "replay__views": False}, 8, 0),
        ({"loss__jepa_weight": 1.0}, 8, 6),
        ({"replay__score": "jepa"}, 8, 6),
    ],
)
def test_views_where_something_reads_them(
    base, data, tmp_path, monkeypatch, more, new, replayed
):
    seen = watch_forwards(monkeypatch)
    more = {"stop__steps": 2, **more}
    passes = run(base, data, tmp_path, 1, lambda recipe: seen, **more)
    assert [(batch.num_pairs, batch.num_views) for batch in passes] == [
        (8, new),
        (0, 0),
        (8, new),
        (6, replayed),
    ]
    assert math.isfinite(read_metrics(tmp_path)[-1]["replay_jepa_loss"])
    assert open_memory(tmp_path).has_addresses


def test_content_rests_on_steps_without_views(base, data, tmp_path, monkeypatch):
    seen = watch_forwards(monkeypatch)
    more = {"replay__selection": "content", "loss__jepa_every": 2, "stop__steps": 3}
    passes = run(base, data, tmp_path, 1, lambda recipe: seen, **more)
    found = [(batch.num_pairs, batch.num_views) for batch in passes]
    assert found == [(8, 8), (0, 0), (8, 0), (8, 8), (6, 0)]
    assert [step["memory_size"] for step in read_metrics(tmp_path)] == [8, 8, 16]


def test_a_step_costs_the_tokens_of_sft(base, data, tmp_path, monkeypatch):
    seen = watch_forwards(monkeypatch)

    def take(output_dir, **overrides):
        passes = run(base, data, output_dir, 1, lambda recipe: seen, **overrides)
        return [(batch.num_pairs, batch.num_tokens) for batch in passes]

    uniform = {"replay__budget": "null", "replay__selection": "uniform"}
    passes = take(tmp_path / "lm", **uniform)
    sft = take(tmp_path / "sft", replay__weight=0)
    assert passes[0::2] == sft  # the new pairs
    per_pair = sum(tokens for _, tokens in sft) / sum(n for n, _ in sft)
    for pairs, tokens in passes[3::2]:
        assert pairs == 8 and tokens / pairs < 1.25 * per_pair


@pytest.mark.parametrize("weight", [1.0, "auto"])
@pytest.mark.slow
def test_ranks_and_kills_change_nothing(base, data, tmp_path, weight):
    settings = {"replay__weight": weight, "stop__steps": 6, "batch_size": 8}
    settings = {**LM, **settings, "save_every_n_steps": 2}
    cfg = functools.partial(small_config, base, data, **settings)
    one = assert_resumes(cfg, tmp_path, kill_at_step(5))["memory"]
    two = train(cfg(tmp_path / "two", batch_size=4), 2, slots_of)[0]
    for name in ("example_ids", "replay_counts"):
        assert torch.equal(one[name], two[name])
    torch.testing.assert_close(one["scores"], two["scores"], rtol=1e-4, atol=1e-6)
    names = {
        "loss",
        "grad_norm",
        "lm_loss",
        "replay_lm_loss",
        "replayed",
        "replay_weight",
    }
    assert_close_logs(tmp_path / "two", tmp_path / "whole", names, absolute=0)
    for step in read_metrics(tmp_path / "whole"):
        assert ("replay_weight" in step) == (weight == "auto")
    if weight == "auto":
        weights = ReplayWeight("auto", 0.25, 4.0)
        for metrics in read_metrics(tmp_path / "whole"):
            assert metrics["replay_weight"] == pytest.approx(weights.value, rel=1e-5)
            total = metrics["lm_loss"]
            if metrics["replayed"]:
                total += metrics["replay_weight"] * metrics["replay_lm_loss"]
                weights.update(metrics["lm_loss"], metrics["replay_lm_loss"])
            assert metrics["loss"] == pytest.approx(total, rel=1e-5)
        assert weights.value not in (1.0, 0.25, 4.0)
