"""Greedy generation of a batch of ragged prompts."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchtune.modules import TransformerDecoder
from torchtune.modules.common_utils import local_kv_cache


@torch.inference_mode()
def generate_greedy(
    model: TransformerDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_tokens: Sequence[int],
    pad_id: int,
) -> list[list[int]]:
    """Continue every prompt with its most likely tokens, with a key-value cache.

    Prompts are padded on the left. Unlike ``torchtune.generation.generate``, padding is
    known by its place and not by its id, the output projection runs for the last token
    only, and no logits are kept: with 128k tokens in the vocabulary those take gigabytes.

    Args:
        model (TransformerDecoder): decoder in evaluation mode.
        prompts (Sequence[Sequence[int]]): token ids of B prompts, of any lengths.
        max_new_tokens (int): most tokens to generate for a prompt.
        stop_tokens (Sequence[int]): any of these ends a text; it is not returned.
        pad_id (int): any id of the vocabulary.

    Returns:
        list[list[int]]: the new tokens of each prompt.
    """
    weight = model.tok_embeddings.weight
    device = weight.device
    longest = max(map(len, prompts))
    total = longest + max_new_tokens
    padded = [[pad_id] * (longest - len(p)) + list(p) for p in prompts]
    lengths = torch.tensor([len(p) for p in prompts], device=device)

    column = torch.arange(total, device=device)
    real = column >= (longest - lengths)[:, None]  # [B, total]
    input_pos = (real.cumsum(dim=1) - 1).clamp(min=0)
    causal = column[:, None] >= column[None, :]
    # A padding token sees itself, so that no row of the softmax is empty.
    mask = (causal & real[:, None, :]) | torch.eye(
        total, dtype=torch.bool, device=device
    )

    stops = torch.tensor(list(stop_tokens), dtype=torch.int64, device=device)
    finished = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    tokens, rows = torch.tensor(padded, device=device), slice(0, longest)
    generated = []
    with local_kv_cache(
        model,
        batch_size=len(prompts),
        device=device,
        dtype=weight.dtype,
        decoder_max_seq_len=total,
    ):
        for _ in range(max_new_tokens):
            logits = _last_logits(model, tokens, mask[:, rows], input_pos[:, rows])
            tokens = logits.argmax(dim=-1, keepdim=True)
            generated.append(tokens)
            finished |= torch.isin(tokens[:, 0], stops)
            if finished.all():
                break
            rows = slice(rows.stop, rows.stop + 1)
    return [_until(row, stop_tokens) for row in torch.cat(generated, dim=1).tolist()]


def _last_logits(
    model: TransformerDecoder, tokens: Tensor, mask: Tensor, input_pos: Tensor
) -> Tensor:
    """Logits after the last token of each row, [B, V]."""
    hidden = model.tok_embeddings(tokens)
    for layer in model.layers:
        hidden = layer(hidden, mask=mask, input_pos=input_pos)
    return model.output(model.norm(hidden[:, -1:]))[:, -1]


def _until(tokens: list[int], stop_tokens: Sequence[int]) -> list[int]:
    stops = (i for i, token in enumerate(tokens) if token in stop_tokens)
    return tokens[: next(stops, len(tokens))]
