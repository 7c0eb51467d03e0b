"""Run grids with a stand-in for ``tune``, in this process or in one that can be killed."""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml

from erjepa.commands.experiment import main
from erjepa.studies.grid import processes
from erjepa.studies.grid.config import Experiment
from tests.harness.fake_output import read_rows
from tests.harness.runs import overrides_for, paired

FAKE_TUNE = Path(__file__).parent / "fake_tune.py"

EXPERIMENT = """
name: fake
seeds: [1, 2]
datasets: {synth: tiny_synth}
methods:
  Matched: {replay.weight: 0, stop.tokens_of: ER-JEPA}
  LLM-JEPA: {replay.weight: 0}
  ER-JEPA: {}
overrides: {epochs: 12}
budgets: [45, 80]
"""


def use_fake_tune(patch=None):
    """Make grids of this process run the stand-in, which takes hundredths of a second."""
    patch = patch or pytest.MonkeyPatch()
    patch.setattr(processes, "tune", lambda: [sys.executable, "-S", str(FAKE_TUNE)])
    patch.setattr(processes, "_POLL", 0.01)


def write_experiment(folder: Path, text: str = EXPERIMENT) -> Path:
    path = folder / "fake.yaml"
    path.write_text(f"{text}\noutput_dir: {folder / 'out'}\n")
    return path


class Grid:
    """``erjepa experiment run`` in a forked process, with the stand-in for tune."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self._log = folder / "printed.txt"
        self._process = multiprocessing.get_context("fork").Process(
            target=_main, args=(folder, arguments, environment, self._log)
        )
        self._process.start()

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def ended(self) -> bool:
        return not self._process.is_alive()

    def wait(self) -> int:
        """Wait for the process and return its exit code."""
        self._process.join(timeout=60)
        assert self._process.exitcode is not None, self.printed()
        return self._process.exitcode

    def printed(self) -> str:
        return self._log.read_text()


def _main(folder, arguments, environment, log) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(FAKE_CALLS=str(folder / "calls.txt"), **environment)
    use_fake_tune()
    with log.open("a") as sys.stdout, log.open("a") as sys.stderr:
        sys.exit(main(["run", str(folder / "fake.yaml"), *arguments]))


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def calls(folder: Path) -> list[str]:
    path = folder / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def results(folder: Path) -> list[dict]:
    return read_rows(folder / "out" / "results.jsonl")


def untimed_results(folder: Path) -> list[dict]:
    """Results without times: the rest is the same however often a grid was killed."""
    timed = {"train_seconds", "eval_seconds"}
    return [{k: v for k, v in x.items() if k not in timed} for x in results(folder)]


def write_small_experiment(folder, base, data, methods, **keys):
    """A small experiment on the small base model, scored on its own training pairs."""
    overrides = overrides_for(base, data, folder)
    texts = dict(o.partition("=")[::2] for o in overrides if "=" in o)
    settings = {key: yaml.safe_load(text) for key, text in texts.items()}
    del settings["output_dir"]
    settings |= paired("eval_dataset", str(data))
    settings |= {"max_new_tokens": 4, "eval_batch_size": 11, "epochs": 4}
    settings |= {"save_adapter_weights_only": True, "save_every_n_steps": 3}
    experiment = {
        **{"name": "small", "output_dir": str(folder / "out"), "seeds": [1]},
        **{"datasets": {"pairs": "llama3_2_1b_synth"}, "methods": methods},
        **{"overrides": {**settings, "alignment": True}, **keys},
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(experiment, sort_keys=False))
    return path


METHODS = {
    "Matched": {"replay.weight": 0, "stop.tokens_of": "ER-JEPA content"},
    "LLM-JEPA": {"replay.weight": 0},
    "ER-JEPA content": {},
}


def experiment(**changes):
    return Experiment(
        **{
            "name": "small",
            "output_dir": "/out",
            "seeds": [7, 8],
            "datasets": {
                "synth": "tiny_synth",
                "turk": {
                    "config": "smollm2_135m_turk",
                    "replay.weight": 3,
                    "databases": "d",
                },
            },
            "methods": METHODS,
            "overrides": {"epochs": 2, "replay.weight": 2},
            **changes,
        }
    )


def run(folder, *arguments):
    return main(["run", str(folder / "fake.yaml"), *arguments])


def summary(folder):
    """Return method, seed, checkpoint, budget and steps of each line, sorted."""
    keys = ("method", "seed", "checkpoint", "budget", "steps")
    return sorted(tuple(line[key] for key in keys) for line in results(folder))


# LLM-JEPA takes 10 operations a step, ER-JEPA 20; budgets are 45 and 80. A step has one token
# more than operations; token-matched ends at the 84 tokens of ER-JEPA's four steps.
EXPECTED = sorted(
    (method, seed, checkpoint, budget, steps)
    for seed in (1, 2)
    for method, checkpoint, budget, steps in (
        ("LLM-JEPA", "flops_0", 45, 5),
        ("LLM-JEPA", "flops_1", 80, 8),
        ("ER-JEPA", "flops_0", 45, 3),
        ("ER-JEPA", "flops_1", 80, 4),
        ("Matched", "flops_0", 45, 5),
        ("Matched", "flops_1", 80, 8),
    )
)
