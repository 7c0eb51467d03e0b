"""``tune run`` from another folder, with and without launchers."""

import json

import pytest
import torch

from erjepa.studies.grid.processes import failure_in
from tests.harness.data import REAL_DATA
from tests.harness.ranks import free_port
from tests.harness.runs import (
    assert_close_logs,
    finish,
    overrides_for,
    read_metrics,
    small_config,
    start_tune,
    train,
)


@pytest.mark.slow
def test_one_process_two_launchers_and_evaluation(base, data, tmp_path):
    """One process = two launchers of two ranks; then the evaluation recipe on two ranks."""
    config = ["--config", "llama3_2_1b_synth"]
    one = overrides_for(base, data, tmp_path / "one", batch_size=8, epochs=1)
    finish(start_tune("erjepa_recipe", *config, *one, cwd=tmp_path))

    both = overrides_for(base, data, tmp_path / "both", batch_size=2, epochs=1)
    launcher = ["--nnodes", 2, "--nproc_per_node", 2, "--rdzv_backend", "c10d"]
    launcher += ["--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--rdzv_id", "test"]
    nodes = [
        start_tune(*launcher, "erjepa_recipe", *config, *both, cwd=tmp_path)
        for _ in range(2)
    ]
    for node in nodes:
        finish(node)
    assert_close_logs(tmp_path / "both", tmp_path / "one")

    evaluated = [
        *both,
        "eval_dataset=erjepa.datasets.paired_dataset",
        f"eval_dataset.source={data}",
        "max_new_tokens=5",
        "eval_batch_size=8",
    ]
    results = {}
    for ranks, name in ((2, "epoch_0"), (1, "base")):
        only_base = f"base_only={name == 'base'}"
        finish(
            start_tune(
                *("--nproc_per_node", ranks, "erjepa_eval", *config),
                *(*evaluated, only_base),
                cwd=tmp_path,
            )
        )
        folder = tmp_path / "both" / "evaluation" / name
        results[name] = json.loads((folder / "summary.json").read_text())
        lines = (folder / "predictions.jsonl").read_text().splitlines()
        predictions = [json.loads(line) for line in lines]
        assert [p["id"] for p in predictions] == list(range(44))
        right = sum(p["output"].strip() == p["target"] for p in predictions)
        assert results[name]["accuracy"] == right / 44


@pytest.mark.slow
def test_resumed_on_ranks_with_hash_seeds_of_their_own(base, data, tmp_path):
    """Forked ranks, as in most tests, have the same one, and so the same order of sets."""
    settings = {"ema_decay": 0.9, "save_every_n_steps": 2, "epochs": 1}
    whole, part = tmp_path / "whole", tmp_path / "part"
    train(small_config(base, data, whole, **settings, stop__steps=4), 2)
    keys = overrides_for(base, data, part, **settings)
    command = ["--nproc_per_node", 2, "erjepa_recipe", "--config", "llama3_2_1b_synth"]
    for steps in (2, 4):
        more = [f"stop.steps={steps}", "resume_from_checkpoint=auto"]
        finish(start_tune(*command, *keys, *more, cwd=tmp_path))
    for file in ("adapter_model.pt", "ema/adapter_model.pt"):
        mine, expected = (
            torch.load(run / "epoch_0_step_4" / file, weights_only=True)
            for run in (part, whole)
        )
        assert mine.keys() == expected.keys()
        for name, weight in expected.items():
            torch.testing.assert_close(mine[name], weight, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_an_error_of_a_step_has_a_line_of_its_own(base, data, tmp_path):
    """Below the progress bar, so that the grid finds it in the log."""
    keys = overrides_for(base, data, tmp_path / "out", optimizer__lr=1e20)
    command = ["erjepa_recipe", "--config", "llama3_2_1b_synth", *keys]
    output, _ = start_tune(*command, cwd=tmp_path).communicate(timeout=400)
    log = tmp_path / "run.log"
    log.write_text(output)
    assert failure_in(log).startswith("erjepa_recipe: error: The loss is not finite")


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real NL-RX-SYNTH")
def test_real_pairs(base, tmp_path):
    """20 steps on the real file, on 2 ranks; the loss falls and the memory fills."""
    cfg = small_config(
        base,
        REAL_DATA / "nl_rx",
        tmp_path,
        dataset="erjepa.datasets.nl_rx_dataset",
        max_steps_per_epoch=20,
        epochs=1,
        batch_size=8,
        max_seq_len=1024,
        optimizer__lr=1e-2,
    )
    train(cfg, 2)
    metrics = read_metrics(tmp_path)
    assert [m["memory_size"] for m in metrics] == [16 * step for step in range(1, 21)]
    assert metrics[0]["replayed"] == 0
    assert all(8 < m["replayed"] <= 16 for m in metrics[1:])
    first, last = metrics[:5], metrics[-5:]
    assert sum(m["lm_loss"] for m in last) < 0.8 * sum(m["lm_loss"] for m in first)
