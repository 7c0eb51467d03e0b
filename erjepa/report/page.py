"""The page of a report: one file of HTML with everything in it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jinja2
import pandas as pd

from erjepa.report.accuracy import settings
from erjepa.report.paired import CLAIMS
from erjepa.report.results import Results, pivot
from erjepa.report.sections import Part
from erjepa.report.table import Table, printable


def write_page(
    path: Path,
    results: Results,
    chapters: Sequence[tuple[str, Sequence[Part]]],
    left_out: Mapping[tuple[str, str], Sequence[str]],
) -> Path:
    """Write the page.

    Args:
        path (Path): the file.
        results (Results): of the experiment.
        chapters (Sequence[tuple[str, Sequence[Part]]]): headings and parts of its sections.
        left_out (Mapping[tuple[str, str], Sequence[str]]): heading of a section that could
            not be made, and why, to the datasets for which.

    Returns:
        Path: the file.
    """
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    text = jinja2.Template(template, autoescape=True).render(
        name=str(results.config["name"]),
        summary=[_compared(results), *_came_out(results)],
        chapters=list(chapters),
        facts=list(_facts(results)),
        missing=list(_missing(results)),
        left_out=[
            f"{title} ({', '.join(where) or 'all datasets'}): {why}."
            for (title, why), where in left_out.items()
        ],
    )
    path.write_text(printable(text), encoding="utf-8")
    return path


def _compared(results: Results) -> str:
    """What was compared, in a sentence or two."""
    planned = len(results.datasets) * len(results.methods) * len(results.seeds)
    unfinished = sum(map(len, results.missing().values()))
    seeds = len(results.seeds)
    at = " at equal training compute" if results.budgets else ""
    return (
        f"{_list(results.methods)} on {_list(results.datasets)}{at}, with "
        f"{seeds} {'seed' if seeds == 1 else 'seeds'} each: {planned - unfinished} of "
        f"{planned} runs have ended and are scored."
    )


def _came_out(results: Results) -> Iterator[str]:
    """What came out on each dataset: the order of methods, and what the paper claims of it."""
    ends = results.runs[results.runs.ends].drop_duplicates("cell", keep="last")
    for dataset, rows in ends.groupby("dataset", sort=False):
        means = rows.groupby("method", sort=False).accuracy.agg(["mean", "std"])
        means = means.sort_values("mean", ascending=False, kind="stable")
        texts = [
            f"{method} {mean:.2f}%" + (f"\u00a0±\u00a0{sd:.2f}" if sd == sd else "")
            for method, mean, sd in means.itertuples()
        ]
        if len(texts) > 6:
            texts = [*texts[:3], "…", texts[-1]]
        said = [f"On {dataset}, at the end of runs: {', '.join(texts)}."]
        wide = pivot(rows, ["seed"], "method", "accuracy")
        for better, other in CLAIMS:
            pair = [
                m for m in results.main_methods() if results.role(m) in (better, other)
            ]
            if len(pair) == 2 and {*pair} <= {*wide}:
                gain = wide[pair].dropna() @ [-1, 1]
                place = "above" if gain.mean() > 0 else "below"
                said.append(
                    f"Seed by seed {pair[1]} is {abs(gain.mean()):.2f} points {place} "
                    f"{pair[0]} on average, and above it in {(gain > 0).sum()} of {len(gain)}."
                )
        yield " ".join(said)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1]


def _facts(results: Results) -> Iterator[Table]:
    ran, config = results.ran, results.config
    hardware = ran.get("hardware") or {}
    versions = (ran.get("versions") or {}).items()
    match = config.get("match", "flops")
    facts = {
        "Datasets": ", ".join(f"{k} ({v})" for k, v in config["datasets"].items()),
        "Seeds": ", ".join(map(str, results.seeds)),
        "Scored on": config.get("score_on", "test"),
        "Matched in": match if isinstance(match, str) else settings(match),
        "Budgets (FLOPs)": ", ".join(f"{b:.6g}" for b in results.budgets) or "none",
        "All runs": settings(config.get("overrides")),
        "Processes of a run": str(config.get("nproc_per_node", 1)),
        "Versions": ", ".join(f"{name} {number}" for name, number in versions),
        "Revision": str(ran.get("revision") or "unknown"),
        "Hardware": f"{hardware.get('cpu', 'unknown')}, {hardware.get('cores', '?')} cores; "
        f"GPUs: {', '.join(hardware.get('gpus') or []) or 'none'}",
    }
    yield Table("The experiment.", _pairs("Key", "Value", facts))
    methods = {method: settings(results.own(method)) for method in results.methods}
    yield Table("Its methods.", _pairs("Method", "Sets", methods))


def _pairs(first: str, second: str, values: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(list(values.items()), columns=[first, second])


def _missing(results: Results) -> Iterator[str]:
    for (dataset, method), seeds in results.missing().items():
        absent = [str(seed) for seed, count in seeds.items() if not count]
        if absent:
            word = "seed" if len(absent) == 1 else "seeds"
            yield f"{method} on {dataset}: nothing of {word} {', '.join(absent)}."
        for seed, count in seeds.items():
            word = "checkpoint" if count == 1 else "checkpoints"
            if count:
                yield f"{method} on {dataset}: seed {seed} is unfinished, {count} {word} scored."
