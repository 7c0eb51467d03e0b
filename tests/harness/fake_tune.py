"""A stand-in for ``tune`` in tests of the grid, with the same arguments and output files.

A run is a loop of steps whose results depend on its arguments alone. Like the recipe, a killed run
resumes from its last checkpoint. Every start and every step is recorded in ``calls.txt`` beside the
results.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def train(settings):
    folder = Path(settings["output_dir"])
    log = folder / "logs" / "metrics.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    found = sorted(int(p.name.split("_")[-1]) for p in folder.glob("epoch_0_step_*"))
    for key in ("init_from", "replay.init_from"):
        assert key not in settings or Path(settings[key]).is_dir(), settings[key]
    step = found[-1] if settings.get("resume_from_checkpoint") == "true" else 0
    assert bool(found) == (step > 0), "not told to resume, or nothing to resume from"
    assert step or not list(folder.glob("flops_*")), "checkpoints of an earlier run"
    budgets = json.loads(settings.get("checkpoint_at_flops", "[]"))
    flops = 10 if settings.get("replay.weight") == "0" else 20
    tokens = int(settings.get("stop.tokens", 10**9))
    limit = float(settings.get("stop.flops", 10**9))
    while step < int(settings["epochs"]):
        if step * flops >= limit or step * (flops + 1) >= tokens:
            break
        time.sleep(float(os.environ.get("FAKE_STEP_SECONDS", 0)))
        step += 1
        tell(f"step {step} of {folder.parent.name}")
        total = step * flops
        for i, budget in enumerate(budgets):
            if total - flops < budget <= total:
                save(folder / f"flops_{i}", step, total, budget=budget)
        save(folder / f"epoch_0_step_{step}", step, total)


def save(path, step, total, **more):
    if path.exists():
        return
    aside = path.parent / ".partial"
    (aside / "ema").mkdir(parents=True, exist_ok=True)
    where = {"steps": step, "epoch": step / 10, "total_flops": total}
    progress = {**where, "total_tokens": total + step, "train_seconds": 1.5}
    (aside / "progress.json").write_text(json.dumps({**more, **progress}))
    if "epoch" in path.name:
        (aside / "recipe_state.pt").touch()
    aside.rename(path)
    if "epoch" in path.name:
        for older in path.parent.glob("epoch_0_step_*"):
            if older != path:
                (older / "recipe_state.pt").unlink(missing_ok=True)


def evaluate(settings):
    output_dir = Path(settings["output_dir"])
    paths = json.loads(settings.get("checkpoint_dir", '["base"]'))
    assert ("checkpoint_dir" in settings) != ("base_only" in settings)
    for path in map(Path, paths):
        time.sleep(float(os.environ.get("FAKE_STEP_SECONDS", 0)))
        steps = 0
        if path.name != "base":
            of_another = output_dir.name.startswith("on_")
            assert path.parent == (output_dir.parent if of_another else output_dir)
            steps = json.loads((path / "progress.json").read_text())["steps"]
        end = "_validation" * (settings.get("eval_split") == "validation")
        end += "_merged" * (settings.get("merged") == "true")
        kinds = ["", "_ema"] if settings.get("checkpoint") == "both" else [""]
        share = (10 * steps + int(settings["seed"])) / 1000
        reading = {"share": share, "right": 1, "examples": 50, "interval": [0, 1]}
        summary = {"task": "nl_rx", "accuracy": share, "primary": "exact_match"}
        summary |= {"exact_match": reading, "dfa_equal": {**reading, "share": 1.0}}
        summary |= {"cut": 0, "examples_per_second": 25.0, "target_loss": 0.5}
        for kind in kinds:
            folder = output_dir / "evaluation" / f"{path.name}{kind}{end}"
            folder.mkdir(parents=True, exist_ok=True)
            summary["accuracy"] = share + 0.5 * bool(kind)
            (folder / "predictions.jsonl").write_text(f"{steps}\n")
            (folder / "summary.json").write_text(json.dumps(summary))


def tell(what):
    with Path(os.environ["FAKE_CALLS"]).open("a") as calls:
        calls.write(what + "\n")


def main():
    run, *arguments = sys.argv[1:]
    assert run == "run"
    recipe = next(a for a in arguments if a.startswith("erjepa_"))
    settings = dict(a.split("=", 1) for a in arguments if "=" in a)
    name = "/".join(Path(settings["output_dir"]).parts[-2:])
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    tell(f"{recipe} {name} on {devices}")
    if os.environ.get("FAKE_FAILURE") == f"{recipe} {name}":
        print("first\nloss is not\x1b[31m finite\x07", end="", flush=True)
        sys.exit(3)
    if os.environ.get("FAKE_STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    {"erjepa_recipe": train, "erjepa_eval": evaluate}[recipe](settings)


if __name__ == "__main__":
    main()
