"""From an experiment's output to its report."""

import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import matplotlib

from erjepa.report import accuracy, compute, examples, paired, regexes, trajectories  # noqa: F401 - they enter their sections
from erjepa.report.figures import STYLE
from erjepa.report.page import write_page
from erjepa.report.results import Results, Unavailable
from erjepa.report.sections import SECTIONS, Part, Section
from erjepa.report.table import FORMATS, Table


@dataclass(frozen=True)
class _Entry:
    """A section as a report's config asks for it."""

    section: Section
    title: str
    datasets: list[str] | None
    arguments: dict[str, Any]


def build_report(output: Path, config: Mapping[str, Any] | None = None) -> Path:
    """Write the report of an experiment, finished or not.

    Args:
        output (Path): the experiment's output folder.
        config (Mapping[str, Any] | None): its config; None: as ``experiment.json`` has it.

    Returns:
        Path: the page.

    Raises:
        FileNotFoundError: if ``output`` is no experiment's.
        ValueError: if a result cannot be read, or the config asks for a section, a method
            or an argument that there is not.
    """
    results = Results(output, config)
    default = [name for name, one in SECTIONS.items() if one.by_default]
    entries = [_entry(one) for one in results.config.get("report") or default]
    folder = output / "report"
    for kind in ("tables", "figures"):
        shutil.rmtree(folder / kind, ignore_errors=True)
        (folder / kind).mkdir(parents=True)
    names: Counter[str] = Counter()
    chapters: list[tuple[str, list[Part]]] = []
    left_out: dict[tuple[str, str], list[str]] = {}
    with matplotlib.rc_context(STYLE):
        for entry in entries:
            parts: list[Part] = []
            for dataset in _datasets(results, entry):
                try:
                    parts += _parts(results, entry, dataset)
                except Unavailable as reason:
                    where = left_out.setdefault((entry.title, str(reason)), [])
                    where += [dataset] if dataset else []
            parts = [_named(part, names) for part in parts]
            for part in parts:
                _write(part, folder)
            if parts:
                chapters.append((entry.title, parts))
        return write_page(folder / "index.html", results, chapters, left_out)


def arguments_of(section: Section) -> list[str]:
    """What the config may say about a section, besides its name."""
    own = set(signature(section.build).parameters) - {"results", "dataset"}
    return sorted({*own, "title"} | (set() if section.whole else {"datasets"}))


def _entry(asked: str | Mapping[str, Any]) -> _Entry:
    arguments = {"section": asked} if isinstance(asked, str) else dict(asked)
    name = arguments.pop("section", None)
    if name not in SECTIONS:
        raise ValueError(f"report: section {name!r} is none of {', '.join(SECTIONS)}")
    section = SECTIONS[name]
    known = arguments_of(section)
    if unknown := sorted(arguments.keys() - set(known)):
        raise ValueError(
            f"report: section {name} takes no {', '.join(unknown)}; it takes "
            f"{', '.join(known)}"
        )
    title = arguments.pop("title", section.title)
    datasets = None if section.whole else arguments.pop("datasets", None)
    return _Entry(section, title, datasets, arguments)


def _datasets(results: Results, entry: _Entry) -> list[str | None]:
    """The datasets that a section has parts for; None alone: it is about all of them."""
    for name in entry.datasets or entry.arguments.get("datasets") or []:
        if name not in results.datasets:
            raise ValueError(
                f"report: dataset {name!r} is none of {', '.join(results.datasets)}"
            )
    if entry.section.whole:
        return [None]
    if entry.datasets:
        return list(entry.datasets)
    # Of the datasets of other tasks nothing is said, unless there are no others.
    task = entry.section.task
    fitting = [name for name in results.datasets if task in (None, results.task(name))]
    return fitting or results.datasets


def _parts(results: Results, entry: _Entry, dataset: str | None) -> list[Part]:
    if entry.section.budgets and not results.budgets:
        raise Unavailable("the experiment has no compute budgets (key `budgets`)")
    if dataset is None:
        return list(entry.section.build(results, **entry.arguments))
    task = results.task(dataset)
    if task is None:
        raise Unavailable(f"nothing is scored of {dataset} yet")
    if entry.section.task not in (None, task):
        raise Unavailable(f"{dataset} is {task}; this needs {entry.section.task}")
    return list(entry.section.build(results, dataset, **entry.arguments))


def _named(part: Part, names: Counter[str]) -> Part:
    """``part`` under a name that is one of a file, and that no part of its kind has yet."""
    name = re.sub(r"[^\w.-]+", "_", part.name)
    kind = f"{type(part).__name__} {name}"
    names[kind] += 1
    return replace(part, name=name if names[kind] == 1 else f"{name}_{names[kind]}")


def _write(part: Part, folder: Path) -> None:
    if isinstance(part, Table):
        for suffix, write in FORMATS.items():
            (folder / "tables" / f"{part.name}.{suffix}").write_text(write(part))
    else:
        (folder / "figures" / f"{part.name}.png").write_bytes(part.png)
        (folder / "figures" / f"{part.name}.svg").write_text(part.svg)
