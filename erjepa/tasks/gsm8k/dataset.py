"""GSM8K: questions with worked solutions.

Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems": 7473 training and 1319
test questions, each with a solution whose last line is ``#### ANSWER``.
"""

from typing import Literal

from torchtune.modules.transforms import Transform

from erjepa.datasets.paired import PairedDataset
from erjepa.datasets.question_answer import question_answer_dataset

GSM8K_SOURCE = "openai/gsm8k"
GSM8K_REVISION = "e53f048856ff4f594e959d75785d2c2d37b678ee"
SYSTEM_PROMPT = "Answer the math question, show steps."  # from LLM-JEPA's files


def gsm8k_dataset(
    tokenizer: Transform,
    *,
    split: Literal["train", "test"] = "train",
    source: str = GSM8K_SOURCE,
    name: str | None = "main",
    revision: str | None = None,
    max_examples: int | None = None,
    sample_seed: int | None = None,
) -> PairedDataset:
    """Build GSM8K as chat pairs.

    Args:
        source: a dataset of the hub with GSM8K's columns, or a source of
            :func:`~erjepa.datasets.question_answer.question_answer_dataset`.
        name: configuration of a hub dataset; ``None``: its only one.
        revision: revision of a hub dataset. ``None``: a pinned revision of the default source, for
            reproducible runs; the newest revision of any other.
    """
    if source == GSM8K_SOURCE:
        revision = revision or GSM8K_REVISION
    return question_answer_dataset(
        tokenizer,
        name="gsm8k",
        split=split,
        source=source,
        system_prompt=SYSTEM_PROMPT,
        max_examples=max_examples,
        sample_seed=sample_seed,
        load_dataset_kwargs={"name": name, "revision": revision},
    )
