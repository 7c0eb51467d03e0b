"""Greedy generation of a batch of ragged prompts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from os.path import commonprefix
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchtune.modules import TransformerDecoder

from erjepa.objective import Backend

# Tokens per forward pass: enough to fill a GPU, few enough for the activations of a layer to stay in
# the cache of a CPU. The mask of a longer prompt would grow with its square.
_TOKENS = 1024


def batches_of_like_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Return the indices of prompts of these ``lengths`` in batches sorted by length, which
    minimizes padding.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


@torch.inference_mode()
def generate_greedy(
    model: TransformerDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_tokens: Sequence[int],
) -> list[list[int]]:
    """Return the most likely continuation of every prompt, generated with a key-value cache.

    It ends before the first stop token, or where the model has no more positions.

    Raises:
        ValueError: if a prompt has more tokens than the model has positions.
    """
    if (longest := max(map(len, prompts))) > model.max_seq_len:
        raise ValueError(
            f"a prompt has {longest} tokens, but the model has positions for "
            f"{model.max_seq_len}"
        )
    is_backend = isinstance(model, Backend)
    generate = model.generate_greedy if is_backend else partial(_generate, model)
    generated = generate(
        prompts, max_new_tokens=max_new_tokens, stop_tokens=stop_tokens
    )
    limits = [model.max_seq_len + 1 - len(prompt) for prompt in prompts]
    return [
        list(takewhile(lambda token: token not in stop_tokens, row[:n]))
        for row, n in zip(generated, limits, strict=True)
    ]


def _generate(
    model: TransformerDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_tokens: Sequence[int],
) -> list[list[int]]:
    """Generate with a torchtune decoder; the result includes tokens after a stop token.

    The prefix shared by all prompts is computed once; the rest is padded on the left::

        column   0 1 2 3 4 5 6 7 ..
                 s s s - - a a x ..     s  shared prefix     -  padding
                 s s s b b b b y ..     a, b  rest of the prompts     x, y  new tokens

    Finished rows are removed from the batch. Unlike in ``torchtune.generation.generate``, padding
    is identified by its position instead of its id, the output projection runs for the last token
    only, and logits are not kept, which would take gigabytes with a vocabulary of 128k tokens.
    """
    device = model.tok_embeddings.weight.device
    shared = _shared_prefix(prompts)
    width = max(map(len, prompts))  # columns before the first new token
    padding = torch.tensor([width - len(p) for p in prompts], device=device)
    prefix = torch.tensor([prompts[0][:shared]], device=device)
    rest = [[0] * (width - len(p)) + list(p[shared:]) for p in prompts]
    stops = torch.tensor(list(stop_tokens), dtype=torch.int64, device=device)
    generated = torch.zeros(
        len(prompts), max_new_tokens, dtype=torch.int64, device=device
    )

    rows = torch.arange(len(prompts), device=device)  # prompts in the batch
    with _caches(model, len(prompts), width + max_new_tokens) as caches:
        if shared:
            _last_logits(model, caches, prefix, shared, shared, padding[:1])
            for cache in caches:
                cache.take(torch.zeros_like(rows))
        tokens = torch.tensor(rest, device=device)
        ended = torch.zeros_like(rows, dtype=torch.bool)
        for step in range(max_new_tokens):
            logits = _last_logits(model, caches, tokens, width + step, shared, padding)
            tokens = logits.argmax(dim=-1, keepdim=True)
            generated[rows, step] = tokens[:, 0]
            ended |= torch.isin(tokens[:, 0], stops)
            ended |= width + step - padding >= model.max_seq_len  # no position left
            going = (~ended).nonzero()[:, 0]
            if not len(going):
                break
            # Not whenever a row ends: removing rows copies the cache of the others.
            if len(going) <= 0.8 * len(rows):
                rows, tokens, padding = rows[going], tokens[going], padding[going]
                ended = ended[going]
                for cache in caches:
                    cache.take(going)
    return generated.tolist()


def _last_logits(
    model: TransformerDecoder,
    caches: "list[_Cache]",
    tokens: Tensor,
    end: int,
    shared: int,
    padding: Tensor,
) -> Tensor:
    """Return the logits [B, V] after the last of ``tokens`` [B, s], the columns before ``end``.

    Rows have ``padding`` [B] padding columns after the ``shared`` columns of the prefix.
    """
    end -= tokens.shape[1]
    for piece in tokens.split(_TOKENS, dim=1):
        end += piece.shape[1]
        num_rows = _TOKENS // piece.shape[1]
        logits = []
        for first in range(0, len(piece), num_rows):
            rows = slice(first, min(first + num_rows, len(piece)))
            for cache in caches:
                cache.place(rows, end)
            logits.append(_forward(model, piece[rows], end, shared, padding[rows]))
    return torch.cat(logits)


def _forward(
    model: TransformerDecoder, tokens: Tensor, end: int, shared: int, padding: Tensor
) -> Tensor:
    """Return the logits of :func:`_last_logits` in one forward pass."""
    columns = torch.arange(end, device=tokens.device)
    new = columns[end - tokens.shape[1] :, None]
    real = (columns < shared) | (columns >= shared + padding[:, None])
    # A padding token sees itself, so that no row of the softmax is empty.
    mask = (columns < new) & real[:, None] | (columns == new)
    input_pos = new[:, 0] - padding[:, None] * (new[:, 0] >= shared)
    # Positions of padding and of finished rows can be out of range.
    input_pos = input_pos.clamp(0, model.max_seq_len - 1)
    hidden = model.tok_embeddings(tokens)
    for layer in model.layers:
        hidden = layer(hidden, mask=mask, input_pos=input_pos)
    return model.output(model.norm(hidden[:, -1:]))[:, -1]


class _Cache:
    """A ``KVCache`` of one layer that returns the filled columns only, and can remove rows."""

    def __init__(self, num_rows: int, length: int) -> None:
        self.num_rows, self.length = num_rows, length
        self.cached: tuple[Tensor, Tensor] | None = None

    def place(self, rows: slice, end: int) -> None:
        """Set the rows of the next update, and the column before which its tokens end."""
        self.rows, self.end = rows, end

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values [B, heads, s, head_dim]; return all of the rows set by ``place``."""
        _, heads, new, head_dim = keys.shape
        if self.cached is None:
            shape = (self.num_rows, heads, self.length, head_dim)
            self.cached = keys.new_empty(shape), values.new_empty(shape)
        all_keys, all_values = (all[self.rows, :, : self.end] for all in self.cached)
        all_keys[:, :, self.end - new :] = keys
        all_values[:, :, self.end - new :] = values
        return all_keys, all_values

    def take(self, rows: Tensor) -> None:
        """Replace the rows of the batch by ``rows``, which may repeat."""
        if self.cached is not None:
            keys, values = self.cached
            self.cached = keys[rows], values[rows]


