"""Builds the report of an experiment: the files of its tables and figures, and the page."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import jinja2
import matplotlib
import pandas as pd

from erjepa.studies import report
from erjepa.studies.experiment import Experiment
from erjepa.studies.report.accuracy import settings
from erjepa.studies.report.figures import STYLE
from erjepa.studies.report.paired import CLAIMS
from erjepa.studies.report.results import Results, Unavailable, pivot
from erjepa.studies.report.sections import SECTIONS, Part, Section
from erjepa.studies.report.table import FORMATS, HTML, Table
from erjepa.utils.checked import checked
from erjepa.utils.escape import printable
from erjepa.utils.folders import make_folder, remove


def register_sections() -> None:
    """Import every module of this package, which registers its sections."""
    for module in iter_modules(report.__path__):
        import_module(f"{report.__name__}.{module.name}")


register_sections()


def build_report(output: Path) -> Path:
    """Write the report of an experiment, finished or not, and return the path of its page.

    Raises:
        FileNotFoundError: if ``output`` is not the output folder of an experiment.
        ValueError: if a result cannot be read, or the config names an unknown section, method,
            dataset or argument.
    """
    results = Results(output)
    entries = sections_of(results.config)
    folder = output / "report"
    make_folder(output, folder)
    for kind in ("tables", "figures"):
        remove(output, folder / kind)
        (folder / kind).mkdir()
    names: Counter[str] = Counter()
    chapters: list[tuple[str, list[Part]]] = []
    left_out: dict[tuple[str, str], list[str]] = {}
    with matplotlib.rc_context(fname=STYLE):
        for section, title, arguments in entries:
            parts: list[Part] = []
            for dataset in section.datasets(results, arguments.get("datasets")):
                try:
                    parts += section.parts(results, dataset, **arguments)
                except Unavailable as reason:
                    where = left_out.setdefault((title, str(reason)), [])
                    where += [dataset] if dataset else []
            if parts:
                chapters.append((title, [_write(one, folder, names) for one in parts]))
        page = jinja2.Template(
            Path(__file__).with_name("page.html").read_text(encoding="utf-8"),
            autoescape=True,
        ).render(
            results=results,
            outcomes=_outcomes(results),
            chapters=chapters,
            left_out=left_out,
            settings=settings,
            html_format=HTML,
        )
    path = folder / "index.html"
    path.write_text(printable(page), encoding="utf-8")
    return path


def sections_of(config: Experiment) -> list[tuple[Section, str, dict[str, Any]]]:
    """Return section, heading and arguments of each entry of an experiment's key ``report``.

    Raises:
        ValueError: if an entry names an unknown section, method, dataset or argument.
    """
    usual = ["continual"] if config.continual else []
    usual += [name for name, one in SECTIONS.items() if one.by_default]
    return [_parse_entry(entry, config) for entry in config.report or usual]


def _parse_entry(
    entry: str | Mapping[str, Any], config: Experiment
) -> tuple[Section, str, dict[str, Any]]:
    arguments = {"section": entry} if isinstance(entry, str) else dict(entry)
    name = arguments.pop("section", None)
    if not isinstance(name, str) or name not in SECTIONS:
        raise ValueError(f"report: section {name!r} is none of {', '.join(SECTIONS)}")
    one = SECTIONS[name]
    if unknown := sorted(arguments.keys() - set(one.arguments)):
        raise ValueError(
            f"report: section {name} takes no {', '.join(unknown)}; it takes "
            f"{', '.join(one.arguments)}"
        )
    for key, value in arguments.items():
        where = f"report: {name}: {key}"
        arguments[key] = checked(one.arguments[key], value, where, context=config)
    return one, arguments.pop("title", one.title), arguments


def _write(part: Part, folder: Path, names: Counter[str]) -> Part:
    """Write the files of a part and return it with a valid and unique file name."""
    name = re.sub(r"[^\w.-]+", "_", part.name)
    kind = f"{type(part).__name__} {name}"
    names[kind] += 1
    part = replace(part, name=name if names[kind] == 1 else f"{name}_{names[kind]}")
    if isinstance(part, Table):
        for suffix, write in FORMATS.items():
            file = folder / "tables" / f"{part.name}.{suffix}"
            file.write_text(printable(write(part)), encoding="utf-8")
    else:
        for suffix, content in (("png", part.saved("png")), ("svg", part.svgs[0])):
            (folder / "figures" / f"{part.name}.{suffix}").write_bytes(content)
    return part


def _outcomes(results: Results) -> Iterator[tuple[str, pd.DataFrame, dict]]:
    """Yield each dataset with mean accuracies, best first, and differences of claimed pairs."""
    ends = results.runs[results.runs.ends]
    main = {results.role(method): method for method in results.main_methods()}
    pairs = [(main.get(better), main.get(other)) for better, other in CLAIMS]
    for dataset, rows in ends.groupby("dataset", sort=False):
        means = rows.groupby("method", sort=False).accuracy.agg(["mean", "std"])
        means = means.sort_values("mean", ascending=False, kind="stable")
        wide = pivot(rows, ["seed"], "method", "accuracy")
        there = [pair for pair in pairs if {*pair} <= {*wide}]
        if not there and len(wide.columns) == 2:  # two methods without a claim
            there = [(wide.columns[1], wide.columns[0])]
        gains = {(a, b): (wide[a] - wide[b]).dropna() for a, b in there}
        yield dataset, means, {pair: gain for pair, gain in gains.items() if len(gain)}
