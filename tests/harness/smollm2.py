"""A small GGUF file in the format of llama.cpp's converter, and the folder of the real SmolLM2."""

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel

from erjepa.configs import Config, load

FOLDER = Path(os.environ.get("ERJEPA_SMOLLM2", "/tmp/SmolLM2-135M-Instruct"))
real = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs SmolLM2's folder")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<empty_output>"]
MERGES = ["1 2", "Ġ a", "u s", "us e", "use r", "< |"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS = 64, 96, 2, 4, 2


def vocabulary():
    merged = [pair.replace(" ", "") for pair in MERGES]
    return [*SPECIAL, *sorted(ByteLevel.alphabet()), *merged]


def weights():
    """Random weights under their GGUF names, in the row order of Hugging Face."""
    rng = np.random.default_rng(0)
    kv = WIDTH // HEADS * KV_HEADS
    shapes = {"token_embd": (len(vocabulary()), WIDTH), "output_norm": (WIDTH,)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm": (WIDTH,),
            f"blk.{i}.attn_q": (WIDTH, WIDTH),
            f"blk.{i}.attn_k": (kv, WIDTH),
            f"blk.{i}.attn_v": (kv, WIDTH),
            f"blk.{i}.attn_output": (WIDTH, WIDTH),
            f"blk.{i}.ffn_norm": (WIDTH,),
            f"blk.{i}.ffn_gate": (HIDDEN, WIDTH),
            f"blk.{i}.ffn_up": (HIDDEN, WIDTH),
            f"blk.{i}.ffn_down": (WIDTH, HIDDEN),
        }
    return {
        f"{name}.weight": rng.normal(size=shape, scale=0.3).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_gguf(path, architecture="llama", pre="smollm"):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary()))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary())
    normal = len(vocabulary()) - len(SPECIAL)
    writer.add_token_types(
        [gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * normal
    )
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, weight in weights().items():
        for part, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS)):
            if part in name:  # as llama.cpp's converter interleaves them
                split = weight.reshape(heads, 2, -1, WIDTH)
                weight = np.ascontiguousarray(
                    split.swapaxes(1, 2).reshape(weight.shape)
                )
        kind = gguf.GGMLQuantizationType.F32
        if "ffn" in name and weight.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            weight = gguf.quantize(weight, kind)
        writer.add_tensor(name, weight, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


LINEAR = {
    **dict.fromkeys(["q_proj", "k_proj", "v_proj", "o_proj"], "self_attn"),
    **dict.fromkeys(["gate_proj", "up_proj", "down_proj"], "mlp"),
}


def smollm2_config(backend: str, *, rank: int, **overrides: Any) -> Config:
    """The real SmolLM2 for ``torchtune`` or ``transformers``, with the former's prompts."""
    settings = {
        "model.lora_rank": rank,
        "model.lora_alpha": 2 * rank,
        "tokenizer.path": FOLDER / "tokenizer.json",
        "checkpointer.checkpoint_dir": FOLDER,
        "dataset": "erjepa.datasets.paired_dataset",
        "num_workers": 0,
        "row_length": "null",
        **overrides,
    }
    if backend == "transformers":
        package = "erjepa.models.transformers"
        settings = {
            "model": f"{package}.lora_decoder",
            "model.path": FOLDER,
            "checkpointer": f"{package}.TransformersCheckpointer",
            **settings,
        }
    return load("smollm2_135m_synth", [f"{k}={v}" for k, v in settings.items()])


def write_adapter(folder: Path, rank: int) -> Path:
    """A random adapter of the real SmolLM2 in PEFT's format."""
    shape = json.loads((FOLDER / "config.json").read_text())
    width, head = shape["hidden_size"], shape["head_dim"]
    kv, hidden = shape["num_key_value_heads"] * head, shape["intermediate_size"]
    sizes = {
        **{"q_proj": (width, width), "o_proj": (width, width)},
        **{"k_proj": (width, kv), "v_proj": (width, kv)},
        **{"gate_proj": (width, hidden), "up_proj": (width, hidden)},
        "down_proj": (hidden, width),
    }
    generator, weights = torch.Generator().manual_seed(0), {}
    for layer in range(shape["num_hidden_layers"]):
        for name, part in LINEAR.items():
            prefix = f"base_model.model.model.layers.{layer}.{part}.{name}"
            for side, size in (
                ("A", (rank, sizes[name][0])),
                ("B", (sizes[name][1], rank)),
            ):
                weight = 0.02 * torch.randn(size, generator=generator)
                weights[f"{prefix}.lora_{side}.weight"] = weight
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
