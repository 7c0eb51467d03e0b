"""From an experiment's output to its report."""

import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib

# They enter their sections.
from erjepa.report import accuracy, compute, examples, paired, regexes, trajectories  # noqa: F401
from erjepa.report.figures import STYLE
from erjepa.report.page import write_page
from erjepa.report.results import Results, Unavailable
from erjepa.report.sections import SECTIONS, Part, Section, asked
from erjepa.report.table import FORMATS, Table, printable


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
    entries = [asked(one) for one in results.config.get("report") or default]
    folder = output / "report"
    for kind in ("tables", "figures"):
        shutil.rmtree(folder / kind, ignore_errors=True)
        (folder / kind).mkdir(parents=True)
    names: Counter[str] = Counter()
    chapters: list[tuple[str, list[Part]]] = []
    left_out: dict[tuple[str, str], list[str]] = {}
    with matplotlib.rc_context(STYLE):
        for section, title, arguments in entries:
            parts: list[Part] = []
            for dataset in _datasets(results, section, arguments):
                try:
                    parts += section.parts(results, dataset, **arguments)
                except Unavailable as reason:
                    where = left_out.setdefault((title, str(reason)), [])
                    where += [dataset] if dataset else []
            parts = [_write(part, folder, names) for part in parts]
            if parts:
                chapters.append((title, parts))
        return write_page(folder / "index.html", results, chapters, left_out)


def _datasets(
    results: Results, section: Section, arguments: dict[str, Any]
) -> list[str | None]:
    """The datasets that a section has parts for; None alone: it is about all of them."""
    for name in arguments.get("datasets") or []:
        if name not in results.datasets:
            raise ValueError(
                f"report: dataset {name!r} is none of {', '.join(results.datasets)}"
            )
    if section.whole:
        return [None]
    if named := arguments.pop("datasets", None):
        return named
    # Of the datasets of other tasks nothing is said, unless there are no others.
    fitting = [d for d in results.datasets if section.task in (None, results.task(d))]
    return fitting or results.datasets


def _write(part: Part, folder: Path, names: Counter[str]) -> Part:
    """Write a part under a name that is one of a file, and that none of its kind has yet."""
    name = re.sub(r"[^\w.-]+", "_", part.name)
    kind = f"{type(part).__name__} {name}"
    names[kind] += 1
    part = replace(part, name=name if names[kind] == 1 else f"{name}_{names[kind]}")
    if isinstance(part, Table):
        for suffix, write in FORMATS.items():
            file = folder / "tables" / f"{part.name}.{suffix}"
            file.write_text(printable(write(part)), encoding="utf-8")
    else:
        (folder / "figures" / f"{part.name}.png").write_bytes(part.png)
        (folder / "figures" / f"{part.name}.svg").write_text(part.svg)
    return part
