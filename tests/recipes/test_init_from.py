"""A run starts from the trained weights of another one."""

import pytest
import torch

from erjepa.checkpoints import checkpoint
from tests.recipes.harness import make_config, overrides_for, train

SETTINGS = {"batch_size": 8, "epochs": 1, "replay__selection": "uniform"}


def config(base, data, output_dir, **overrides):
    return make_config(overrides_for(base, data, output_dir, **SETTINGS, **overrides))


def trained_weights(recipe):
    return {
        name.removeprefix("decoder."): parameter.detach().clone()
        for name, parameter in recipe._model.named_parameters()
        if parameter.requires_grad
    }


@pytest.fixture(scope="module")
def earlier(base, data, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("earlier")
    train(config(base, data, output_dir, model__lora_dropout=0.1))
    return output_dir


@pytest.mark.parametrize("place", [".", "epoch_0"])
def test_its_first_step_has_the_weights_of_the_other_run(
    base, data, tmp_path, earlier, place
):
    overrides = {"init_from": earlier / place, "optimizer__lr": 0.0, "stop__steps": 1}
    (found,) = train(config(base, data, tmp_path, **overrides), 1, trained_weights)
    adapter = torch.load(earlier / "epoch_0" / checkpoint.ADAPTER, weights_only=True)
    expected = {**adapter, "predictor": checkpoint.load_predictor(earlier / "epoch_0")}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_resumed_run_does_not_start_over(base, data, tmp_path, earlier):
    overrides = {"init_from": earlier, "save_every_n_steps": 2}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    (expected,) = train(config(base, data, whole, **overrides), 1, trained_weights)
    train(config(base, data, parts, **overrides, stop__steps=2))
    (found,) = train(
        config(base, data, parts, **overrides, resume_from_checkpoint=True),
        1,
        trained_weights,
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"init_from": "nowhere"}, "init_from=nowhere holds no adapter_model.pt"),
        ({"model__lora_rank": 8}, "of another shape"),
        ({"num_predictor_tokens": 2}, "has 1 predictor tokens"),
    ],
)
def test_what_cannot_be_started_from(base, data, tmp_path, earlier, overrides, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(config(base, data, tmp_path, **{"init_from": earlier, **overrides}))


def test_a_damaged_adapter_is_refused(base, data, tmp_path, earlier):
    path = tmp_path / "copy"
    path.mkdir()
    for file in (earlier / "epoch_0").iterdir():
        if file.is_file():
            (path / file.name).write_bytes(file.read_bytes())
    content = bytearray((path / checkpoint.ADAPTER).read_bytes())
    content[len(content) // 2] ^= 1
    (path / checkpoint.ADAPTER).write_bytes(content)
    with pytest.raises(ValueError, match="adapter_model.pt is damaged"):
        train(config(base, data, tmp_path / "run", init_from=path))
