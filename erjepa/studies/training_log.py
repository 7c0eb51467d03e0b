"""The log of a run, as ``torchtune.training.metric_logging.DiskLogger`` writes it."""

import re
from pathlib import Path


def read_training_log(path: Path) -> dict[int, dict[str, float]]:
    """Metrics by step, in order.

    Of a step that was logged twice (killed, then resumed) the last counts.
    """
    steps = {}
    for line in path.read_text().splitlines():
        if match := re.match(r"Step (\d+) \| (.*)", line):
            pairs = re.findall(r"(\w+):(\S+)", match[2])
            steps[int(match[1])] = {name: float(value) for name, value in pairs}
    return dict(sorted(steps.items()))
