"""Predictions of several checkpoints on the same examples."""

from collections.abc import Mapping, Sequence
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


def answers_by_seed(
    results: Results, rows_of: Mapping[str, Mapping[int, Result]]
) -> dict[int, dict[str, Answers]]:
    """Predictions of methods on the same examples, of the seeds that all of them have.

    Args:
        results (Results): of the experiment.
        rows_of (Mapping[str, Mapping[int, Result]]): method to seed to checkpoint.

    Returns:
        dict[int, dict[str, Answers]]: seed to method to predictions, seeds as planned.

    Raises:
        Unavailable: if they share no seed, or were scored on other examples.
    """
    shared = [
        seed for seed in results.seeds if all(seed in rows for rows in rows_of.values())
    ]
    if not shared:
        raise Unavailable(f"no seed is finished of all of {', '.join(rows_of)}")
    found = {
        seed: {m: read_answers(results, rows[seed]) for m, rows in rows_of.items()}
        for seed in shared
    }
    all_answers = [one for by_method in found.values() for one in by_method.values()]
    require_same_examples(all_answers)
    return found


def require_same_examples(answers: Sequence[Answers]) -> None:
    """Raise Unavailable unless all have the same targets in the same order."""
    if any(one.targets != answers[0].targets for one in answers):
        raise Unavailable("the checkpoints were scored on different examples")
