"""LLM-JEPA's loss as its own repository computes it: three padded texts per pair in one batch.

The sum of transformers' loss over the labels, which are those of the target, and of one minus the
mean cosine of last hidden states, read at the last non-padding token of source and target.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from erjepa.datasets import Pair


def llm_jepa_loss(
    model: PreTrainedModel,
    pairs: list[Pair],
    *,
    predictor_ids: list[int],
    pad_id: int,
    lm_weight: float = 1.0,
    jepa_weight: float = 1.0,
) -> Tensor:
    """The loss of ``pairs``, scalar, with gradient."""
    prompts = [[*pair.source, *pair.bridge] for pair in pairs]
    full = [[*p, *pair.target] for p, pair in zip(prompts, pairs, strict=True)]
    source = [[*pair.source_view, *predictor_ids] for pair in pairs]
    target = [list(pair.target_view) for pair in pairs]
    texts = [*full, *source, *target]
    width = max(map(len, texts))
    tokens = torch.tensor([text + [pad_id] * (width - len(text)) for text in texts])
    mask = torch.tensor([[i < len(text) for i in range(width)] for text in texts])
    labels = torch.full_like(tokens, -100)
    for i, (prompt, text) in enumerate(zip(prompts, full, strict=True)):
        labels[i, len(prompt) : len(text)] = tokens[i, len(prompt) : len(text)]
    output = model(
        input_ids=tokens,
        attention_mask=mask.long(),
        labels=labels,
        output_hidden_states=True,
        use_cache=False,
    )
    last = torch.tensor([len(text) - 1 for text in texts])
    ends = output.hidden_states[-1][range(len(texts)), last]
    _, predicted, wanted = ends.split(len(pairs))
    cosine = F.cosine_similarity(predicted, wanted, dim=-1)
    return lm_weight * output.loss + jepa_weight * (1 - cosine.mean())
