"""The recipes on a simulated CUDA device: no operation mixes devices, and steps rarely wait."""

import pytest
import torch

from erjepa_recipe.evaluate_erjepa import EvaluationRecipeERJEPA
from erjepa_recipe.lora_finetune_distributed_erjepa import FinetuneRecipeERJEPA
from tests.harness.cases import RUNS, some_of
from tests.harness.pretended_device import pretended_device
from tests.harness.ranks import on_ranks
from tests.harness.runs import make_config

# Of a step.
MOST_WAITS = {name: 40 for name in RUNS} | {"SFT": 4}

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="a CUDA build of torch asks the real driver"
)


def on_cuda(output_dir, *overrides):
    """A config whose memory is full in the second step."""
    settings = [
        "device=cuda",
        "batch_size=8",
        "row_length=256",
        "dataset.size=48",
        "eval_dataset.size=4",
        "max_new_tokens=8",
        "stop.steps=2",
        "replay.capacity=12",
        f"output_dir={output_dir}",
    ]
    return make_config([*settings, *overrides], "tiny_synth")


def train(cfg, world_size=1, saves=False):
    """Train on pretended devices: of each rank how often the last step waited, by line and
    cause, and the collectives of the run.
    """

    def run():
        with pretended_device() as records:
            recipe = FinetuneRecipeERJEPA(cfg)
            recipe.setup()
            if not saves:
                recipe.save_checkpoint = lambda: None
            waits = []
            owners = [(recipe, "_train_step"), (recipe._metrics_log, "step")]
            for owner, name in owners:
                setattr(owner, name, counted(getattr(owner, name), records, waits))
            recipe.train()
            recipe._folder.close()
        return dict(waits[-2] + waits[-1]), records.collectives

    return on_ranks(run, world_size)


def counted(function, records, waits):
    """A function whose calls append to ``waits`` what they wait for."""

    def call(*args, **kwargs):
        before = records.waits.copy()
        result = function(*args, **kwargs)
        waits.append(records.waits - before)
        return result

    return call


def test_what_a_gpu_would_refuse():
    with pretended_device() as records:
        there, here = torch.ones(2, device="cuda"), torch.ones(2)
        assert there.device.type == (there + 1).device.type == "cuda"
        for fault in (
            lambda: there + here,
            lambda: here[there.long()],
            lambda: torch.stack([there, here]),
            lambda: here.copy_(there) @ there,
        ):
            with pytest.raises(RuntimeError, match="mixes devices"):
                fault()
        with pytest.raises(TypeError, match="of a tensor on CUDA"):
            there.numpy()
        records.waits.clear()
        assert there.sum().item() == 2 and there.tolist() == here.to("cuda").tolist()
        assert len(there[there > 0]) == 2
        here.pin_memory().to("cuda", non_blocking=True)
        assert records.waits.total() == 5
    assert here.device.type == "cpu"


@pytest.mark.parametrize("name", some_of(RUNS, ["content", "SFT"]))
def test_training(name, tmp_path):
    ((waits, _),) = train(on_cuda(tmp_path, *RUNS[name]))
    assert sum(waits.values()) <= MOST_WAITS[name], waits


def test_a_measured_update_waits_as_often_for_any_number_of_weights(tmp_path):
    ((waits, _),) = train(on_cuda(tmp_path, "log_replay_gradients_every_n_steps=1"))
    assert any("probe.py" in line for line in waits)
    assert sum(waits.values()) <= 45, waits


def test_ranks_call_the_same_collectives(tmp_path):
    """In one order, and each with tensors of one device, dtype and shape."""
    (waits, first), (_, second) = train(on_cuda(tmp_path, "batch_size=4"), 2)
    assert sum(waits.values()) <= 40, waits
    # What comes after belongs to the rank that scatters.
    assert [call[:2] for call in first] == [call[:2] for call in second]
    assert ("c10d::_allgather_base_", "cuda") in {(n, d) for n, (d, *_), *_ in first}


@pytest.mark.slow
def test_saving_resuming_and_evaluating(tmp_path):
    keys = ["ema_decay=0.9", "model.use_dora=True", "alignment=True", "checkpoint=both"]
    train(on_cuda(tmp_path, *keys, "stop.steps=1"), saves=True)
    keys += ["log_replay_gradients_every_n_steps=1", "resume_from_checkpoint=True"]
    train(on_cuda(tmp_path, *keys), saves=True)
    cfg = on_cuda(tmp_path, *keys)

    def evaluate():
        with pretended_device():
            recipe = EvaluationRecipeERJEPA(cfg)
            recipe.setup()
            return [summary.weights for summary in recipe.evaluate()]

    assert on_ranks(evaluate, 1) == [["adapter", "averaged adapter"]]
