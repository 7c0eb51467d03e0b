"""The section of examples: errors of a baseline that another method corrects."""

from collections.abc import Iterator, Sequence
from textwrap import shorten

import pandas as pd

from erjepa.analysis.examples import SAME, Marked, choose_examples, mark_differences
from erjepa.analysis.regex_errors import CORRECT, ERROR_CATEGORIES
from erjepa.analysis.regex_tokens import regex_tokens
from erjepa.report.regexes import categories
from erjepa.report.results import Results, Unavailable
from erjepa.report.sections import section
from erjepa.report.table import Table

_HOW = {
    "nl_rx": "Against the target, parts are marked as wrong, extra or missing. ",
    "nq_open": "Of each prediction the first answer is shown, up to the first semicolon; an "
    "ellipsis stands for what follows it. ",
}


@section("Examples")
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
    shown = results.main_methods(methods)
    shown = list(dict.fromkeys([*shown, baseline, between, improved]))
    task = results.task(dataset)
    if task == "nl_rx":
        found, wide = categories(results, dataset, shown)
    else:
        found = results.final_predictions(dataset, shown)
        verdicts = found.assign(
            correct=found.correct.map({True: CORRECT, False: "wrong"})
        )
        wide = verdicts.pivot(index=["seed", "id"], columns="method", values="correct")
        wide = wide.reindex(
            pd.MultiIndex.from_frame(found[["seed", "id"]].drop_duplicates())
        )
    by_method = found.set_index(["method", "seed", "id"])
    candidates = pd.DataFrame(
        {
            "group": wide[baseline],
            "right": wide[between].eq(CORRECT),
            "target": by_method.target.loc[baseline].str.strip(),
        },
        index=wide.index,
    )[wide[baseline].ne(CORRECT) & wide[improved].eq(CORRECT)]
    groups = ERROR_CATEGORIES if task == "nl_rx" else ("wrong",)
    chosen = choose_examples(candidates, groups, {True: right, False: wrong})
    if chosen.empty:
        raise Unavailable(f"{improved} corrects no error of {baseline} on {dataset}")
    rows: list[list[str | Marked | None]] = []
    for (seed, example), choice in chosen.iterrows():
        gold: str | Marked = shorten(choice.target, max_characters)
        if task == "nl_rx":
            gold = [(choice.target, SAME)]
        asked = shorten(by_method.prompt[baseline, seed, example], max_characters)
        rows.append([choice.group, str(seed), asked, "target", gold, None])
        for method in shown:
            one = by_method.loc[(method, seed, example)]
            text: str | Marked = shorten(_scored(task, one.extracted), max_characters)
            if task == "nl_rx":
                text = mark_differences(choice.target, one.output.strip(), regex_tokens)
            rows.append(["", "", "", method, text, "yes" if one.correct else "no"])
    yield Table(
        f"examples_{dataset}",
        f"Errors of {baseline} on {dataset} that {improved} corrects, same input and seed: "
        f"{quota}. {_HOW.get(task, '')}Kinds of error take turns; of each come seeds in the "
        "order of the experiment, then examples in the order of the data, with different "
        "targets.",
        pd.DataFrame(
            rows, columns=["Error", "Seed", "Input", "Method", "Prediction", "Right"]
        ),
    )


def _scored(task: str | None, answer: str) -> str:
    """Of NQ-Open's answers what stands before the first semicolon, of others all."""
    first, semicolon, _ = answer.partition(";")
    if task != "nq_open" or not semicolon:
        return answer.strip()
    return f"{first.strip()} …"
