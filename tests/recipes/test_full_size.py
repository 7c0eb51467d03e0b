"""Llama-3.2-1B's full shape on the CPU: training, saving, resuming and merging within 24 GiB."""

import resource

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torchtune import training
from torchtune.models.convert_weights import tune_to_hf
from torchtune.models.llama3_2 import llama3_2_1b

from tests.harness.data import write_records
from tests.harness.models import write_config, write_tokenizer
from tests.harness.runs import make_config, read_metrics, train

GIB = 1024**3
SHAPE = {
    "vocab_size": 128_256,
    "num_layers": 16,
    "num_heads": 32,
    "num_kv_heads": 8,
    "embed_dim": 2048,
    "intermediate_dim": 8192,
    "max_seq_len": 131_072,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama_1b")
    write_tokenizer(folder)
    write_config(folder, SHAPE)
    torch.manual_seed(0)
    with training.set_default_dtype(torch.bfloat16):
        model = llama3_2_1b()
    torch.nn.init.normal_(model.tok_embeddings.weight, std=0.02)
    weights = tune_to_hf(model.state_dict(), num_heads=32, num_kv_heads=8, dim=2048)
    weights = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def config(base, output_dir, data, *more):
    return make_config(
        [
            f"output_dir={output_dir}",
            "dataset=erjepa.datasets.paired_dataset",
            f"dataset.source={data}",
            f"tokenizer.path={base / 'tokenizer.model'}",
            f"tokenizer.special_tokens_path={base / 'special_tokens.json'}",
            f"checkpointer.checkpoint_dir={base}",
            "device=cpu",
            "row_length=null",
            "optimizer.lr=1e-3",
            "lr_scheduler.num_warmup_steps=0",
            *more,
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_two_steps_and_a_third_after_resuming(base, world_size, tmp_path):
    data = write_records(tmp_path / "train.jsonl", 16)
    per_rank = f"batch_size={4 // world_size}"
    short = (per_rank, "save_every_n_steps=2", "epochs=1")
    train(config(base, tmp_path, data, *short, "stop.steps=2"), world_size)
    resumed = (*short, "stop.steps=3", "resume_from_checkpoint=True")
    train(config(base, tmp_path, data, *resumed), world_size)

    steps = read_metrics(tmp_path)
    assert [step["replayed"] for step in steps] == [0, 4, 4]
    assert [step["memory_size"] for step in steps] == [4, 8, 12]
    assert all(0 < step["grad_norm"] < float("inf") for step in steps)

    # ru_maxrss is the largest rank's, in KiB; all may be at their peak at once.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 * world_size
    assert peak < 24 * GIB, f"{peak / GIB:.1f} GiB"

    checkpoint = tmp_path / "epoch_0_step_3"
    adapter = torch.load(checkpoint / "adapter_model.pt", weights_only=True)
    name = "layers.7.mlp.w2"
    a, b = (adapter[f"{name}.lora_{x}.weight"].float() for x in "ab")
    assert a.shape == (512, 8192) and b.abs().max() > 0
    hf_name = "model.layers.7.mlp.down_proj.weight"
    with (
        safe_open(base / "model.safetensors", "pt") as before,
        safe_open(checkpoint / "model-00001-of-00001.safetensors", "pt") as after,
    ):
        assert set(before.keys()) == set(after.keys())
        merged = before.get_tensor(hf_name).float() + 1024 / 512 * b @ a
        torch.testing.assert_close(
            after.get_tensor(hf_name).float(), merged, rtol=2**-7, atol=2**-12
        )
