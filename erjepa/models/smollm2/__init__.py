"""SmolLM2-135M-Instruct: a small, openly licensed model with Llama's architecture."""

from erjepa.models.smollm2.model_builders import lora_smollm2_135m, smollm2_135m
from erjepa.models.smollm2.tokenizer import smollm2_tokenizer

__all__ = ["lora_smollm2_135m", "smollm2_135m", "smollm2_tokenizer"]
