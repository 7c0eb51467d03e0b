"""NL-RX: descriptions of lines in English, and regular expressions that match them.

Locascio et al. 2016, "Neural Generation of Regular Expressions from Natural Language with
Minimal Domain Knowledge". SYNTH is generated from a grammar; TURK is SYNTH paraphrased by
people. Both have 8000 training and 2000 test pairs in the split of LLM-JEPA.
"""

from collections.abc import Sequence
from typing import Literal

from torchtune.modules.transforms import Transform

from erjepa.datasets.messages import RecordMessages
from erjepa.datasets.paired import PairedDataset
from erjepa.datasets.records import Record, load_records
from erjepa.datasets.sources import LLM_JEPA_DATASETS, subsample
from erjepa.tasks.nl_rx.grammar import generate_records


def nl_rx_dataset(
    tokenizer: Transform,
    *,
    subset: Literal["synth", "turk"] = "synth",
    split: Literal["train", "test"] = "train",
    source: str = LLM_JEPA_DATASETS,
    max_examples: int | None = None,
    sample_seed: int | None = None,
) -> PairedDataset:
    """Build NL-RX-SYNTH or NL-RX-TURK as chat pairs."""
    records = load_records(f"{source.rstrip('/')}/{subset}_{split}.jsonl")
    return PairedDataset(
        subsample(records, max_examples, sample_seed),
        tokenizer,
        RecordMessages({"messages": "messages"}),
        task="nl_rx",
    )


def synthetic_nl_rx_dataset(
    tokenizer: Transform,
    *,
    size: int,
    split: Literal["train", "test"] = "train",
    grammar_seed: int = 0,
    constructs: Sequence[str] | None = None,
    without: Sequence[str] = (),
) -> PairedDataset:
    """Build chat pairs from the project's own grammar, without a download, with disjoint splits.

    Args:
        constructs: each regex has at least one of these; ``None``: no restriction. The constructs
            are ``and``, ``or``, ``not``, ``count`` (N or more times) and ``word`` (boundaries).
        without: no regex has any of these constructs.

    Raises:
        ValueError: if a construct is unknown, or if there are fewer such pairs.
    """
    drawn = generate_records(
        size, split=split, seed=grammar_seed, constructs=constructs, without=without
    )
    records = [
        Record(f"nl_rx_grammar[{split}, seed {grammar_seed}][{i}]", fields)
        for i, fields in enumerate(drawn)
    ]
    return PairedDataset(
        records, tokenizer, RecordMessages({"messages": "messages"}), task="nl_rx"
    )
