"""Converts a GGUF file of a Llama model to a Hugging Face checkpoint folder.

GGUF quantizes weights and interleaves the two halves of each head in ``q_proj`` and ``k_proj``.
The model's shapes and its tokenizer are in the file's metadata.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, ReaderTensor, TokenType, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_checkpoint(gguf_file: Path, output_dir: Path, repository: str) -> None:
    """Write weights (bfloat16), config and tokenizer in Hugging Face's layout.

    Args:
        gguf_file: a Llama model with tied embeddings and SmolLM's tokenizer.

    Raises:
        ValueError: if the file holds another kind of model or tokenizer.
    """
    reader = GGUFReader(gguf_file)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    for key, expected in (
        ("general.architecture", "llama"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "smollm"),
    ):
        if metadata.get(key) != expected:
            raise ValueError(
                f"{gguf_file}: {key} is {metadata.get(key)}, expected {expected}"
            )
    output_dir.mkdir(parents=True, exist_ok=True)
    weights = dict(_weights(reader.tensors, metadata))
    save_file(weights, output_dir / "model.safetensors", metadata={"format": "pt"})
    tokenizer = _tokenizer(metadata)
    tokenizer.save(str(output_dir / "tokenizer.json"))
    for name, content in (
        ("config.json", _config(metadata)),
        ("tokenizer_config.json", _tokenizer_config(metadata)),
        ("generation_config.json", _special_ids(metadata)),
        ("original_repo_id.json", {"repo_id": repository}),
    ):
        (output_dir / name).write_text(json.dumps(content, indent=2) + "\n")
    # save_file makes a file that only its owner may read.
    shutil.copymode(output_dir / "config.json", output_dir / "model.safetensors")


def _weights(
    tensors: list[ReaderTensor], metadata: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    heads = {
        "attn_q": metadata["llama.attention.head_count"],
        "attn_k": metadata["llama.attention.head_count_kv"],
    }
    for tensor in tensors:
        *block, part, kind = tensor.name.split(".")
        if part not in _NAMES:
            raise ValueError(f"a Llama model with tied embeddings has no {tensor.name}")
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        if part in heads:
            weight = _halves_apart(weight, heads[part])
        prefix = f"model.layers.{block[1]}." if block else ""
        yield f"{prefix}{_NAMES[part]}.{kind}", weight.bfloat16().contiguous()


def _halves_apart(weight: Tensor, num_heads: int) -> Tensor:
    """Undo GGUF's interleaving of the halves of each head, [heads * head_dim, H]."""
    width = weight.shape[1]
    return weight.view(num_heads, -1, 2, width).transpose(1, 2).reshape(-1, width)


def _special_ids(metadata: dict[str, Any]) -> dict[str, int]:
    return {
        f"{name}_token_id": metadata[f"tokenizer.ggml.{key}_token_id"]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }


def _config(metadata: dict[str, Any]) -> dict[str, Any]:
    llama = {
        key.removeprefix("llama."): value
        for key, value in metadata.items()
        if key.startswith("llama.")
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "hidden_act": "silu",
        "head_dim": llama["rope.dimension_count"],
        "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"],
        "max_position_embeddings": llama["context_length"],
        "mlp_bias": False,
        "num_attention_heads": llama["attention.head_count"],
        "num_hidden_layers": llama["block_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        # Stored as float32; rounding restores the decimal value.
        "rms_norm_eps": round(llama["attention.layer_norm_rms_epsilon"], 12),
        "rope_scaling": None,
        "rope_theta": llama["rope.freq_base"],
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": llama["vocab_size"],
        **_special_ids(metadata),
    }


def _tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    """Build SmolLM's tokenizer: byte-level BPE that splits numbers into digits."""
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == TokenType.CONTROL
        ]
    )
    return tokenizer


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    special = {
        name.removesuffix("_id"): tokens[token_id]
        for name, token_id in _special_ids(metadata).items()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "chat_template": metadata["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
    }
