"""The end of turn is a label of new pairs, of replayed pairs, of both, or of none."""

import pytest

from tests.harness.runs import small_config, train, watch_forwards


def labels_of_passes(base, data, output_dir, monkeypatch, **overrides):
    """Of every pass of a run: pairs, and labels that are an end of turn."""
    seen = watch_forwards(monkeypatch)
    cfg = small_config(base, data, output_dir, stop__steps=3, **overrides)
    ((end, seen),) = train(
        cfg, 1, lambda recipe: (recipe._prepared.dataset[0].target[-1], seen)
    )
    return [(batch.num_pairs, int((batch.labels == end).sum())) for batch in seen]


@pytest.mark.parametrize("choice", ["all", "new", "replay", "none"])
def test_paths_with_the_end_of_turn(base, data, tmp_path, monkeypatch, choice):
    passes = labels_of_passes(
        base, data, tmp_path, monkeypatch, train_end_of_turn=choice
    )
    new, replayed = passes[0::2], passes[1::2]
    assert [pairs for pairs, _ in new] == [4, 4, 4] and replayed[1][0] > 0
    in_new, in_replay = choice in ("all", "new"), choice in ("all", "replay")
    assert all(ends == pairs * in_new for pairs, ends in new)
    assert all(ends == pairs * in_replay for pairs, ends in replayed)
