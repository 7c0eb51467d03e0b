"""Small random models and pairs for tests."""

import base64
import json
import random
from array import array
from pathlib import Path

import torch
from safetensors.torch import save_file
from torchtune.models.convert_weights import tune_to_hf
from torchtune.models.llama3_2 import llama3_2, lora_llama3_2
from torchtune.modules import TransformerDecoder
from torchtune.modules.peft import get_adapter_params, set_trainable_params
from torchtune.training import FullModelHFCheckpointer

from erjepa.datasets import Pair

VOCAB = 96
PREDICTOR_IDS = [94, 95]


def small_decoder(
    seed: int = 0, *, b_is_zero: bool = False, builder=lora_llama3_2, **kwargs
) -> TransformerDecoder:
    """A two-layer LoRA decoder, with nonzero adapters unless ``b_is_zero``."""
    torch.manual_seed(seed)
    decoder = builder(
        **{
            "lora_attn_modules": ["q_proj", "k_proj", "v_proj", "output_proj"],
            "apply_lora_to_mlp": True,
            "vocab_size": VOCAB,
            "num_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "embed_dim": 32,
            "max_seq_len": 512,
            "intermediate_dim": 48,
            "scale_factor": 1,
            "lora_rank": 4,
            "lora_alpha": 8,
            **kwargs,
        }
    )
    set_trainable_params(decoder, get_adapter_params(decoder))
    if not b_is_zero:
        for name, parameter in decoder.named_parameters():
            if "lora_b" in name:
                torch.nn.init.normal_(parameter, std=0.1)
    return decoder


def random_pair(example_id: int, rng: random.Random) -> Pair:
    """A pair of random lengths; source and source view differ as with a system prompt."""

    def tokens(low: int, high: int) -> array:
        length = rng.randint(low, high)
        return array("i", [rng.randrange(VOCAB - 2) for _ in range(length)])

    source_view, target, bridge = tokens(2, 9), tokens(2, 8), array("i", [3, 4, 5])
    return Pair(
        example_id,
        source=tokens(1, 4) + source_view,
        bridge=bridge,
        target=target,
        source_view=source_view,
        target_view=array("i", [1, 4, 5]) + target[:-1],
    )


def random_pairs(count: int, seed: int = 0) -> list[Pair]:
    """``count`` pairs with ids 0, 1, ..."""
    rng = random.Random(seed)
    return [random_pair(i, rng) for i in range(count)]


def related_pairs(count: int, seed: int = 0) -> list[Pair]:
    """Random pairs that share a source or a target, are a prefix of another, or are equal."""
    rng = random.Random(seed)
    pairs: list[Pair] = []
    for i in range(count):
        pair = random_pair(i, rng)
        known = rng.choice(pairs) if pairs else pair
        changes = rng.choice(
            [
                {},
                known._asdict(),
                {"source": known.source, "source_view": known.source_view},
                {"target": known.target, "target_view": known.target_view},
                {
                    **{"source": known.source, "source_view": known.source_view},
                    "target": known.target[: rng.randint(1, len(known.target))],
                    "target_view": known.target_view[:4],
                },
                {
                    "source": known.source + pair.source_view,
                    "source_view": known.source_view + pair.source_view,
                },
            ]
        )
        pairs.append(pair._replace(**{**changes, "example_id": i}))
    return pairs


SPECIAL_TOKENS = (
    "<|begin_of_text|> <|end_of_text|> <|finetune_right_pad_id|> <|step_id|> "
    "<|start_header_id|> <|end_header_id|> <|eom_id|> <|eot_id|> <|python_tag|> <|image|> "
    "<|reserved_special_token_0|> <|reserved_special_token_1|> <|reserved_special_token_2|>"
).split()
BASE_SHAPE = {
    "vocab_size": 256 + len(SPECIAL_TOKENS),
    "num_layers": 1,
    "num_heads": 4,
    "num_kv_heads": 2,
    "embed_dim": 32,
    "intermediate_dim": 48,
    "max_seq_len": 512,
    "scale_factor": 1,
}


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level Llama 3 tokenizer: one token per byte, and the special tokens."""
    lines = (f"{base64.b64encode(bytes([i])).decode()} {i}\n" for i in range(256))
    (folder / "tokenizer.model").write_text("".join(lines))
    added = [{"content": t, "id": 256 + i} for i, t in enumerate(SPECIAL_TOKENS)]
    (folder / "special_tokens.json").write_text(json.dumps({"added_tokens": added}))


def write_config(folder: Path, shape: dict[str, int]) -> None:
    """The ``config.json`` of a Llama model of this shape."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape["vocab_size"],
        "num_hidden_layers": shape["num_layers"],
        "num_attention_heads": shape["num_heads"],
        "num_key_value_heads": shape["num_kv_heads"],
        "hidden_size": shape["embed_dim"],
        "head_dim": shape["embed_dim"] // shape["num_heads"],
        "intermediate_size": shape["intermediate_dim"],
        "max_position_embeddings": shape["max_seq_len"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,  # what torchtune's builder has
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))


def write_base(folder: Path, **shape) -> Path:
    """A random base model in Hugging Face format with a byte-level tokenizer."""
    shape = {**BASE_SHAPE, **shape}
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    torch.manual_seed(0)
    model = llama3_2(**shape)
    torch.nn.init.normal_(model.tok_embeddings.weight, std=0.2)
    write_config(folder, shape)
    weights = tune_to_hf(
        model.state_dict(),
        num_heads=shape["num_heads"],
        num_kv_heads=shape["num_kv_heads"],
        dim=shape["embed_dim"],
    )
    weights = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def base_weights(base: Path, output_dir: Path) -> dict[str, torch.Tensor]:
    """Weights of :func:`write_base`, under torchtune's names."""
    checkpointer = FullModelHFCheckpointer(
        str(base), ["model.safetensors"], "LLAMA3_2", str(output_dir)
    )
    return checkpointer.load_checkpoint()["model"]


def arrays(*paths):
    return [array("i", path) for path in paths]


def random_paths(seed):
    """Paths that share prefixes, are prefixes of others, or repeat."""
    rng = random.Random(seed)
    paths = []
    for _ in range(rng.randint(1, 30)):
        known = rng.choice(paths) if paths else []
        kept = known[: rng.randint(0, len(known))]
        paths.append(
            kept + [rng.randrange(-2, 5) for _ in range(rng.choice([0, 1, 4, 20]))]
        )
    return arrays(*(path or [7] for path in paths))
