"""Reads the log of a run, written by ``torchtune.training.metric_logging.DiskLogger``."""

import contextlib
import re
from pathlib import Path


def read_training_log(path: Path) -> dict[int, dict[str, float]]:
    """Return the metrics of each step, in the order of steps.

    If a step was logged twice, by a run and its resumed run, the last line counts.
    """
    steps = {}
    for line in path.read_text().splitlines():
        if match := re.match(r"Step (\d+) \| (.*)", line):
            pairs = re.findall(r"(\w+):(\S+)", match[2])
            # A full disk can leave an incomplete line, which the next one joins.
            with contextlib.suppress(ValueError):
                steps[int(match[1])] = {name: float(value) for name, value in pairs}
    return dict(sorted(steps.items()))
