"""The section of examples: errors of a baseline that another method corrects."""

from collections.abc import Iterator, Sequence
from textwrap import shorten

from erjepa.analysis.examples import SAME, choose_examples, mark_differences
from erjepa.analysis.regex_errors import CORRECT, ERROR_CATEGORIES
from erjepa.analysis.regex_tokens import regex_tokens
from erjepa.report.answers import Answers, final_answers
from erjepa.report.errors import categories
from erjepa.report.results import Results, Unavailable
from erjepa.report.select import find_method, main_methods
from erjepa.report.table import Cell, Column, Table

WRONG = "wrong"


def examples(
    results: Results,
    dataset: str,
    baseline: str | None = None,
    improved: str | None = None,
    methods: Sequence[str] | None = None,
    per_group: int = 3,
    max_characters: int = 300,
) -> Iterator[Table]:
    """Errors that are corrected, chosen by ``choose_examples``.

    For regexes there is a group for each category of errors, and what differs from the
    target is marked; other tasks have one group and show the extracted answers.
    """
    baseline = find_method(results, "SFT", baseline)
    improved = find_method(results, "ER-JEPA", improved)
    shown = main_methods(results, methods)
    shown += [method for method in (baseline, improved) if method not in shown]
    answers = final_answers(results, dataset, shown)
    is_regex = results.task(dataset) == "nl_rx"
    groups = {
        method: {
            seed: categories(one[method]) if is_regex else _verdicts(one[method])
            for seed, one in answers.items()
        }
        for method in (baseline, improved)
    }
    any_answers = next(iter(answers.values()))[baseline]
    chosen = choose_examples(
        groups[baseline],
        groups[improved],
        any_answers.targets,
        ERROR_CATEGORIES if is_regex else (WRONG,),
        CORRECT,
        per_group,
    )
    if not chosen:
        raise Unavailable(f"{improved} corrects no error of {baseline} on {dataset}")
    rows: list[list[Cell]] = []
    for choice in chosen:
        by_method, at = answers[choice.seed], choice.index
        target = any_answers.targets[at].strip()
        asked = shorten(any_answers.prompts[at], max_characters)
        gold = [(target, SAME)] if is_regex else shorten(target, max_characters)
        rows.append([choice.group, str(choice.seed), asked, "target", gold, None])
        for method in shown:
            one = by_method[method]
            if is_regex:
                output = one.outputs[at].strip()
                text = mark_differences(target, output, regex_tokens)
            else:
                text = shorten(one.extracted[at], max_characters)
            right = "yes" if one.correct[at] else "no"
            rows.append(["", "", "", method, text, right])
    marks = (
        "Against the target, parts are marked as wrong, extra or missing. "
        if is_regex
        else ""
    )
    yield Table(
        f"examples_{dataset}",
        f"Errors of {baseline} on {dataset} that {improved} corrects, same input and seed. "
        f"{marks}Of each kind of error the first {per_group} with different targets are "
        "shown: seeds in the order of the experiment, then examples in the order of the data.",
        [
            *(Column("Error"), Column("Seed"), Column("Input"), Column("Method")),
            *(Column("Prediction"), Column("Right")),
        ],
        rows,
    )


def _verdicts(answers: Answers) -> list[str]:
    return [CORRECT if right else WRONG for right in answers.correct]
