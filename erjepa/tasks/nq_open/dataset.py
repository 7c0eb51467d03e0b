"""NQ-Open: questions that people asked a search engine, with short answers.

Lee et al. 2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering",
from Natural Questions. LLM-JEPA's split has 8000 training and 1769 test questions.
"""

from collections.abc import Sequence
from typing import Literal

from torchtune.modules.transforms import Transform

from erjepa.datasets.paired import PairedDataset
from erjepa.datasets.question_answer import question_answer_dataset
from erjepa.datasets.sources import LLM_JEPA_DATASETS

NQ_OPEN_HUB = "google-research-datasets/nq_open"
NQ_OPEN_HUB_REVISION = "5dd9790a83002ad084ddeb7c420dc716852c6f28"
SYSTEM_PROMPT = "Answer the question below."  # from LLM-JEPA's files


def nq_open_dataset(
    tokenizer: Transform,
    *,
    split: Literal["train", "test", "validation"] = "train",
    source: str = LLM_JEPA_DATASETS,
    revision: str | None = None,
    answers: Literal["joined", "first"] = "joined",
    max_examples: int | None = None,
    sample_seed: int | None = None,
) -> PairedDataset:
    """Build NQ-Open as chat pairs.

    Args:
        split: LLM-JEPA's files are ``train`` and ``test``; the hub has ``train`` (87925 questions)
            and ``validation`` (3610).
        source: ``google-research-datasets/nq_open`` or another dataset of the hub with its columns,
            or a source of :func:`~erjepa.datasets.question_answer.question_answer_dataset`.
        revision: revision of a hub dataset. ``None``: a pinned revision of
            ``google-research-datasets/nq_open``; the newest revision of any other.
        answers: the target of a question with several answers: all, joined by ``"; "`` as in
            LLM-JEPA's files, or the first. The scorer accepts the other answers only if they are
            joined.
    """
    if source == NQ_OPEN_HUB:
        revision = revision or NQ_OPEN_HUB_REVISION
    return question_answer_dataset(
        tokenizer,
        name="nq_open",
        split=split,
        source=source,
        system_prompt=SYSTEM_PROMPT,
        read_answer=_join if answers == "joined" else _first,
        max_examples=max_examples,
        sample_seed=sample_seed,
        load_dataset_kwargs={"revision": revision},
    )


def _join(answer: str | Sequence[str]) -> str:
    return answer if isinstance(answer, str) else "; ".join(answer)


def _first(answer: str | Sequence[str]) -> str:
    return _join(answer).split("; ")[0]
