"""Replayed pairs as a fraction of the step, ``replay.share``.

One pass over new and replayed pairs equals three forward passes of each pair alone, summed and
divided by the labels and pairs of the whole step. The run does not depend on how a step is divided,
and a killed run resumes bit for bit.
"""

import functools

import pytest
import torch

from erjepa.datasets import Pair
from erjepa_recipe.lora_finetune_distributed_erjepa import (
    FinetuneRecipeERJEPA as Recipe,
)
from tests.harness.runs import (
    assert_close_logs,
    assert_resumes,
    kill_at_step,
    slots_of,
    small_config,
    train,
)
from tests.reference.three_forwards import reference_loss

SHARE = {
    **{"replay__share": 0.3, "replay__selection": "uniform", "replay__score": "lm"},
    **{"loss__jepa_weight": 0, "replay__capacity": 30, "batch_size": 8},
}
JEPA = {**SHARE, "loss__jepa_weight": 1.0, "replay__score": "jepa"}


def config(base, data, output_dir, **overrides):
    return small_config(base, data, output_dir, **{**SHARE, **overrides})


@pytest.mark.parametrize("settings", [SHARE, JEPA], ids=["token loss", "JEPA loss"])
def test_one_pass_equals_separate_forward_passes(
    base, data, tmp_path, monkeypatch, settings
):
    found, train_step = [], Recipe._train_step

    def noted(self, step):
        drawn = step.draw.segments
        ids = step.batches[0].example_ids.tolist()
        new = [self._prepared.dataset[i] for i in ids[: len(ids) - len(drawn)]]
        old = [Pair(-1, *segments) for segments in drawn]
        has_views = self._prepared.collators.new.views != "none"
        loss, lm, jepa = reference_loss(
            self._model.decoder,
            [*new, *old],
            views="shared" if has_views else "none",
            predictor_ids=self._prepared.collators.new.predictor_ids,
            predictor_rows=self._model.predictor if has_views else None,
        )
        trained = [p for p in self._model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
        metrics = train_step(self, step)
        expected = {"loss": loss.item(), "grad_norm": norm.item()}
        found.append(
            (len(new), len(old), {k: float(metrics[k]) for k in expected}, expected)
        )
        return metrics

    monkeypatch.setattr(Recipe, "_train_step", noted)
    cfg = config(base, data, tmp_path, **settings, epochs=1, clip_grad_norm=1e6)
    (steps,) = train(cfg, 1, lambda recipe: found)
    # 0.3 of 8 is 2.4 a step: the fractions add up. The memory is empty at first.
    assert [old for _, old, *_ in steps] == [0, 2, 3, 2, 3, 2, 2, 3]
    assert [new for new, *_ in steps] == [6, 6, 5, 6, 5, 6, 6, 4]
    for *_, mine, expected in steps:
        assert mine == pytest.approx(expected, rel=1e-4)


def test_every_cut_gives_the_same_run(base, data, tmp_path):
    def run(cut):
        ranks, batch_size, accumulation = cut
        output_dir = tmp_path / "_".join(map(str, cut))
        cfg = config(
            base,
            data,
            output_dir,
            **{"batch_size": batch_size, "gradient_accumulation_steps": accumulation},
            **{"stop__steps": 5, "replay__draw_by": "origin"},
        )
        return output_dir, train(cfg, ranks, slots_of)

    expected, (memory,) = run((1, 8, 1))
    for cut in ((2, 4, 1), (2, 1, 4), (1, 4, 2)):
        output_dir, memories = run(cut)
        assert_close_logs(output_dir, expected)
        for mine in memories:
            for name in ("example_ids", "replay_counts"):
                assert torch.equal(mine[name], memory[name])


def test_a_killed_run_resumes_bit_for_bit(base, data, tmp_path):
    settings = {"save_every_n_steps": 3, "stop__steps": 6}
    run = functools.partial(config, base, data, **settings)
    assert_resumes(run, tmp_path, kill_at_step(5))


def test_every_step_of_a_share_replays(base, data, tmp_path):
    cfg = config(base, data, tmp_path, **{**JEPA, "loss__jepa_every": 2})
    with pytest.raises(ValueError, match="jepa_every=2 leaves steps without replay"):
        train(cfg)
