"""SmolLM2 trains equally through torchtune and through transformers."""

import pytest
from safetensors.torch import load_file

from tests.harness.runs import assert_close_logs, read_metrics, train
from tests.harness.smollm2 import real, smollm2_config, write_adapter


@pytest.mark.slow
@real
def test_both_backends_take_the_same_steps(data, tmp_path):
    """Eight steps of ER-JEPA in float32, from the same adapter of PEFT."""
    adapter = write_adapter(tmp_path / "adapter", rank=8)
    adapters = []
    for backend in ("torchtune", "transformers"):
        folder = tmp_path / backend
        overrides = {
            "init_from": adapter,
            "output_dir": folder,
            "dataset.source": data,
            "dtype": "fp32",
            "batch_size": 4,
            "epochs": 1,
            "max_steps_per_epoch": 8,
            "save_adapter_weights_only": True,
        }
        train(smollm2_config(backend, rank=8, **overrides))
        weights = folder / "epoch_0" / "adapter" / "adapter_model.safetensors"
        adapters.append(load_file(weights))
    assert len(read_metrics(tmp_path / "torchtune")) == 8
    names = ("loss", "lm_loss", "jepa_loss", "grad_norm", "replay_lm_loss")
    assert_close_logs(
        tmp_path / "transformers", tmp_path / "torchtune", names, absolute=0
    )
    started = load_file(adapter / "adapter_model.safetensors")
    for name, start in started.items():
        one, two = (weights[name] - start for weights in adapters)
        assert one.norm() > 0 and (two - one).norm() < 1e-2 * one.norm(), name
