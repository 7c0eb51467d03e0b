"""Small random transformers models, in folders with a tokenizer and a chat template."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedTokenizerFast,
)

from tests.harness.models import BASE_SHAPE

SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
VOCAB = 272  # rows of the embeddings, of which 259 have a token

# With a default system message, as SmolLM2's and Qwen2.5's have one.
TEMPLATE = """\
{%- if messages[0]['role'] != 'system' %}<|im_start|>system
Be kind.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# Gemma's: no answer without a question, no system message, a beginning of text.
STRICT = """\
<|end|>{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate') }}{% endif %}<|im_start|>
{{- 'model' if message['role'] == 'assistant' else 'user' }}
{{ message['content'] | trim }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>model
{% endif %}"""

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 4}
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8, "tie_word_embeddings": True},
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8, **WINDOW},
    "gemma3_text": {
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        **WINDOW,
    },
    "mistral": WINDOW,
    "smollm3": {},
    "phi3": {},
    "olmo2": {},
    "granite": {"embedding_multiplier": 2.0, "logits_scaling": 3.0},
    "cohere2": WINDOW,
    "qwen3_moe": {
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
    "gpt_oss": {
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        **WINDOW,
    },
    "glm4": {"head_dim": 8},
    "gpt_neox": {},
    "apertus": {},
    "glm4_moe": {
        **{"head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2},
        **{"moe_intermediate_size": 16, "n_shared_experts": 1},
    },
    "deepseek_v3": {
        **{"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16},
        **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16},
        **{"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1},
        **{"topk_group": 1, "moe_intermediate_size": 16, "n_shared_experts": 1},
    },
}

MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
# Models whose layers carry a state or read tokens, so that rows have one text each.
STATEFUL = {
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 8},
        **{"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "gemma4_text": {
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB},
        **{"num_kv_shared_layers": 0, "head_dim": 8, "global_head_dim": 8, **WINDOW},
    },
    "falcon_h1": {
        **{"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
        **{"mamba_d_state": 8, "mamba_expand": 1, "mamba_chunk_size": 8},
    },
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        **{"num_local_experts": 0, "shared_intermediate_size": 48, **MAMBA},
    },
    "nemotron_h": {
        **{"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8},
        **{"n_groups": 1, "chunk_size": 8, "head_dim": 8, "n_routed_experts": 4},
        **{"num_experts_per_tok": 2, "moe_intermediate_size": 16},
        "moe_shared_expert_intermediate_size": 16,
    },
    "olmo_hybrid": {},
    "zamba2": {
        **{"layers_block_type": ["mamba", "hybrid", "mamba"], "hybrid_layer_ids": [1]},
        **{"num_mem_blocks": 1, "adapter_rank": 4, "n_mamba_heads": 8},
        **{"mamba_headdim": 8, "mamba_d_state": 8, "mamba_ngroups": 1},
    },
}


def random_model(family: str, **extra):
    """A random model with three layers, in evaluation mode."""
    torch.manual_seed(0)
    shape = {**SHAPE, **{**FAMILIES, **STATEFUL}.get(family, {}), **extra}
    config = AutoConfig.for_model(family, **shape)
    return AutoModelForCausalLM.from_config(config).float().eval()


def write_folder(folder: Path, family: str, template: str = TEMPLATE, **shape) -> Path:
    """Write the model with a tokenizer of one token per byte."""
    folder.mkdir(parents=True, exist_ok=True)
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: i for i, name in enumerate([*SPECIAL, *characters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|end|>",
        eos_token="<|im_end|>",
        pad_token="<|end|>",
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    random_model(family, **shape).save_pretrained(folder)
    return folder


VISION = {"hidden_size": 16, "intermediate_size": 16}
# Models that also read images: the family of the text model, and the rest of the config.
IMAGE_READERS = {
    "gemma3": (
        "gemma3_text",
        {
            "vision_config": {
                **{"num_hidden_layers": 1, "num_attention_heads": 2, **VISION},
                **{"image_size": 28, "patch_size": 14},
            },
            **{"mm_tokens_per_image": 4, "image_token_index": 269},
            **{"boi_token_index": 270, "eoi_token_index": 271, "eos_token_id": 2},
        },
    ),
    "gemma4": (
        "gemma4_text",
        {
            "vision_config": {
                **{"num_hidden_layers": 1, "num_attention_heads": 2, **VISION},
                **{"num_key_value_heads": 2, "head_dim": 8},
            },
            "audio_config": None,
        },
    ),
    "qwen3_5": (
        "qwen3_5_text",
        {
            "vision_config": {
                **{"depth": 1, "num_heads": 2, "out_hidden_size": 32, **VISION},
                "num_position_embeddings": 16,
            },
            **{"image_token_id": 260, "video_token_id": 261},
            **{"vision_start_token_id": 262, "vision_end_token_id": 263},
        },
    ),
}


def write_image_reader(folder: Path, kind: str) -> Path:
    """Write a model that also reads images, with the same tokenizer."""
    family, extra = IMAGE_READERS[kind]
    write_folder(folder, family)
    shape = {**SHAPE, **{**FAMILIES, **STATEFUL}[family]}
    text = {k: v for k, v in shape.items() if "token_id" not in k}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, text_config=text, **extra)
    model = AutoModelForImageTextToText.from_config(config).float()
    model.save_pretrained(folder)
    return folder


TOKENS = torch.randint(
    0, BASE_SHAPE["vocab_size"], (4, 40), generator=torch.Generator().manual_seed(0)
)


def logits_of(model, tokens=TOKENS):
    with torch.no_grad():
        output = model.eval()(tokens)
    return getattr(output, "logits", output)


def from_pretrained(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
