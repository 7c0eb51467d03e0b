"""Predictions of several checkpoints on the same examples."""

from collections.abc import Sequence
from dataclasses import dataclass

from erjepa.report.results import Result, Results, Unavailable


@dataclass(frozen=True)
class Answers:
    """Predictions of one checkpoint, in order of examples.

    Args:
        prompts (Sequence[str]): what was asked.
        targets (Sequence[str]): what was expected.
        outputs (Sequence[str]): what was generated.
        extracted (Sequence[str]): the answer read out of it.
        correct (Sequence[bool]): whether it is right, by the task's primary verdict.
        cosines (Sequence[float] | None): cosine of the embeddings of prompt and target, where
            the evaluation computed it.
    """

    prompts: Sequence[str]
    targets: Sequence[str]
    outputs: Sequence[str]
    extracted: Sequence[str]
    correct: Sequence[bool]
    cosines: Sequence[float] | None


def read_answers(results: Results, row: Result) -> Answers:
    """Predictions of a checkpoint.

    Raises:
        Unavailable: if they are absent, or lack what a section needs.
    """
    found = results.predictions(row)
    try:
        cosines = [one["cosine"] for one in found if "cosine" in one]
        return Answers(
            prompts=[one["prompt"] for one in found],
            targets=[one["target"] for one in found],
            outputs=[one["output"] for one in found],
            extracted=[str(one.get("extracted", one["output"])) for one in found],
            correct=[one[row.primary] is True for one in found],
            cosines=cosines if found and len(cosines) == len(found) else None,
        )
    except KeyError as error:
        raise Unavailable(f"{row.predictions}: a line has no field {error}") from None


def final_answers(
    results: Results, dataset: str, methods: Sequence[str]
) -> dict[int, dict[str, Answers]]:
    """Predictions of methods at the end of runs, of the seeds that all of them have.

    Args:
        results (Results): of the experiment.
        dataset (str): the dataset.
        methods (Sequence[str]): the methods.

    Returns:
        dict[int, dict[str, Answers]]: seed to method to predictions, on the same examples in
        the same order; seeds in the order of the experiment.

    Raises:
        Unavailable: if they share no seed, or were scored on different examples.
    """
    ends = {method: results.final(dataset, method) for method in methods}
    shared = [s for s in results.seeds if all(s in rows for rows in ends.values())]
    if not shared:
        raise Unavailable(f"no seed is finished of all of {', '.join(methods)}")
    found = {
        seed: {method: read_answers(results, ends[method][seed]) for method in methods}
        for seed in shared
    }
    require_same_examples(
        [one for answers in found.values() for one in answers.values()]
    )
    return found


def require_same_examples(answers: Sequence[Answers]) -> None:
    """Raise Unavailable unless all have the same targets in the same order."""
    if any(one.targets != answers[0].targets for one in answers):
        raise Unavailable("the checkpoints were scored on different examples")
