"""transformers and peft read what a run writes, and compute what it computed.

Chain: live model = merged checkpoint in transformers = base in transformers + adapter in peft;
greedy text of the merged checkpoint in transformers = greedy text of ours.
"""

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tests.models_for_tests import BASE_SHAPE, write_tokenizer
from tests.recipes.harness import make_config, overrides_for, train

TOKENS = torch.randint(
    0, BASE_SHAPE["vocab_size"], (4, 40), generator=torch.Generator().manual_seed(0)
)


def logits_of(model):
    with torch.no_grad():
        output = model.eval()(TOKENS)
    return getattr(output, "logits", output)


def from_pretrained(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A random Qwen 2 base: biases, and rotary halves apart."""
    folder = tmp_path_factory.mktemp("qwen")
    write_tokenizer(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=BASE_SHAPE["vocab_size"],
        hidden_size=BASE_SHAPE["embed_dim"],
        intermediate_size=BASE_SHAPE["intermediate_dim"],
        num_hidden_layers=BASE_SHAPE["num_layers"],
        num_attention_heads=BASE_SHAPE["num_heads"],
        num_key_value_heads=BASE_SHAPE["num_kv_heads"],
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    model = Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder


QWEN = [
    "model=torchtune.models.qwen2.lora_qwen2",
    "model.tie_word_embeddings=True",
    "model.norm_eps=1e-6",
    "model.rope_base=10000",
    "checkpointer.model_type=QWEN2",
]


@pytest.fixture(scope="module", params=["llama", "llama_dora", "qwen"])
def run(request, base, qwen, data, tmp_path_factory):
    """The base and the checkpoint of a finished run, and the logits of its live model."""
    output_dir = tmp_path_factory.mktemp(request.param)
    folder = qwen if request.param == "qwen" else base
    overrides = overrides_for(
        folder, data, output_dir, stop__steps=4, optimizer__lr=3e-2
    )
    overrides.append(f"model.use_dora={request.param.endswith('dora')}")
    if request.param == "qwen":
        overrides = [o for o in overrides if "scale_factor" not in o] + QWEN
    (logits,) = train(
        make_config(overrides), 1, lambda recipe: logits_of(recipe._model.decoder)
    )
    return folder, output_dir / "epoch_0_step_4", logits


def test_the_run_moved_the_model(run):
    base, _, logits = run
    assert (logits_of(from_pretrained(base)) - logits).abs().max() > 0.1


def test_merged_checkpoint_in_transformers(run):
    _, checkpoint, logits = run
    loaded = logits_of(from_pretrained(checkpoint))
    torch.testing.assert_close(loaded, logits, rtol=0, atol=1e-4)


def test_adapter_in_peft(run):
    base, checkpoint, logits = run
    model = PeftModel.from_pretrained(from_pretrained(base), checkpoint / "adapter")
    torch.testing.assert_close(logits_of(model), logits, rtol=0, atol=1e-4)
