"""Runs the training recipe on ranks that are forked from the test, and reads its log."""

import itertools
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchtune import utils

import erjepa.configs
from erjepa.configs import Config
from erjepa.studies.training_log import read_training_log
from erjepa.training.run.process_group import process_group
from erjepa_recipe.lora_finetune_distributed_erjepa import (
    FinetuneRecipeERJEPA,
)
from tests.models_for_tests import BASE_SHAPE

# Of this process, below those that the system deals out.
PORTS = itertools.count(10_000 + 997 * os.getpid() % 20_000)
BUILDER = "torchtune.models.llama3_2.lora_llama3_2"
FULL_BUILDER = "torchtune.models.llama3_2.llama3_2"
FULL = "llama3_2_1b_synth_full"  # the config that trains every weight


def overrides_for(
    base: Path, data: Path, output_dir: Path, **overrides: Any
) -> list[str]:
    """Overrides that make ``llama3_2_1b_synth`` a small run on the CPU.

    Keyword arguments name config keys with ``__`` for a dot. With ``model=FULL_BUILDER`` they
    are for the config ``FULL``.
    """
    settings = {
        "output_dir": output_dir,
        "model": BUILDER,
        **{f"model.{name}": value for name, value in BASE_SHAPE.items()},
        "model.lora_attn_modules": "[q_proj,k_proj,v_proj,output_proj]",
        "model.apply_lora_to_mlp": True,
        "model.lora_rank": 4,
        "model.lora_alpha": 8,
        "model.lora_dropout": 0.0,
        "tokenizer.path": base / "tokenizer.model",
        "tokenizer.special_tokens_path": base / "special_tokens.json",
        "checkpointer.checkpoint_dir": base,
        "dataset": "erjepa.datasets.paired_dataset",
        "dataset.source": data,
        "device": "cpu",
        "dtype": "fp32",
        "row_length": "null",
        "batch_size": 4,
        "epochs": 2,
        "optimizer.lr": 3e-3,
        "num_workers": 0,
        "optimizer.fused": False,
        "lr_scheduler.num_warmup_steps": 2,
    }
    settings.update({key.replace("__", "."): v for key, v in overrides.items()})
    if settings["model"] == FULL_BUILDER:
        settings = {key: v for key, v in settings.items() if "lora" not in key}
    return [f"{key}={value}" for key, value in settings.items()]


def make_config(overrides: list[str], name: str = "llama3_2_1b_synth") -> Config:
    """The packaged config with overrides, as the command line has it."""
    return erjepa.configs.load(name, overrides)


def train(cfg, world_size: int = 1, inspect: Callable | None = None) -> list[Any]:
    """Train on ``world_size`` forked ranks; ``inspect(recipe)`` of each rank is returned."""
    return on_ranks(lambda: _train(cfg, inspect), world_size)


def on_ranks(
    function: Callable[[], Any], world_size: int, timeout: float = 600
) -> list[Any]:
    """Call ``function`` on forked ranks of one process group; their results, by rank."""
    ranks, results = start_ranks(function, world_size, timeout)
    # Plain pickles: tensors sent as such would share memory with ranks that are gone.
    by_rank = dict(pickle.loads(results.get()) for _ in ranks)
    for process in ranks:
        process.join()
    for outcome in by_rank.values():
        if isinstance(outcome, Exception):
            raise outcome
    return [by_rank[rank] for rank in range(world_size)]


def start_ranks(
    function: Callable[[], Any], world_size: int, timeout: float = 600
) -> tuple[list, Any]:
    """Forked ranks of one process group, and the queue of what each comes to, pickled."""
    context = multiprocessing.get_context("fork")
    port, results = free_port(), context.SimpleQueue()
    ranks = [
        context.Process(
            target=_run_rank,
            args=(function, rank, world_size, port, results, timeout),
        )
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    return ranks, results


def train_and_kill(cfg, world_size: int, arm: Callable[[], None]) -> None:
    """Train until rank 0, armed by ``arm()``, is killed; then kill the others."""

    def doomed():
        if utils.get_world_size_and_rank()[1] == 0:
            arm()
        _train(cfg, None)

    on_doomed_ranks(doomed, world_size)


def on_doomed_ranks(function: Callable[[], Any], world_size: int) -> None:
    """Call ``function`` on ranks of which the first is going to be killed."""
    ranks, _ = start_ranks(function, world_size)
    ranks[0].join()
    assert ranks[0].exitcode == -signal.SIGKILL, "rank 0 outlived its killer"
    for process in ranks[1:]:
        process.kill()
        process.join()


def kill_at_call(owner: Any, name: str, call: int, *, after: bool = False) -> None:
    """Make the ``call``-th call of ``owner.name`` kill the process, before or after it runs."""
    original, calls = getattr(owner, name), itertools.count(1)

    def lethal(*args, **kwargs):
        doomed = next(calls) == call
        if doomed and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, lethal)


def free_port() -> int:
    """A port that no other process of the tests will choose, before it is in use."""
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def _train(cfg, inspect: Callable | None) -> Any:
    recipe = FinetuneRecipeERJEPA(cfg)
    recipe.setup()
    recipe.train()
    return inspect(recipe) if inspect else None


def _run_rank(function, rank, world_size, port, results, timeout) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        with process_group(utils.get_device("cpu"), timeout):
            outcome = function()
    except Exception as error:  # noqa: BLE001
        if hasattr(error, "add_note"):
            error.add_note(traceback.format_exc())
        outcome = error
    try:
        message = pickle.dumps((rank, outcome))
    except Exception as error:  # noqa: BLE001
        message = pickle.dumps((rank, RuntimeError(f"{outcome!r}: {error}")))
    results.put(message)


def read_metrics(output_dir: Path) -> list[dict[str, float]]:
    """The metrics of every step, in order."""
    return list(read_training_log(output_dir / "logs" / "metrics.txt").values())
