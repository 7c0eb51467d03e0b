"""Run the training recipe on ranks forked from the test, and read its log."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torchtune import utils

import erjepa.configs
from erjepa.checkpoints import checkpoint
from erjepa.configs import Config
from erjepa.objective import PackedDecoder
from erjepa.studies.training_log import read_training_log
from erjepa.training.run import prepared
from erjepa_recipe import evaluate_erjepa
from erjepa_recipe import lora_finetune_distributed_erjepa as recipe
from erjepa_recipe.lora_finetune_distributed_erjepa import FinetuneRecipeERJEPA
from tests.harness.models import BASE_SHAPE
from tests.harness.ranks import kill_at_call, on_doomed_ranks, on_ranks

BUILDER = "torchtune.models.llama3_2.lora_llama3_2"
FULL_BUILDER = "torchtune.models.llama3_2.llama3_2"
FULL = "llama3_2_1b_synth_full"  # the config that trains every weight
TUNE = Path(sys.executable).parent / "tune"
# Metrics that do not depend on how a step is cut.
INVARIANT = (
    *("loss", "lm_loss", "jepa_loss", "replay_lm_loss", "replay_jepa_loss"),
    *("cosine_paired", "cosine_shuffled", "grad_norm", "replayed", "memory_size"),
    "lr",
)
TIMED = {"tokens_per_second_per_gpu", "pairs_per_second"}
COUNTED = {"step_flops", "total_flops", "total_tokens"}  # what ranks do not share


def overrides_for(
    base: Path, data: Path | list | dict, output_dir: Path, **overrides: Any
) -> list[str]:
    """Overrides that make ``llama3_2_1b_synth`` a small run on the CPU.

    Args:
        data: a file of pairs, or the value of ``dataset``.
        **overrides: config keys, with ``__`` for a dot.
    """
    config = json.loads((base / "config.json").read_text())
    settings = {
        "output_dir": output_dir,
        "model": BUILDER,
        **{f"model.{name}": value for name, value in BASE_SHAPE.items()},
        "model.num_layers": config["num_hidden_layers"],
        "model.lora_attn_modules": "[q_proj,k_proj,v_proj,output_proj]",
        "model.apply_lora_to_mlp": True,
        "model.lora_rank": 4,
        "model.lora_alpha": 8,
        "model.lora_dropout": 0.0,
        "tokenizer.path": base / "tokenizer.model",
        "tokenizer.special_tokens_path": base / "special_tokens.json",
        "checkpointer.checkpoint_dir": base,
        "device": "cpu",
        "dtype": "fp32",
        "row_length": "null",
        "batch_size": 4,
        "epochs": 2,
        "optimizer.lr": 3e-3,
        "num_workers": 0,
        "lr_scheduler.num_warmup_steps": 2,
    }
    if isinstance(data, (list, dict)):
        settings["dataset"] = json.dumps(data)
    else:
        settings |= paired("dataset", data)
    settings.update({key.replace("__", "."): v for key, v in overrides.items()})
    if settings["model"] == FULL_BUILDER:
        settings = {key: v for key, v in settings.items() if "lora" not in key}
    return [f"{key}={value}" for key, value in settings.items()]


def paired(key: str, source: Path | str) -> dict[str, Any]:
    """Settings that make ``dataset`` or ``eval_dataset`` the pairs of a file."""
    return {key: "erjepa.datasets.paired_dataset", f"{key}.source": source}


def make_config(overrides: list[str], name: str = "llama3_2_1b_synth") -> Config:
    """The packaged config with overrides, as from the command line."""
    return erjepa.configs.load(name, overrides)


def small_config(
    base: Path, data: Path | list | dict, output_dir: Path, *more: str, **overrides: Any
) -> Config:
    """The config of :func:`overrides_for` and of ``more`` overrides, as on the command line.

    With ``model=FULL_BUILDER`` it is ``FULL``.
    """
    name = FULL if overrides.get("model") == FULL_BUILDER else "llama3_2_1b_synth"
    return make_config(
        [*overrides_for(base, data, output_dir, **overrides), *more], name
    )


def train(cfg, world_size: int = 1, inspect: Callable | None = None) -> list[Any]:
    """Train on ``world_size`` forked ranks; return ``inspect(recipe)`` of each rank."""
    return on_ranks(lambda: train_here(cfg, inspect), world_size)


def kill_at_step(step: int) -> Callable[[], None]:
    return kill_at_call(FinetuneRecipeERJEPA, "_train_step", step)


def train_and_kill(cfg, world_size: int, kill: Callable[[], None]) -> None:
    """Train until rank 0 dies where ``kill()`` made it; then kill the others."""

    def doomed():
        if utils.get_world_size_and_rank()[1] == 0:
            kill()
        train_here(cfg, None)

    on_doomed_ranks(doomed, world_size)


def assert_resumes(
    config: Callable[..., Config],
    folder: Path,
    kill: Callable[[], None],
    world_size: int = 1,
) -> Any:
    """A run that was killed and resumed ends as one that was not, in ``folder / "part"`` and
    ``folder / "whole"``; return the state at the end.

    Args:
        config: of an output folder and overrides.
    """
    whole, part = folder / "whole", folder / "part"
    expected = train(config(whole), world_size, state)[0]
    train_and_kill(config(part), world_size, kill)
    resumed = config(part, resume_from_checkpoint=True)
    assert_same(train(resumed, world_size, state)[0], expected)
    assert read_untimed(part) == read_untimed(whole)
    return expected


def at_start(cfg, world_size: int, inspect: Callable) -> Any:
    """What ``inspect`` finds in a recipe before its first step, on rank 0."""

    def set_up():
        recipe = FinetuneRecipeERJEPA(cfg)
        recipe.setup()
        return inspect(recipe)

    return on_ranks(set_up, world_size)[0]


def train_here(cfg, inspect: Callable | None) -> Any:
    recipe = FinetuneRecipeERJEPA(cfg)
    recipe.setup()
    recipe.train()
    return inspect(recipe) if inspect else None


def read_metrics(output_dir: Path) -> list[dict[str, float]]:
    """Return the metrics of every step, in order."""
    return list(read_training_log(output_dir / "logs" / "metrics.txt").values())


def read_untimed(output_dir: Path) -> list[dict[str, float]]:
    """The metrics that are the same each time."""
    steps = read_metrics(output_dir)
    return [{k: v for k, v in step.items() if k not in TIMED} for step in steps]


def evaluate(cfg, world_size=1, dies_at_batch=None):
    """Return the last summary, or None if rank 0 was killed at a batch."""

    def run():
        if dies_at_batch is not None and utils.get_world_size_and_rank()[1] == 0:
            kill_at_call(evaluate_erjepa, "generate_answers", dies_at_batch)()
        recipe = evaluate_erjepa.EvaluationRecipeERJEPA(cfg)
        recipe.setup()
        return recipe.evaluate()

    if dies_at_batch is not None:
        return on_doomed_ranks(run, world_size)
    return on_ranks(run, world_size)[0][-1]


def tiny(output_dir, *overrides):
    """The packaged demo config, cut short; comparing languages of regexes takes seconds."""
    short = ["dataset.size=64", "eval_batch_size=16", "task=exact_match"]
    if not any(override.startswith("eval_dataset=") for override in overrides):
        short.append("eval_dataset.size=40")
    return make_config([f"output_dir={output_dir}", *short, *overrides], "tiny_synth")


def assert_close_logs(
    mine: Path,
    expected: Path,
    names: Collection[str] | None = None,
    *,
    rel: float = 1e-4,
    absolute: float = 1e-6,
) -> None:
    """Two runs logged the same metrics at the same steps, and the same values but for rounding.

    Args:
        names: of metrics to compare; by default all that do not depend on how a step is cut.
    """
    logs = read_metrics(mine), read_metrics(expected)
    names = names or {n for step in logs[1] for n in step} - TIMED - COUNTED
    for number, step in enumerate(zip(*logs, strict=True), start=1):
        assert step[0].keys() == step[1].keys(), number
        found, wanted = ({n: one[n] for n in names if n in one} for one in step)
        assert wanted and found == pytest.approx(wanted, rel=rel, abs=absolute), number


def predictions(output_dir, name):
    lines = (Path(output_dir) / "evaluation" / name / "predictions.jsonl").read_text()
    return [json.loads(line) for line in lines.splitlines()]


def watch_forwards(patch):
    """Collect the batches of training's forward passes, of each forked rank in a list of its own."""
    seen, forward = [], PackedDecoder.forward

    def noted(self, batch, **options):
        if self.training:
            seen.append(batch)
        return forward(self, batch, **options)

    patch.setattr(PackedDecoder, "forward", noted)
    return seen


