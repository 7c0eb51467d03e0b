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
    between: str | None = None,
    improved: str | None = None,
    methods: Sequence[str] | None = None,
    right: int = 2,
    wrong: int = 7,
    max_characters: int = 300,
) -> Iterator[Table]:
    """Errors that are corrected, chosen by ``choose_examples`` with the paper's quota.

    Two that ``between``, by default LLM-JEPA, has right as well, and seven that it has
    wrong. For regexes there is a group for each category of errors, and what differs from
    the target is marked; other tasks have one group and show the answers that are scored.
    """
    baseline = find_method(results, "SFT", baseline)
    quota = f"at most {right} that {{}} has right and {wrong} that it has wrong"
    try:
        between = find_method(results, "LLM-JEPA", between)
    except Unavailable:  # the baseline itself has none of them right
        between, quota = baseline, f"at most {wrong}"
    improved = find_method(results, "ER-JEPA", improved)
    judged = (baseline, between, improved)
    shown = main_methods(results, methods)
    shown += [method for method in judged if method not in shown]
    answers = final_answers(results, dataset, shown)
    task = results.task(dataset)
    is_regex = task == "nl_rx"
    groups = [
        {
            seed: categories(one[method]) if is_regex else _verdicts(one[method])
            for seed, one in answers.items()
        }
        for method in judged
    ]
    any_answers = next(iter(answers.values()))[baseline]
    chosen = choose_examples(
        *groups,
        any_answers.targets,
        ERROR_CATEGORIES if is_regex else (WRONG,),
        CORRECT,
        right,
        wrong,
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
            elif task == "nq_open":
                text = shorten(_first_answer(one.extracted[at]), max_characters)
            else:
                text = shorten(one.extracted[at], max_characters)
            rows.append(["", "", "", method, text, "yes" if one.correct[at] else "no"])
    how = {
        "nl_rx": "Against the target, parts are marked as wrong, extra or missing. ",
        "nq_open": "Of each prediction the first answer is shown, up to the first "
        "semicolon; an ellipsis stands for what follows it. ",
    }.get(task, "")
    yield Table(
        f"examples_{dataset}",
        f"Errors of {baseline} on {dataset} that {improved} corrects, same input and seed: "
        f"{quota.format(between)}. {how}"
        "Kinds of error take turns; of each come seeds in the order of the experiment, "
        "then examples in the order of the data, with different targets.",
        [
            *(Column("Error"), Column("Seed"), Column("Input"), Column("Method")),
            *(Column("Prediction"), Column("Right")),
        ],
        rows,
    )


def _first_answer(output: str) -> str:
    """What stands before the first semicolon."""
    first, semicolon, _ = output.partition(";")
    return f"{first.strip()} …" if semicolon else first.strip()


def _verdicts(answers: Answers) -> list[str]:
    return [CORRECT if right else WRONG for right in answers.correct]
