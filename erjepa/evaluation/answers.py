"""What a model answers to the sources of a dataset."""

from collections.abc import Sequence
from typing import Any

from torchtune.modules import TransformerDecoder
from torchtune.modules.transforms import Transform

from erjepa.datasets import ConcatenatedPairs, Pairs
from erjepa.evaluation.generation import generate_greedy


def generate_answers(
    model: TransformerDecoder,
    tokenizer: Transform,
    dataset: Pairs,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
) -> list[dict[str, Any]]:
    """Greedy answers to one batch of examples, with what scoring needs.

    Returns:
        a prediction for each example, in order: ``id``, the texts ``prompt``, ``target`` and
        ``output``, ``tokens`` of the output, whether it ``finished`` by itself, the dataset's
        fields for scoring, and in a list of datasets the short name of its own as ``origin``.
    """
    outputs = generate_greedy(
        model,
        [dataset.prompt(i) for i in ids],
        max_new_tokens=max_new_tokens,
        stop_tokens=tokenizer.stop_tokens,
        pad_id=tokenizer.pad_id,
    )
    return [
        {
            "id": i,
            "prompt": dataset.source_text(i),
            "target": dataset.target_text(i),
            "output": tokenizer.decode(tokens),
            "tokens": len(tokens),
            "finished": len(tokens) < max_new_tokens,
            **dataset.scoring_fields(i),
            **_origin(dataset, i),
        }
        for i, tokens in zip(ids, outputs, strict=True)
    ]


def _origin(dataset: Pairs, example_id: int) -> dict[str, str]:
    if not isinstance(dataset, ConcatenatedPairs):
        return {}
    return {"origin": dataset.labels[dataset.origin(example_id).part]}