def watch_gradients(patch):
    """Collect the dtypes of gradients and of hidden states, and whether gradients are
    what bfloat16 holds.
    """
    recipe_class = recipe.FinetuneRecipeERJEPA
    seen = {"gradients": set(), "hidden": set(), "rounded": set()}
    clip = recipe_class._clipped_grad_norm
    build = prepared.build_model

    def clipped(self, *passes):
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        gradients = [getattr(g, "_local_tensor", g) for g in gradients]
        gradients = [g for g in gradients if g.numel()]  # a rank may have no part
        seen["gradients"].update(g.dtype for g in gradients)
        if self._progress.steps > 1:  # B is zero before, and so is the gradient of A
            seen["rounded"].update(g.equal(g.bfloat16().float()) for g in gradients)
        return clip(self, *passes)

    def built(*args, **kwargs):
        model, trained = build(*args, **kwargs)
        for layer in model.decoder.layers:
            layer.register_forward_hook(lambda *a: seen["hidden"].add(a[2].dtype))
        return model, trained

    patch.setattr(recipe_class, "_clipped_grad_norm", clipped)
    patch.setattr(prepared, "build_model", built)
    return seen


def trained_weights(recipe):
    """A copy of them, whole, by their names in checkpoints."""
    return {
        name.removeprefix("decoder."): whole(weight)
        for name, weight in recipe._model.named_parameters()
        if weight.requires_grad
    }


def flip(path):
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def adapter_of(path):
    """What a run with adapters trained, from a checkpoint; names as in :func:`trained_weights`."""
    weights, predictor = checkpoint.load_torchtune_adapter(path)
    return {**weights, "predictor": predictor}


def whole(weight):
    """A copy of a weight, of which a rank may have a part."""
    return getattr(weight, "full_tensor", lambda: weight)().detach().clone()


def state(recipe):
    memory = {"state": recipe._memory.replay.memory.state, **slots_of(recipe)}
    return {"weights": trained_weights(recipe), "memory": memory}


def slots_of(recipe):
    """A copy of the memory's slots in use."""
    tensors = recipe._memory.replay.memory.tensors()
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_same(a, b):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    else:
        assert a == b


def start_tune(*arguments, cwd):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [TUNE, "run", *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output[-5000:]
    return output
