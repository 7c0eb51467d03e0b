"""The output folder of an experiment that never ran, in the layout of a real one.

Predictions are targets that are corrupted at random, so that methods differ in accuracy, in its
growth with compute, and in the kinds of errors.
"""

import json
import random
from pathlib import Path
from typing import Any

from tests.harness.data import write_jsonl

METHODS = {
    "SFT": {"replay.weight": 0, "loss.jepa_weight": 0},
    "LLM-JEPA": {"replay.weight": 0},
    "ER-JEPA content": {"replay.selection": "content"},
    "ER-JEPA uniform": {"replay.selection": "uniform"},
    "current batch": {"replay.selection": "current_batch"},
}
MAIN_METHODS = {name: METHODS[name] for name in ("SFT", "LLM-JEPA", "ER-JEPA content")}
# Share of examples that a method has right at the last checkpoint.
SKILLS = {
    "SFT": 0.54,
    "LLM-JEPA": 0.69,
    "LLM-JEPA token-matched": 0.62,
    "ER-JEPA content": 0.84,
    "ER-JEPA uniform": 0.85,
    "current batch": 0.81,
}
BUDGETS = [4.0e16, 8.0e16, 12.0e16, 16.0e16, 20.0e16, 24.0e16]


def regex(rng: random.Random) -> str:
    """Return a regex in the style of NL-RX."""

    def unit() -> str:
        return rng.choice(["[0-9]", "[A-Z]", "[AEIOUaeiou]", "(dog)", "(truck)", "."])

    def phrase(depth: int) -> str:
        if depth == 0:
            return unit()
        a, b = phrase(depth - 1), phrase(rng.randrange(depth))
        return rng.choice(
            [f".*{a}.*", f"({a}|{b})", f"({a})&({b})", f"~({a})", f"({a}){{3,}}"]
            + [rf"\b{a}\b", f"({a})+.*{b}"]
        )

    return phrase(rng.randint(1, 3))


def spoil(rng: random.Random, target: str) -> str:
    """Return a wrong output for ``target``."""
    return rng.choice([target + ".*", target + ".*", target + "dog", target[:-1]]) + (
        ")" if rng.random() < 0.1 else ""
    )


def write_output(
    folder: Path,
    methods: dict[str, dict[str, Any]] | None = None,
    datasets: dict[str, str] | None = None,
    seeds: tuple[int, ...] = (82, 23, 37, 84, 4),
    budgets: list[float] | None = BUDGETS,
    epochs: int = 4,
    examples: int = 40,
    cosine: bool = True,
    tasks: dict[str, str] | None = None,
    **config: Any,
) -> Path:
    """Write the output of a finished experiment to ``folder`` and return it.

    Args:
        methods: name to overrides.
        datasets: name to config of the recipe.
        budgets: compute budgets; None: the end of every epoch.
        epochs: number of epochs without budgets.
        examples: number of test examples.
        cosine: whether predictions have cosines.
        tasks: dataset to task, by default ``nq_open`` for names with ``qa`` in them and
            ``nl_rx`` for others.
        **config: further keys of the experiment's config.
    """
    methods, datasets = methods or METHODS, datasets or {"synth": "tiny_synth"}
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "name": "fake",
        "output_dir": str(folder),
        "seeds": list(seeds),
        "datasets": datasets,
        "methods": methods,
        "overrides": {},
        "budgets": budgets,
        **config,
    }
    if tasks is None:
        tasks = {name: "nq_open" if "qa" in name else "nl_rx" for name in datasets}
    ran = {
        "name": config["name"],
        "config": config,
        "versions": {"python": "3.11.7", "torch": "2.13.0", "erjepa": "0.1.0"},
        "revision": "0123abc",
        "hardware": {"cpu": "a processor", "cores": 2, "gpus": []},
    }
    (folder / "experiment.json").write_text(json.dumps(ran))
    rows = [
        {
            **{**row, "stage": stage, "weights": weights},
            "cell": row["cell"].replace(dataset, stage or dataset),
        }
        for dataset in datasets
        for method in methods
        for seed in seeds
        for row in _write_cell(
            folder,
            config,
            dataset,
            tasks[dataset],
            method,
            seed,
            epochs,
            examples,
            cosine,
        )
        for stage in _stages(config, method)
        for weights in config.get("score_weights") or ["last"]
    ]
    write_jsonl(folder / "results.jsonl", rows)
    return folder


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def change_config(output: Path, **keys: Any) -> None:
    """Set keys of an experiment's recorded config."""
    path = output / "experiment.json"
    record = json.loads(path.read_text())
    record["config"].update(keys)
    path.write_text(json.dumps(record))


