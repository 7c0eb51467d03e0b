"""Embed a prompt with the model of a run, to find similar slots of its memory."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from erjepa.configs import load, require_files
from erjepa.evaluation.model import load_model
from erjepa.evaluation.run import find_run, first_pair
from erjepa.objective import PackedDecoder
from erjepa.packing import PairCollator
from erjepa.training.model.build import attention_for
from erjepa.training.model.device import attention_of, run_device


@torch.inference_mode()
def prompt_embedding(
    checkpoint: Path, prompt: str, overrides: Sequence[str] = ()
) -> Tensor:
    """Return z^u of a prompt, [1, H] on the CPU, formatted like the sources of training pairs.

    Raises:
        FileNotFoundError: if the run's config or model is missing.
        ValueError: if the prompt is empty or too long, or the weights are damaged or of another
            model.
    """
    cfg_file, path = find_run(checkpoint)
    cfg = load(str(cfg_file), overrides)
    device = run_device(cfg)
    attention = attention_of(cfg, device)
    cfg = require_files(cfg)
    tokenizer = cfg.tokenizer.build()
    pair = first_pair(cfg, tokenizer).pair_of(prompt)
    model = load_model(cfg, device, path)
    attention = attention_for(model, cfg, attention)
    collator = PairCollator(  # no predictor tokens: they come after z^u
        views=cfg.views,
        pad_id=tokenizer.pad_id,
        row_length=cfg.row_length,
        attention=attention,
    )
    batch = collator([pair])
    if (tokens := int(batch.input_pos.max()) + 1) > model.max_seq_len:
        raise ValueError(
            f"the prompt has {tokens} tokens, but the model has positions for "
            f"{model.max_seq_len}; shorten it"
        )
    embedder = PackedDecoder(model, attention=attention)
    return embedder(batch.to(device)).source.float().cpu()
