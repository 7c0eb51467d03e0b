"""The metrics of a log that a line of results contains."""

from erjepa.studies.grid.output import last_metrics


def test_means_of_the_last_fifty_steps_that_logged_a_metric(tmp_path):
    log = tmp_path / "metrics.txt"
    lines = [
        f"Step {step} | lm_loss:{step} tokens_per_second_per_gpu:9 "
        for step in range(1, 101)
    ]
    lines[59] += "rankme:3.0 "  # on steps with a JEPA loss alone
    lines[79] += "rankme:5.0 "
    lines[9] += "rankme:99.0 "
    log.write_text("\n".join(lines) + "\n")
    assert last_metrics(log, 80) == {"lm_loss": 55.5, "rankme": 4.0}
    assert last_metrics(log, 3) == {"lm_loss": 2.0}
    assert last_metrics(tmp_path / "none.txt", 80) == {}


def test_means_of_replay_are_of_steps_that_replayed(tmp_path):
    log = tmp_path / "metrics.txt"
    step = "Step {} | replayed:{} replay_lm_loss:{} lm_loss:1.0 "
    lines = [step.format(i, *(4, 2.0 * i) if i % 2 else (0, 0.0)) for i in range(1, 5)]
    log.write_text("\n".join(lines) + "\n")
    assert last_metrics(log, 4) == {
        "replayed": 2.0,
        "replay_lm_loss": 4.0,
        "lm_loss": 1.0,
    }
    log.write_text(step.format(1, 0, 0.0) + "\n")
    assert last_metrics(log, 1) == {
        "replayed": 0.0,
        "replay_lm_loss": 0.0,
        "lm_loss": 1.0,
    }


def test_a_metric_is_kept_without_being_named(tmp_path):
    log = tmp_path / "metrics.txt"
    log.write_text("Step 1 | cosine_gap:0.5 total_flops:7.0 peak_memory_active:3.0 \n")
    assert last_metrics(log, 1) == {"cosine_gap": 0.5}