def _stages(config, method):
    """Return the stages of a sequence in which a method has a run; otherwise None alone."""
    if not config.get("continual"):
        return [None]
    trains_on = (config["methods"][method] or {}).get("trains_on", "so_far")
    stages = list(config["datasets"])
    return stages if trains_on == "so_far" else stages[-1:]


def _write_cell(folder, config, dataset, task, method, seed, epochs, examples, cosine):
    cell = f"{dataset}/{method.lower().replace(' ', '_')}/seed_{seed}"
    is_regex = task == "nl_rx"
    targets_rng = random.Random(f"targets of {dataset}")
    targets = [
        regex(targets_rng)
        if is_regex
        else targets_rng.choice(["Paris", "12", "the moon"])
        for _ in range(examples)
    ]
    rng = random.Random(f"{method} {dataset} {seed}")
    hardness = [random.Random(f"{dataset} {i}").random() for i in range(examples)]
    skill = SKILLS.get(method, 0.8) + rng.gauss(0, 0.02)
    probed = "log_replay_gradients_every_n_steps" in config["overrides"]
    keys = {**config["overrides"], **(config["methods"][method] or {})}
    matched = "stop.tokens_of" in keys
    budgets = [None] if matched else config["budgets"] or [None] * epochs
    log = folder / "cells" / cell / "logs" / "metrics.txt"
    log.parent.mkdir(parents=True)
    steps = "".join(
        f"Step {step} | loss:1.0 jepa_loss:{0.02 + 0.9 * 0.95**step:.4f} \n"
        for step in range(1, 121)
    )
    log.write_text(steps)
    for number, budget in enumerate(budgets, start=1):
        progress = number / len(budgets)
        name = f"flops_{number}" if budget else f"epoch_{number - 1}"
        lines = []
        for i, target in enumerate(targets):
            is_right = hardness[i] + rng.gauss(0, 0.08) < skill * (0.5 + 0.5 * progress)
            output = target if is_right else spoil(rng, target)
            line = {
                "id": i,
                "prompt": f"lines of kind {i}",
                "target": target,
                "output": output,
                "tokens": len(output),
                "finished": True,
                "extracted": output,
                "exact_match": is_right,
            }
            if cosine:
                line["cosine"] = min(1.0, 0.6 + 0.35 * progress + rng.gauss(0, 0.03))
                line["cosine_of_input"] = line["cosine"] - 0.1
            lines.append(line)
        path = f"cells/{cell}/evaluation/{name}/predictions.jsonl"
        (folder / path).parent.mkdir(parents=True)
        write_jsonl(folder / path, lines)
        accuracy = sum(line["exact_match"] for line in lines) / examples
        yield {
            "cell": cell,
            "dataset": dataset,
            "method": method,
            "seed": seed,
            "overrides": config["methods"][method] or {},
            "checkpoint": name,
            "budget": budget,
            "steps": 20 * number,
            "total_flops": (budget or 5e16 * number) * 1.001,
            "total_tokens": 1_500_000 * number,
            "epoch": number / 2 if budget else number,
            "split": config.get("score_on", "test"),
            "task": task,
            "accuracy": accuracy,
            "primary": "exact_match",
            "readings": {"exact_match": accuracy, "llm_jepa": accuracy},
            "examples": examples,
            "predictions": path,
            "log": f"cells/{cell}/logs/metrics.txt",
            "train_seconds": 100.0 * number + rng.random(),
            "eval_seconds": 4.0,
            "metrics": {
                "lm_loss": 0.5,
                **({} if keys.get("loss.jepa_weight") == 0 else {"jepa_loss": 0.3}),
                "cosine_paired": 0.9,
                "cosine_shuffled": skill,
                **({"replay_benefit": -0.01} if probed else {}),
            },
        }
