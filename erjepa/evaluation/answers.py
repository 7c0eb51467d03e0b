"""Generates the answers of a model to the sources of a dataset."""

from collections.abc import Sequence
from typing import Any

from torchtune.models.llama3 import Llama3Tokenizer
from torchtune.modules import TransformerDecoder
from torchtune.modules.transforms import Transform

from erjepa.datasets import PairedDataset
from erjepa.evaluation.examples import scoring_fields
from erjepa.evaluation.generation import batches_of_like_length, generate_greedy


def batches_of_examples(
    dataset: PairedDataset, ids: Sequence[int], batch_size: int
) -> list[list[int]]:
    """Return the ids of examples in batches whose prompts have similar lengths."""
    source_and_bridge = dataset.pairs.lengths[ids, :2]
    lengths = source_and_bridge.sum(axis=1).tolist()
    batches = batches_of_like_length(lengths, batch_size)
    return [[ids[i] for i in batch] for batch in batches]


def generate_answers(
    model: TransformerDecoder,
    tokenizer: Transform,
    dataset: PairedDataset,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
) -> list[dict[str, Any]]:
    """Generate greedy answers to one batch of examples, as predictions with the fields for scoring.

    With several datasets, each prediction has the label of its dataset as ``origin``.
    """
    prompts = [dataset.prompt(i) for i in ids]
    outputs = generate_texts(model, tokenizer, prompts, max_new_tokens)
    return [
        {
            "id": i,
            "prompt": dataset.source_text(i),
            "target": dataset.target_text(i),
            **output,
            **fields,
        }
        for i, output, fields in zip(
            ids, outputs, scoring_fields(dataset, ids), strict=True
        )
    ]


def generate_texts(
    model: TransformerDecoder,
    tokenizer: Transform,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
) -> list[dict[str, Any]]:
    """Generate greedy answers to one batch of prompts: for each the ``output`` text, its number of
    ``tokens``, and whether it ``finished`` before ``max_new_tokens`` and the model's last
    position.
    """
    outputs = generate_greedy(
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        stop_tokens=tokenizer.stop_tokens,
    )
    return [
        {
            "output": decode_answer(tokenizer, tokens),
            "tokens": len(tokens),
            "finished": len(tokens)
            < min(max_new_tokens, model.max_seq_len + 1 - len(prompt)),
        }
        for prompt, tokens in zip(prompts, outputs, strict=True)
    ]


def decode_answer(tokenizer: Transform, tokens: Sequence[int]) -> str:
    """Decode tokens, without the special ones that the tokenizer's ``decode`` leaves out by default.

    Qwen's leaves out none: an answer can have ``<tool_call>``, which it reads as a special token.
    """
    if isinstance(tokenizer, Llama3Tokenizer):
        # Its decode removes every text of the form <|...|>.
        special = set(tokenizer.special_tokens.values())
        kept = [token for token in tokens if token not in special]
        return tokenizer.decode(kept, skip_special_tokens=False)
    return tokenizer.decode(list(tokens))
