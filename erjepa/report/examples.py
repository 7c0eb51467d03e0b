"""The section of examples: errors of a baseline that another method corrects."""

from textwrap import shorten

import pandas as pd

from erjepa.analysis.examples import SAME, Marked, choose_examples, mark_differences
from erjepa.analysis.regex_errors import CORRECT, ERROR_CATEGORIES
from erjepa.analysis.regex_tokens import regex_tokens
from erjepa.report.predictions import by_method, final_predictions
from erjepa.report.regexes import categories
from erjepa.report.results import Results, Unavailable
from erjepa.report.sections import Parts, section
from erjepa.report.table import Table

_HOW = {
    "nl_rx": "Against the target, parts are marked as wrong, extra or missing. ",
    "nq_open": "Of each prediction the first answer is shown, up to the first semicolon; an "
    "ellipsis stands for what follows it. ",
}
_COLUMNS = ["Error", "Seed", "Input", "Method", "Prediction", "Right"]


@section("Examples", main=True)
def examples(
    results: Results,
    dataset: str,
    methods: list[str],
    baseline: str | None = None,
    between: str | None = None,
    improved: str | None = None,
    right: int = 2,
    wrong: int = 7,
    max_characters: int = 300,
) -> Parts:
    """Errors of ``baseline`` that ``improved`` corrects, with the paper's quota.

    Two that ``between``, by default LLM-JEPA, has right as well, and seven that it has
    wrong. For regexes there is a group for each category of errors, and what differs from
    the target is marked; other tasks have one group and show the answers that are scored.
    """
    baseline = results.first("SFT", baseline)
    improved = results.first("ER-JEPA", improved)
    if between is None and "LLM-JEPA" not in map(results.role, results.methods):
        between, quota = baseline, f"at most {wrong}"  # it has none of them right
    else:
        between = results.first("LLM-JEPA", between)
        quota = (
            f"at most {right} that {between} has right and {wrong} that it has wrong"
        )
    shown = list(dict.fromkeys([*methods, baseline, between, improved]))
    task = results.task(dataset)
    groups = ERROR_CATEGORIES if task == "nl_rx" else ("wrong",)
    if task == "nl_rx":
        found = categories(results, dataset, shown)
    else:
        found = final_predictions(results, dataset, shown)
        found["category"] = found.correct.map({True: CORRECT, False: "wrong"})
    wide = by_method(found, "category")
    candidates = pd.DataFrame(
        {
            "group": wide[baseline],
            "right": wide[between].eq(CORRECT),
            "target": by_method(found, "target")[baseline].str.strip(),
        }
    )[wide[baseline].ne(CORRECT) & wide[improved].eq(CORRECT)]
    chosen = choose_examples(candidates, groups, {True: right, False: wrong})
    if chosen.empty:
        raise Unavailable(f"{improved} corrects no error of {baseline} on {dataset}")
    predictions = found.set_index(["seed", "id", "method"])
    rows: list[list[str | Marked | None]] = []
    for example, choice in chosen.iterrows():
        gold: str | Marked = shorten(choice.target, max_characters)
        if task == "nl_rx":
            gold = [(choice.target, SAME)]
        asked = shorten(predictions.prompt[(*example, baseline)], max_characters)
        rows.append([choice.group, str(example[0]), asked, "target", gold, None])
        for method in shown:
            one = predictions.loc[(*example, method)]
            text: str | Marked = shorten(_scored(task, one.extracted), max_characters)
            if task == "nl_rx":
                text = mark_differences(choice.target, one.output.strip(), regex_tokens)
            rows.append(["", "", "", method, text, "yes" if one.correct else "no"])
    yield Table(
        f"Errors of {baseline} on {dataset} that {improved} corrects, same input and seed: "
        f"{quota}. {_HOW.get(task, '')}Kinds of error take turns; of each come seeds in the "
        "order of the experiment, then examples in the order of the data, with different "
        "targets.",
        pd.DataFrame(rows, columns=_COLUMNS),
    )


def _scored(task: str | None, answer: str) -> str:
    """Of NQ-Open's answers what stands before the first semicolon, of others all."""
    first, semicolon, _ = answer.partition(";")
    if task != "nq_open" or not semicolon:
        return answer.strip()
    return f"{first.strip()} …"
