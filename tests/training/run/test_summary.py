"""The lines that a run prints about itself before it starts."""

import logging
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from erjepa.configs import load
from erjepa.objective import PackedDecoder
from erjepa.training.run import summary
from erjepa.training.run.progress import RunProgress
from tests.harness.models import small_decoder


@pytest.fixture
def said(monkeypatch, caplog):
    """The lines that are said of a config, by their first word."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    logging.getLogger(summary.__name__).propagate = True
    monkeypatch.setattr(summary, "replay_summary", "{1} pairs".format)

    def said(name, *overrides, steps=0):
        cfg = load(name, overrides)
        run, n = RunProgress(cfg.epochs, 500, cfg.stop), bool(steps)
        of_step = 4 * cfg.batch_size * cfg.gradient_accumulation_steps
        sampler = SimpleNamespace(num_examples=7900, examples_per_step=of_step)
        inherited = ["3 of b"] * n
        monkeypatch.setattr(summary, "inherited_summary", lambda *_: inherited)
        changed = "replay.capacity=9 (8 in a)" * n
        monkeypatch.setattr(summary, "changed_settings", lambda _: changed)
        of_new = None if steps else lambda *_: []  # a resumed run does not ask
        monkeypatch.setattr(summary, "forgetting_warnings", of_new)
        for _ in range(steps):
            run.count(tokens=1, flops=2)
            run.advance(0.1)
        with caplog.at_level(logging.INFO):
            summary.log_summary(
                cfg,
                PackedDecoder(small_decoder()),
                SimpleNamespace(sampler=sampler, held_out=range(100)),
                None,
                run,
                carried=["weights of a/epoch_0"] * n,
                device=torch.device("cpu"),
            )
        texts = (record.getMessage() for record in reversed(caplog.records))
        text = next(one for one in texts if one.startswith("This run:"))
        _, *lines = text.splitlines()
        return {line.split()[0]: line[12:] for line in lines}

    return said


def test_a_text_of_many_lines_takes_one(said):
    lines = said("tiny_synth", 'checkpointer.checkpoint_dir="a\\n  seed b\\e[31m"')
    assert "seed" not in lines and "a seed b?[31m, " in lines["model"]


def test_of_the_paper_s_setting(said):
    model = small_decoder()
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    assert said("llama3_2_1b_synth") == {
        "model": "lora_llama3_2_1b of meta-llama/Llama-3.2-1B-Instruct, "
        f"{sum(n for n, _ in sizes):,} parameters, bf16",
        "trained": "adapters of rank 512: "
        f"{sum(n for n, is_trained in sizes if is_trained):,} parameters, fp32",
        "data": "nl_rx_dataset(subset=synth, split=train): 7,900 pairs to train on, 100 to "
        "validate on",
        "steps": "3,000 of 16 pairs (4 x 1 accumulated x 4 ranks), 6 epochs of 500",
        "stop": "after the last epoch",
        "objective": "ER-JEPA: next-token loss (weight 1.0), JEPA loss (weight 1.0, 1 "
        "predictor tokens), content replay (weight 1.0, capacity 10000)",
        "replay": "16 pairs",
        "optimizer": "AdamW, lr 1e-05",
        "devices": "4 x cpu",
        "output": "/tmp/erjepa/llama3_2_1b_synth, with every key in "
        "torchtune_config.yaml",
    }


def test_of_other_settings(said):
    lines = said(
        "llama3_2_1b_synth_full",
        *("replay.weight=0", "loss.jepa_weight=0", "stop.flops=100", "stop.steps=90"),
        "gradient_accumulation_steps=2",
        "dataset=[{_component_: erjepa.datasets.paired_dataset, source: a.csv}]",
        steps=20,
    )
    assert lines["trained"].startswith("every weight: ")
    assert lines["data"].startswith("paired_dataset(source=a.csv): ")
    assert lines["steps"].startswith("50 of 32 pairs (4 x 2 accumulated x 4 ranks), ")
    assert lines["steps"].endswith("; resumes after step 20")
    assert lines["stop"] == "flops 100, steps 90"
    assert lines["objective"] == "SFT: next-token loss (weight 1.0)"
    assert lines["carried"] == "weights of a/epoch_0; 3 of b"
    assert lines["changed"] == "replay.capacity=9 (8 in a)"


@pytest.mark.parametrize("start", [None, "a"])
def test_a_first_run_has_nothing_to_replay(said, start):
    lines = said("tiny_continual", *[f"continue_from={start}"] * bool(start))
    loss = "next-token loss (weight 1.0)"
    replay = ", uniform replay (weight 1.0, capacity 10000)"
    expected = f"SFT with replay: {loss}{replay}" if start else f"SFT: {loss}"
    assert lines["objective"] == expected


def test_a_warmup_longer_than_the_run_is_a_warning(said, caplog):
    said("tiny_synth", "epochs=1", "lr_scheduler.num_warmup_steps=500")
    assert "num_warmup_steps=500, but the run has 500 steps:" in caplog.text
    assert "set fewer, such as 50" in caplog.text
    said("tiny_synth", "stop.steps=4", "lr_scheduler.num_warmup_steps=4")
    assert "num_warmup_steps=4, but the run has 4 steps:" in caplog.text
    caplog.clear()
    lines = said("tiny_synth", "epochs=1", "lr_scheduler.num_warmup_steps=499")
    assert lines["optimizer"].endswith(", after 499 warm-up steps")
    assert "num_warmup_steps" not in caplog.text


@pytest.mark.parametrize(
    ("overrides", "has_none"),
    [
        ("loss.jepa_weight=0 replay.weight=0", True),
        ("loss.jepa_weight=0 replay.score=lm", True),
        ("loss.jepa_weight=0", False),  # scores of the memory
        ("replay.weight=0", False),
    ],
)
def test_a_distance_without_effect_is_a_warning(said, caplog, overrides, has_none):
    said("llama3_2_1b_synth", "loss.distance=infonce", *overrides.split())
    assert ("loss.distance=infonce has no effect" in caplog.text) == has_none
    caplog.clear()
    said("llama3_2_1b_synth", *overrides.split())
    assert "no effect" not in caplog.text


def test_a_penalty_without_merged_adapters_is_a_warning(said, caplog):
    for overrides, has_none in (
        (["continue_from=a"], True),
        (["base_adapters=[a]"], False),
        ([], False),  # the first run of a chain
    ):
        caplog.clear()
        said("tiny_continual", "orthogonal_weight=0.5", *overrides)
        assert ("orthogonal_weight=0.5 has no effect" in caplog.text) == has_none


def test_a_run_that_has_ended_says_so(said, caplog):
    for limit, has_ended in ((20, True), (21, False)):
        caplog.clear()
        said("tiny_synth", f"stop.steps={limit}", steps=20)
        assert ("The run has already ended" in caplog.text) == has_ended
