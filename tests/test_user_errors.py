"""Error messages of the programs for requests that cannot be fulfilled."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from erjepa_recipe import evaluate_erjepa
from erjepa_recipe import lora_finetune_distributed_erjepa as finetune_erjepa
from tests.harness.runs import TUNE

ON_A_CPU = "device=cpu dtype=fp32 row_length=null"


@pytest.fixture
def told(monkeypatch, capsys, tmp_path):
    """Calls a recipe's main function; the last line on the screen, after exit code 2."""

    def told(recipe, *arguments):
        arguments = ["--config", *arguments, f"output_dir={tmp_path}/out"]
        monkeypatch.setattr(sys, "argv", ["erjepa_recipe", *arguments])
        with pytest.raises(SystemExit) as exit:
            recipe.recipe_main()
        said = capsys.readouterr().err
        assert exit.value.code == 2 and "Traceback" not in said
        assert not torch.distributed.is_initialized()
        return said.splitlines()[-1].removeprefix("erjepa_recipe: error: ")

    return told


RECIPES = pytest.mark.parametrize("recipe", [finetune_erjepa, evaluate_erjepa])


@RECIPES
@pytest.mark.parametrize("config", ["llama3_2_1b_synth", "tiny_synth device=cuda"])
def test_no_cuda(recipe, config, told, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = told(recipe, *config.split())
    assert said.startswith("device=cuda: torch ") and "finds no CUDA device" in said
    assert said.endswith(f"or set {ON_A_CPU}")


@RECIPES
def test_other_devices(recipe, told):
    for device in ("mps", "xpu", "gpu"):
        said = told(recipe, "tiny_synth", f"device={device}")
        assert said.startswith(f"device={device}: the recipes run on cuda and cpu.")
        assert said.endswith(f"Set {ON_A_CPU}")


@RECIPES
def test_a_file_that_is_no_tokenizer(recipe, told):
    said = told(recipe, "tiny_synth", f"tokenizer.path={__file__}")
    assert said.startswith("Error parsing line b") and said.endswith(f"in {__file__}")


@pytest.fixture
def one_gpu(monkeypatch):
    """As if the machine had one GPU of the kind that only emulates bfloat16."""
    for name, value in (
        ("is_available", True),
        ("device_count", 1),
        ("current_device", 0),
        ("get_device_properties", SimpleNamespace(major=7)),
        ("_check_bf16_tensor_supported", True),
        ("get_device_name", "Tesla T4"),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    # A CPU build of torch lacks NCCL.
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27))


def test_more_ranks_than_gpus(told, one_gpu, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    said = told(finetune_erjepa, "tiny_synth", "device=cuda")
    assert "has 1 CUDA devices, too few for a rank each" in said
    assert "Start 1 with --nproc_per_node" in said


@pytest.mark.parametrize("device", ["cuda", "null"])
def test_no_bfloat16(device, told, one_gpu):
    said = told(finetune_erjepa, "llama3_2_1b_synth", f"device={device}")
    assert said.endswith("Tesla T4 cannot compute in bfloat16. Set dtype=fp32")


class Texts(list):
    """A dataset of the user's own that knows no pairs."""


def of_texts(tokenizer, *, size):
    return Texts(["text"] * size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "replay.capacity=1e12",
            "replay.capacity=1000000000000 slots of 120 bytes and",
        ),
        ("replay.address_dim=1e9", "and a projection of 512,000,000,000 take "),
        (
            f"dataset={__name__}.of_texts dataset.size=3",
            "dataset: its builder returned a Texts of str, not of pairs.",
        ),
        (
            f"dataset={__name__}.of_texts dataset.size=0",
            "dataset: its builder returned a Texts of nothing, not of pairs.",
        ),
        ("dataset.size=0", "dataset: its builder returned no pairs"),
        (
            "model.vocab_size=90 loss.jepa_weight=0 replay.weight=0 dataset.size=9",
            "but the model has 90 embeddings; resize them",
        ),
        (
            "model.num_layers=6 model.intermediate_dim=100 dataset.size=9",
            "/models/tiny holds another model than the config's: it lacks layers.4.",
        ),
        (
            "loss.jepa_weight=x",
            'loss.jepa_weight: input should be a valid number, got "x"',
        ),
        ("model.num_heads=3", "num_heads (3) must be divisible by num_kv_heads (2)"),
        ("optimizer.eps=-1 dataset.size=9", "Invalid epsilon value: -1"),
    ],
    ids=lambda text: text.partition(" ")[0],
)
def test_before_training(arguments, message, told):
    assert message in told(finetune_erjepa, "tiny_synth", *arguments.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            f"eval_dataset={__name__}.of_texts eval_dataset.size=3",
            "eval_dataset: its builder returned a Texts of str",
        ),
        (
            "eval_dataset=null",
            "or score the pairs held out by validation.size: eval_split=validation",
        ),
        (
            "model.num_layers=3 eval_dataset.size=9",
            "/models/tiny holds another model than the config's: it has layers.3.",
        ),
    ],
    ids=lambda text: text.partition(" ")[0],
)
def test_before_scoring(arguments, message, told):
    said = told(evaluate_erjepa, "tiny_synth", "base_only=True", *arguments.split())
    assert message in said


@pytest.mark.slow
def test_ranks_say_it_once_and_last():
    """By torchrun, whose own table of failed ranks ends with it."""
    command = [TUNE, "run", "--nproc_per_node", "2", "erjepa_recipe"]
    run = subprocess.run(
        [*command, "--config", "tiny_synth", "row_length=64"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    message = "erjepa_recipe: error: row_length=64 is shorter than max_seq_len=256"
    assert run.returncode == 1  # torchrun's, whatever its ranks' is
    assert run.stdout.count(message) == 1 and "exitcode  : 2" in run.stdout
    *_, last, frame = run.stdout.splitlines()
    assert message in last and set(frame) == {"="}
    # No traceback but that with which torchrun itself ends.
    assert run.stdout.count("Traceback") == 1
