"""Decoders of transformers with torchtune's interfaces: model, tokenizer and checkpointer."""

try:
    from erjepa.models.transformers.builders import decoder, lora_decoder
    from erjepa.models.transformers.checkpointer import TransformersCheckpointer
    from erjepa.models.transformers.decoder import TransformersDecoder
    from erjepa.models.transformers.tokenizer import TransformersTokenizer
except ImportError as error:  # transformers is missing or older than 5
    if (error.name or "").startswith("erjepa"):
        raise
    raise ImportError(f"{error}: pip install -U 'erjepa[transformers]'") from error

__all__ = [
    "TransformersCheckpointer",
    "TransformersDecoder",
    "TransformersTokenizer",
    "decoder",
    "lora_decoder",
]
