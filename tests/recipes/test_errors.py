"""What a config alone does not tell raises one clear error before weights are loaded.

The base model of these runs has no weights, so a run that tries to load them fails with another
message.
"""

import json
import subprocess

import pytest
import torch
import torch.distributed as dist

from erjepa.checkpoints import checkpoint
from erjepa.objective.loss import JEPALoss
from erjepa.training.model.sharding import local_part
from tests.harness.data import chat, write_records
from tests.harness.models import write_base
from tests.harness.runs import paired, small_config, train


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = write_base(tmp_path_factory.mktemp("base"))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def attempt(base, data, tmp_path):
    def run(source=data, **overrides):
        output_dir = tmp_path / "out"
        train(small_config(base, source, output_dir, **overrides))

    return run


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_predictor_tokens": 9}, r"num_predictor_tokens=9, but Llama3Tokenizer"),
        ({"max_seq_len": 60}, r"do not fit max_seq_len=60; the longest, .*jsonl:\d+"),
        ({"max_seq_len": 8, "skip_too_long": True}, r"views. Raise max_seq_len.$"),
        (
            {"model__max_seq_len": 60},
            r"max_seq_len=512: .*jsonl:\d+ has a sequence of \d+ tokens, .* has 60 posi",
        ),
        # Before any file is read.
        (
            {"attention": "flex", "tokenizer__path": "/missing"},
            "attention=flex: FlexAttention needs CUDA. Or set attention=dense",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_values(attempt, overrides, message):
    with pytest.raises(ValueError, match=message):
        attempt(**overrides)


def test_skipping_long_pairs_counts_them(base, data, tmp_path):
    # Loading empty weights fails, which is after the pairs were dealt with.
    overrides = {"max_seq_len": 200, "skip_too_long": True}
    cfg = small_config(base, data, tmp_path, **overrides)
    with pytest.raises(ValueError, match="Unable to load checkpoint"):
        train(cfg)


GOOD = json.dumps(chat("a", "b"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([GOOD, "", "[1]"], r"train.jsonl:3: expected a JSON object, got list"),
        ([GOOD, GOOD.replace("assistant", "user")], r"train.jsonl:2: .*got roles"),
    ],
)
def test_bad_files(attempt, tmp_path, lines, message):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    with pytest.raises(ValueError, match=message):
        attempt(path)


@pytest.mark.parametrize("key", ["dataset", "eval_dataset"])
def test_missing_file(attempt, tmp_path, key):
    with pytest.raises(FileNotFoundError, match="absent.jsonl: no such file"):
        attempt(**paired(key, tmp_path / "absent.jsonl"))
    assert not (tmp_path / "out").exists()


def test_a_task_that_could_not_score_the_run_is_refused_before_training(
    attempt, tmp_path
):
    with pytest.raises(ValueError, match="task=exactmatch: expected one of"):
        attempt(task="exactmatch")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["checkpointer__checkpoint_dir", "tokenizer__path"])
def test_missing_base_model_names_the_download_command(attempt, tmp_path, key):
    with pytest.raises(
        FileNotFoundError, match="tune download meta-llama/Llama-3.2-1B-Instruct"
    ):
        attempt(**{key: tmp_path / "absent"})


class ExplodingOptimizer(torch.optim.SGD):
    """Makes one weight infinite, on the last rank alone, unless the learning rate is small."""

    def step(self, closure=None):
        super().step(closure)
        (group,) = self.param_groups
        if group["lr"] > 1 and dist.get_rank() == dist.get_world_size() - 1:
            local_part(group["params"][-1].detach()).fill_(float("inf"))


@pytest.mark.parametrize(
    ("overrides", "world_size", "message", "kept"),
    [
        ({}, 1, r"The loss is not finite at step 3\..*train.jsonl:\d+", [1, 2]),
        (
            {"optimizer": f"{__name__}.ExplodingOptimizer"},
            2,
            r"weights are not finite after step 2, \S+ the first of 1\. Stopping",
            [1],
        ),
    ],
    ids=["loss", "weights"],
)
def test_a_run_that_diverges_says_how_to_resume_from_its_newest_good_checkpoint(
    tmp_path, overrides, world_size, message, kept
):
    """Step 1 has a learning rate of 0, so the first checkpoint is good."""
    base = write_base(tmp_path / "base")
    data, out = write_records(tmp_path / "train.jsonl", 40), tmp_path / "out"

    def config(lr, **more):
        every = {"save_every_n_steps": 1, "keep_last_n": 1, "epochs": 1}
        settings = {**every, "optimizer__lr": lr, **overrides, **more}
        return small_config(base, data, out, **settings)

    def diverge(**more):
        with pytest.raises(RuntimeError, match=message) as error:
            train(config(1e20, **more), world_size)
        found = [path.name for path in checkpoint.resumable_checkpoints(out)]
        assert found == [f"epoch_0_step_{step}" for step in kept]
        return str(error.value).splitlines()

    resume = {"resume_from_checkpoint": True}
    for said in (diverge(), diverge(**resume)):
        assert "epoch_0_step_1 is good" in "".join(said)
        assert said[-1].endswith("resume_from_checkpoint=True")
        removals = [line.strip() for line in said if line.startswith("  rm -r")]
        assert removals == [f"rm -r {out}/epoch_0_step_2"] * (2 in kept)
    for removal in removals:
        subprocess.run(removal, shell=True, check=True)
    allowed = {**resume, "resume_changes": "[optimizer.lr]", "stop__steps": 3}
    train(config(1e-4, **allowed), world_size)
    assert checkpoint.latest(out).name == "epoch_0_step_3"


class ExplodingLoss(JEPALoss):
    """Finite losses of the pairs, and a gradient that is not."""

    def forward(self, *args):
        loss, pair_losses = super().forward(*args)
        return loss * float("inf"), pair_losses


def test_non_finite_gradient_stops_before_the_update(tmp_path):
    base = write_base(tmp_path / "base")
    data = write_records(tmp_path / "train.jsonl", 20)
    loss = f"{__name__}.ExplodingLoss"
    cfg = small_config(base, data, tmp_path / "out", loss=loss)
    with pytest.raises(
        RuntimeError, match=r"gradient is not finite at step 1.*train.jsonl:\d+"
    ):
        train(cfg)
    assert not list((tmp_path / "out").glob("epoch_*"))
