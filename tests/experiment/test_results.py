"""What a line of results keeps of a log."""

from erjepa.experiment.results import last_metrics


def test_means_of_the_last_fifty_steps_that_logged_a_metric(tmp_path):
    log = tmp_path / "metrics.txt"
    lines = [f"Step {step} | lm_loss:{step} lr:0.1 " for step in range(1, 101)]
    lines[59] += "rankme:3.0 "  # on steps with a JEPA loss alone
    lines[79] += "rankme:5.0 "
    lines[9] += "rankme:99.0 "
    log.write_text("\n".join(lines) + "\n")
    assert last_metrics(log, 80) == {"lm_loss": 55.5, "rankme": 4.0}
    assert last_metrics(log, 3) == {"lm_loss": 2.0}
    assert last_metrics(tmp_path / "none.txt", 80) == {}
