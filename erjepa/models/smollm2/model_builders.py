"""Builders of SmolLM2-135M, which has the architecture of torchtune's Llama 3.2."""

from torchtune.models.llama3_2 import llama3_2, lora_llama3_2
from torchtune.modules import TransformerDecoder
from torchtune.modules.peft import LORA_ATTN_MODULES

_ARCHITECTURE = {
    "vocab_size": 49_152,
    "num_layers": 30,
    "num_heads": 9,
    "num_kv_heads": 3,
    "embed_dim": 576,
    "max_seq_len": 8192,
    "intermediate_dim": 1536,
    "norm_eps": 1e-5,
    "rope_base": 100_000,
    "scale_factor": 1,  # plain rotary embeddings
    "tie_word_embeddings": True,
}


def smollm2_135m() -> TransformerDecoder:
    """Build SmolLM2-135M, see https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct."""
    return llama3_2(**_ARCHITECTURE)


def lora_smollm2_135m(
    lora_attn_modules: list[LORA_ATTN_MODULES],
    apply_lora_to_mlp: bool = False,
    apply_lora_to_output: bool = False,
    lora_rank: int = 8,
    lora_alpha: float = 16,
    lora_dropout: float = 0.0,
    use_dora: bool = False,
    quantize_base: bool = False,
) -> TransformerDecoder:
    """Build SmolLM2-135M with LoRA; the arguments are those of torchtune's builders.

    Raises:
        ValueError: if ``apply_lora_to_output`` is True, as the output is tied to the embeddings.
    """
    return lora_llama3_2(
        lora_attn_modules=lora_attn_modules,
        apply_lora_to_mlp=apply_lora_to_mlp,
        apply_lora_to_output=apply_lora_to_output,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        lora_dropout=lora_dropout,
        use_dora=use_dora,
        quantize_base=quantize_base,
        **_ARCHITECTURE,
    )
