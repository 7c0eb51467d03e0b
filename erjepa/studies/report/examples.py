"""The section of examples: errors of a baseline that another method corrects."""

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from textwrap import shorten

import pandas as pd

from erjepa.studies.report.regexes import categories
from erjepa.studies.report.results import Results, Unavailable, pivot
from erjepa.studies.report.sections import Method, Parts, section
from erjepa.studies.report.table import EXTRA, MISSING, SAME, WRONG, Marked, Table
from erjepa.tasks.nl_rx.regex_kinds import CORRECT, ERROR_CATEGORIES, regex_tokens

_RIGHT, _WRONG, _NQ_OPEN, _CHARACTERS = 2, 7, 5, 300  # all but 300 from the paper
_MARKS = {"equal": SAME, "replace": WRONG, "insert": EXTRA, "delete": MISSING}
_HOW = {
    "nl_rx": "Against the target, parts are marked as wrong, extra or missing. ",
    "nq_open": "Of each prediction the first answer is shown, up to the first semicolon; an "
    "ellipsis stands for what follows it. ",
}
_COLUMNS = ["Error", "Seed", "Input", "Method", "Prediction", "Right"]


@section("Examples", main=True, by_default=True)
def examples(
    results: Results,
    dataset: str,
    methods: list[str],
    baseline: Method | None = None,
    between: Method | None = None,
    improved: Method | None = None,
) -> Parts:
    """Errors of ``baseline`` that ``improved`` corrects, in the paper's numbers.

    At most two that ``between``, by default LLM-JEPA, corrects too and seven that it does not;
    for NQ-Open at most five of either. Errors of regexes are grouped by category, and their
    differences from the target are marked; other tasks have one group and show the scored answer.
    """
    baseline = results.first("SFT", baseline)
    improved = results.first("ER-JEPA", improved)
    if between is None and "LLM-JEPA" not in map(results.role, results.methods):
        between, quota = baseline, f"at most {_WRONG}"  # it has none of them right
    else:
        between = results.first("LLM-JEPA", between)
        quota = (
            f"at most {_RIGHT} that {between} has right and {_WRONG} that it has wrong"
        )
    counts = {True: _RIGHT, False: _WRONG}
    shown = list(dict.fromkeys([*methods, baseline, between, improved]))
    task = results.task(dataset) or ""
    groups: Sequence[str] = ERROR_CATEGORIES
    if task == "nl_rx":
        answers = categories(results, dataset, shown)
    else:
        groups, answers = [WRONG], results.final_predictions(dataset, shown)
        answers["category"] = answers.correct.map({True: CORRECT, False: WRONG})
    wide = pivot(answers, ["seed", "id"], "method", "category")
    targets = pivot(answers, ["seed", "id"], "method", "target")[baseline].str.strip()
    candidates = pd.DataFrame(
        {"group": wide[baseline], "right": wide[between] == CORRECT, "target": targets}
    )[wide[baseline].ne(CORRECT) & wide[improved].eq(CORRECT)]
    if task == "nq_open":
        candidates["right"] = False
        counts, quota = {False: _NQ_OPEN}, f"at most {_NQ_OPEN}"
    chosen = choose_examples(candidates, groups, counts)
    if chosen.empty:
        raise Unavailable(f"{improved} corrects no error of {baseline} on {dataset}")
    predictions = answers.set_index(["seed", "id", "method"])
    rows: list[list[str | Marked | None]] = []
    for example, choice in chosen.iterrows():
        prompt = predictions.prompt[(*example, baseline)]
        gold: str | Marked = shorten(choice.target, _CHARACTERS)
        if task == "nl_rx":
            gold = [(choice.target, SAME)]
        start = [choice.group, str(example[0]), shorten(prompt, _CHARACTERS)]
        rows.append([*start, "target", gold, None])
        for method in shown:
            one = predictions.loc[(*example, method)]
            text: str | Marked = shorten(_scored(task, one.extracted), _CHARACTERS)
            if task == "nl_rx":
                text = mark_differences(choice.target, one.output.strip())
            rows.append(["", "", "", method, text, "yes" if one.correct else "no"])
    yield Table(
        f"Errors of {baseline} on {dataset} that {improved} corrects, same input and seed: "
        f"{quota}. {_HOW.get(task, '')}They are chosen by a fixed rule: kinds of errors in turn, "
        "seeds in the order of the experiment, examples in the order of the data, each target "
        "once.",
        pd.DataFrame(rows, columns=_COLUMNS),
    )


def choose_examples(
    candidates: pd.DataFrame, groups: Sequence[str], quota: Mapping[bool, int]
) -> pd.DataFrame:
    """Choose examples by a rule that does not depend on their text.

    ``candidates`` are in order of preference, with columns ``group``, ``right`` (bool) and
    ``target``; only the first of each target counts. Groups take turns: the first candidate of
    each group, then the second, up to ``quota``, the maximum number for each value of ``right``.
    The chosen rows are in order of groups, then as chosen.
    """
    unlike = candidates.drop_duplicates("target")
    turn = unlike.groupby(["right", "group"]).cumcount()
    place = unlike["group"].map(list(groups).index)
    order = unlike.assign(turn=turn, place=place).sort_values(["turn", "place"])
    taken = [order[order["right"] == right].head(n) for right, n in quota.items()]
    return pd.concat(taken).sort_values("place", kind="stable")


def _scored(task: str, answer: str) -> str:
    """Return the scored part of an answer: in NQ-Open the part before the first semicolon."""
    first, semicolon, _ = answer.partition(";")
    is_cut = task == "nq_open" and semicolon
    return f"{first.strip()} …" if is_cut else answer.strip()


def mark_differences(target: str, output: str) -> Marked:
    """Mark the tokens of a regex that differ from the target: wrong, extra and missing ones.

    The result follows the order of the output; missing tokens are inserted from the target.
    """
    gold, answer = regex_tokens(target), regex_tokens(output)
    changes = SequenceMatcher(None, gold, answer, autojunk=False).get_opcodes()
    return [
        ("".join(gold[a:b] if change == "delete" else answer[c:d]), _MARKS[change])
        for change, a, b, c, d in changes
    ]
