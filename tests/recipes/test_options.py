"""Every training option of torchtune's recipe, and every stopping criterion."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file
from torchtune.models.llama3_2 import lora_llama3_2

from erjepa.checkpoints import checkpoint
from erjepa.objective import JEPALoss
from tests.harness.cases import some_of
from tests.harness.models import write_base
from tests.harness.runs import at_start, read_metrics, small_config, train


def run(base, data, output_dir, world_size=1, **overrides):
    cfg = small_config(base, data, output_dir, **overrides)
    train(cfg, world_size)
    return read_metrics(output_dir)


def losses(metrics):
    return [(m["loss"], m["grad_norm"]) for m in metrics]


SHORT = {"epochs": 1, "max_steps_per_epoch": 4}


def has_moved(output_dir):
    """Whether training changed every adapter, whose second matrix starts at zero."""
    adapter = torch.load(checkpoint.newest(output_dir) / checkpoint.ADAPTER)
    return all(weight.any() for name, weight in adapter.items() if "lora_b" in name)


@pytest.fixture(scope="module")
def plain(base, data, tmp_path_factory):
    return run(base, data, tmp_path_factory.mktemp("plain"), **SHORT)


@pytest.mark.parametrize(
    "overrides",
    [{"enable_activation_checkpointing": True}, {"num_workers": 1}],
    ids=lambda overrides: next(iter(overrides)),
)
def test_options_that_change_no_number(base, data, tmp_path, plain, overrides):
    metrics = run(base, data, tmp_path, **SHORT, **overrides)
    for mine, expected in zip(losses(metrics), losses(plain), strict=True):
        assert mine == pytest.approx(expected, rel=1e-5)


def test_a_tied_output_reads_embeddings_that_are_sharded_separately(
    base, data, tmp_path, plain
):
    settings = {
        "custom_sharded_layers": "[tok_embeddings]",
        "fsdp_reshard_after_forward": True,
    }
    metrics = run(base, data, tmp_path, 2, batch_size=2, **SHORT, **settings)
    for mine, expected in zip(losses(metrics), losses(plain), strict=True):
        assert mine == pytest.approx(expected, rel=1e-5)


def test_a_layer_to_shard_that_is_not_there_is_named(base, data, tmp_path):
    settings = {"custom_sharded_layers": "[output,tok_embeding]", "batch_size": 2}
    with pytest.raises(ValueError, match="the model has no module tok_embeding$"):
        run(base, data, tmp_path, 2, **SHORT, **settings)


class DoubledDistance(JEPALoss):
    """A loss with a distance of its own."""

    def distance(self, predicted, target):
        return 2 * super().distance(predicted, target)


def test_the_memory_and_the_log_ask_the_loss_for_its_distance(base, data, tmp_path):
    loss = f"{__name__}.{DoubledDistance.__name__}"
    cfg = small_config(base, data, tmp_path, loss=loss, stop__steps=1)
    (scores,) = train(
        cfg, 1, lambda recipe: recipe._memory.replay.memory.scores.tolist()
    )
    (metrics,) = read_metrics(tmp_path)
    assert metrics["jepa_loss"] == pytest.approx(2 * (1 - metrics["cosine_paired"]))
    assert metrics["jepa_loss"] == pytest.approx(sum(scores) / len(scores))
    assert metrics["loss"] == pytest.approx(metrics["lm_loss"] + metrics["jepa_loss"])


def test_pairs_and_packing_can_be_given_to_a_spawned_process(base, data, tmp_path):
    def give(recipe):
        own = recipe._pairs.loader.dataset
        given = pickle.loads(pickle.dumps(own))
        (packed,), (expected,) = (part[0, [0, 1, 2]] for part in (given, own))
        return packed.tokens.equal(expected.tokens)

    assert at_start(small_config(base, data, tmp_path), 1, give)


@pytest.mark.parametrize("world_size", some_of([1, 2], [2]))
def test_dora_starts_as_lora_and_trains(base, data, tmp_path, plain, world_size):
    metrics = run(
        base,
        data,
        tmp_path,
        world_size,
        model__use_dora=True,
        batch_size=4 // world_size,
        **SHORT,
    )
    assert metrics[0]["loss"] == pytest.approx(plain[0]["loss"], rel=1e-5)
    assert has_moved(tmp_path)


@pytest.mark.parametrize(
    "use_dora", some_of([False, True], [False]), ids=["LoRA", "DoRA"]
)
@pytest.mark.parametrize("world_size", some_of([1, 2], [2]))
def test_qlora_trains(data, tmp_path, world_size, use_dora):
    # NF4 blocks need wider layers than the small model's.
    wide = {"embed_dim": 256, "intermediate_dim": 512}
    folder = write_base(tmp_path / "base", **wide)
    settings = {**SHORT, **{f"model__{k}": v for k, v in wide.items()}}
    full = run(folder, data, tmp_path / "full", **settings)
    metrics = run(
        folder,
        data,
        tmp_path / "out",
        world_size,
        model__quantize_base=True,
        model__use_dora=use_dora,
        batch_size=4 // world_size,
        **settings,
    )
    assert metrics[0]["loss"] != full[0]["loss"]  # the base is quantized
    for mine, expected in zip(metrics, full, strict=True):
        assert mine["loss"] == pytest.approx(expected["loss"], rel=0.1)
    assert has_moved(tmp_path / "out")


def test_sft_runs_no_views_and_logs_no_jepa_loss(base, data, tmp_path, plain):
    metrics = run(base, data, tmp_path, loss__jepa_weight=0, replay__weight=0, **SHORT)
    assert metrics[0]["lm_loss"] == pytest.approx(plain[0]["lm_loss"], rel=1e-5)
    assert metrics[0]["loss"] == pytest.approx(metrics[0]["lm_loss"], rel=1e-6)
    assert metrics[0]["total_tokens"] < plain[0]["total_tokens"]
    assert "jepa_loss" not in metrics[0] and metrics[-1]["memory_size"] == 0


def test_current_batch_control_replays_the_step_itself(base, data, tmp_path):
    control = {**SHORT, "replay__selection": "current_batch"}
    metrics = run(base, data, tmp_path / "control", **control)
    without = run(base, data, tmp_path / "without", replay__weight=0, **SHORT)
    half = run(base, data, tmp_path / "half", replay__weight=0.5, **control)
    # The replayed pairs are the new ones, so gradients are 1 + beta times theirs.
    first = without[0]["grad_norm"]
    assert metrics[0]["grad_norm"] == pytest.approx(2 * first, rel=1e-5)
    assert half[0]["grad_norm"] == pytest.approx(1.5 * first, rel=1e-5)
    assert half[0]["loss"] == pytest.approx(1.5 * without[0]["loss"], rel=1e-5)
    for m, alone in zip(metrics, without, strict=True):
        assert m["replayed"] == 4
        assert m["step_flops"] == 2 * alone["step_flops"]
        assert m["replay_lm_loss"] == pytest.approx(m["lm_loss"], rel=1e-5)
        assert m["loss"] == pytest.approx(2 * (m["lm_loss"] + m["jepa_loss"]), rel=1e-5)


def test_a_selection_of_the_users_own(base, data, tmp_path):
    metrics = run(base, data, tmp_path, replay__selection=f"{__name__}.oldest", **SHORT)
    assert [m["replayed"] for m in metrics] == [0, 1, 1, 1]


def oldest(request):
    """The first eligible slot, alone."""
    return request.eligible.nonzero().flatten().tolist()[:1]


@pytest.mark.parametrize(
    ("stop", "steps"),
    [({"stop__steps": 2, "save_every_n_steps": 2}, 2), ({"stop__tokens": 1}, 1)],
)
def test_stop_ends_the_run_and_saves(base, data, tmp_path, stop, steps):
    metrics = run(base, data, tmp_path, **stop)
    assert len(metrics) == steps
    assert [p.name for p in tmp_path.glob("epoch_*")] == [f"epoch_0_step_{steps}"]


def test_adapter_only_and_merged_weights(base, data, tmp_path):
    for only, name in ((True, "adapter"), (False, "merged")):
        settings = {**SHORT, "save_adapter_weights_only": only}
        run(base, data, tmp_path / name, **settings)
    adapter, merged = (tmp_path / name / "epoch_0" for name in ("adapter", "merged"))
    assert not list(adapter.glob("model-*"))
    state = torch.load(adapter / "adapter_model.pt", weights_only=True)
    assert state.keys() == {
        name
        for name in lora_llama3_2(
            **{
                **{"lora_attn_modules": ["q_proj", "k_proj", "v_proj", "output_proj"]},
                **{"apply_lora_to_mlp": True, "lora_rank": 4, "lora_alpha": 8},
                **{"vocab_size": 8, "num_layers": 1, "num_heads": 4},
                **{"num_kv_heads": 2, "embed_dim": 32, "max_seq_len": 8},
            }
        ).state_dict()
        if "lora" in name
    }
    before = load_file(base / "model.safetensors")
    after = load_file(merged / "model-00001-of-00001.safetensors")
    assert before.keys() == after.keys()
    changed = {k for k in before if not torch.equal(before[k], after[k])}
    assert changed == {k for k in before if "_proj" in k}
    config = json.loads((merged / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == 4 and config["lora_alpha"] == 8


def test_train_predictor_tokens_moves_them_and_exports_none(base, data, tmp_path):
    rows = {}
    for trained in (True, False):
        out = tmp_path / str(trained)
        run(base, data, out, train_predictor_tokens=trained, **SHORT)
        rows[trained] = checkpoint.load_predictor(out / "epoch_0")
    table = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    assert rows[False] is None
    assert rows[True].shape == (1, 32)
    assert not torch.equal(rows[True][0], table[266])
    exported = load_file(
        tmp_path / "True" / "epoch_0" / "model-00001-of-00001.safetensors"
    )
    assert torch.equal(exported["model.embed_tokens.weight"], table)