def _grouped_attention(
    queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor, **_: Any
) -> Tensor:
    """Compute grouped-query attention without repeating the cached keys and values.

    The queries of a group, ``queries`` being [B, heads, s, head_dim], are treated as further rows
    of one head; torchtune copies the whole cache for each query head instead.
    """
    group = queries.shape[1] // keys.shape[1]
    rows = queries.unflatten(1, (-1, group)).flatten(2, 3)
    mask = mask.repeat(1, group, 1)[:, None]
    output = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
    return output.unflatten(2, (group, -1)).flatten(1, 2)


@contextmanager
def _caches(
    model: TransformerDecoder, num_rows: int, length: int
) -> Iterator[list[_Cache]]:
    """Make every layer use a :class:`_Cache` and :func:`_grouped_attention` in this context."""
    caches = [_Cache(num_rows, length) for _ in model.layers]
    attentions = [layer.attn for layer in model.layers]
    before = [(attn.num_kv_heads, attn._attention_call) for attn in attentions]
    for attn, cache in zip(attentions, caches, strict=True):
        attn.kv_cache, attn.cache_enabled = cache, True
        # With equal numbers of key and query heads, torchtune does not expand the keys.
        attn.num_kv_heads, attn._attention_call = attn.num_heads, _grouped_attention
    try:
        yield caches
    finally:
        for attn, (num_kv_heads, call) in zip(attentions, before, strict=True):
            attn.kv_cache, attn.cache_enabled = None, False
            attn.num_kv_heads, attn._attention_call = num_kv_heads, call


def _shared_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Return the length of the common prefix, shorter than any prompt; 0 for a single prompt."""
    if len(prompts) == 1:
        return 0
    common = commonprefix([list(prompt) for prompt in prompts])
    return max(0, min(len(common), min(map(len, prompts)) - 1))
