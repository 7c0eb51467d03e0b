"""SmolLM2 trains equally through torchtune and through transformers."""

import pytest
from safetensors.torch import load_file

from tests.harness.runs import read_metrics, train
from tests.harness.smollm2 import real, smollm2_config, write_adapter


@pytest.mark.slow
@real
def test_both_backends_take_the_same_steps(data, tmp_path):
    """Eight steps of ER-JEPA in float32, from the same adapter of PEFT."""
    adapter = write_adapter(tmp_path / "adapter", rank=8)
    logs, adapters = [], []
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
        logs.append(read_metrics(folder))
        weights = folder / "epoch_0" / "adapter" / "adapter_model.safetensors"
        adapters.append(load_file(weights))
    assert len(logs[0]) == len(logs[1]) == 8
    for one, two in zip(*logs, strict=True):
        for name in ("loss", "lm_loss", "jepa_loss", "grad_norm", "replay_lm_loss"):
            assert two.get(name) == pytest.approx(one.get(name), rel=1e-4), name
    started = load_file(adapter / "adapter_model.safetensors")
    for name, start in started.items():
        one, two = (weights[name] - start for weights in adapters)
        assert one.norm() > 0 and (two - one).norm() < 1e-2 * one.norm(), name
