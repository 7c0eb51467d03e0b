"""Greedy generation of a batch of ragged prompts."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchtune.generation import generate
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

    Args:
        model (TransformerDecoder): decoder in evaluation mode.
        prompts (Sequence[Sequence[int]]): token ids, of any lengths.
        max_new_tokens (int): most tokens to generate for a prompt.
        stop_tokens (Sequence[int]): any of these ends a text; it is not returned.
        pad_id (int): an id that occurs in no prompt.

    Returns:
        list[list[int]]: the new tokens of each prompt.
    """
    weight = model.tok_embeddings.weight
    longest = max(map(len, prompts))
    padded = [[pad_id] * (longest - len(p)) + list(p) for p in prompts]
    with local_kv_cache(
        model,
        batch_size=len(prompts),
        device=weight.device,
        dtype=weight.dtype,
        decoder_max_seq_len=longest + max_new_tokens,
    ):
        tokens, _ = generate(
            model,
            torch.tensor(padded, device=weight.device),
            max_generated_tokens=max_new_tokens,
            pad_id=pad_id,
            top_k=1,
            stop_tokens=list(stop_tokens),
        )
    return [_until_stop(row, stop_tokens) for row in tokens[:, longest:]]


def _until_stop(tokens: Tensor, stop_tokens: Sequence[int]) -> list[int]:
    new = tokens.tolist()
    stops = (i for i, token in enumerate(new) if token in stop_tokens)
    return new[: next(stops, len(new))]
