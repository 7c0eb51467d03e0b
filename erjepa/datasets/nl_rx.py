"""NL-RX: descriptions in English and the regular expressions they mean.

Locascio et al. 2016, "Neural Generation of Regular Expressions from Natural Language with
Minimal Domain Knowledge". SYNTH is generated from a grammar; TURK is SYNTH paraphrased by
people. Both have 8000 training and 2000 test pairs in the split of LLM-JEPA.
"""

from typing import Literal

from torchtune.data import OpenAIToMessages
from torchtune.modules.transforms import Transform

from erjepa.datasets.nl_rx_grammar import generate_records
from erjepa.datasets.paired import PairedDataset, paired_dataset
from erjepa.datasets.records import Record

# The split of LLM-JEPA, at a fixed revision so that a run can be repeated.
NL_RX_SOURCE = (
    "https://raw.githubusercontent.com/rbalestr-lab/llm-jepa/"
    "dd6196630f97016f7a607b0ac74f5e378ddf25db/datasets"
)


def nl_rx_dataset(
    tokenizer: Transform,
    *,
    subset: Literal["synth", "turk"] = "synth",
    split: Literal["train", "test"] = "train",
    source: str = NL_RX_SOURCE,
    max_examples: int | None = None,
    sample_seed: int | None = None,
) -> PairedDataset:
    """NL-RX-SYNTH or NL-RX-TURK as chat pairs.

    Args:
        tokenizer (Transform): torchtune model tokenizer.
        subset (Literal["synth", "turk"]): which of the two.
        split (Literal["train", "test"]): 8000 or 2000 pairs.
        source (str): folder or URL that holds ``{subset}_{split}.jsonl``.
        max_examples (int | None): keep so many pairs.
        sample_seed (int | None): see :func:`~erjepa.datasets.sources.subsample`.

    Returns:
        PairedDataset: the tokenized pairs.

    Raises:
        ValueError: if there is no such subset or split.
    """
    for key, value, known in (
        ("subset", subset, ("synth", "turk")),
        ("split", split, ("train", "test")),
    ):
        if value not in known:
            raise ValueError(
                f"dataset.{key}={value}: NL-RX has {' and '.join(known)} only"
            )
    return paired_dataset(
        tokenizer,
        source=f"{source.rstrip('/')}/{subset}_{split}.jsonl",
        max_examples=max_examples,
        sample_seed=sample_seed,
    )


def synthetic_nl_rx_dataset(
    tokenizer: Transform,
    *,
    size: int,
    split: Literal["train", "test"] = "train",
    grammar_seed: int = 0,
) -> PairedDataset:
    """Pairs from the project's own grammar: no download, any size, disjoint splits.

    Args:
        tokenizer (Transform): torchtune model tokenizer.
        size (int): number of pairs.
        split (Literal["train", "test"]): no regex occurs in both.
        grammar_seed (int): seed of the generator.

    Returns:
        PairedDataset: the tokenized pairs.
    """
    records = [
        Record(f"nl_rx_grammar[{split}, seed {grammar_seed}][{i}]", fields)
        for i, fields in enumerate(
            generate_records(size, split=split, seed=grammar_seed)
        )
    ]
    return PairedDataset(records, tokenizer, OpenAIToMessages())
