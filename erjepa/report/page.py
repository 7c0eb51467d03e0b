"""The page of a report: one file of HTML with everything in it."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from erjepa.report.figures import Figure
from erjepa.report.formats import to_html
from erjepa.report.results import Results
from erjepa.report.table import Column, Table

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 Georgia, 'Times New Roman', serif; color: #1a1a1a; background: #fff;
  max-width: 60rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1, h2, nav, table, figcaption, footer { font-family: system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; }
h2 { font-size: 1.25rem; margin-top: 3rem; border-bottom: 1px solid #ccc; }
nav ul { columns: 3 12rem; padding-left: 1.2rem; }
a { color: #00497a; }
figure { margin: 1.5rem 0; }
figure img { max-width: 100%; height: auto; }
figcaption, caption { font-size: .85rem; color: #444; text-align: left; max-width: 46rem; }
caption { padding-bottom: .4rem; }
.scroll { overflow-x: auto; margin: 1.5rem 0; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums;
  border-bottom: 1.5px solid #1a1a1a; }
thead { border-top: 1.5px solid #1a1a1a; border-bottom: 1px solid #1a1a1a; }
th, td { padding: .25rem .7rem .25rem 0; vertical-align: top; }
th { font-weight: 600; } .number { text-align: right; } .text { text-align: left; }
td.text { overflow-wrap: anywhere; min-width: 4rem; }
mark { background: none; color: inherit; padding: 0 .1em; }
mark.wrong { background: #c8dcff; text-decoration: underline wavy #235; }
mark.extra { background: #f99b9d; font-weight: 700; }
mark.missing { background: #f8d097; text-decoration: line-through; }
code { font-size: .9em; } footer { margin-top: 4rem; font-size: .8rem; color: #555; }
@media print { nav { display: none; } h2 { break-after: avoid; } }
"""


@dataclass(frozen=True)
class Chapter:
    """A section that has been made: its heading and its parts in order."""

    title: str
    parts: Sequence[Table | Figure]


def write_page(
    path: Path,
    results: Results,
    chapters: Sequence[Chapter],
    left_out: Mapping[tuple[str, str], Sequence[str]],
) -> Path:
    """Write the page.

    Args:
        path (Path): the file.
        results (Results): of the experiment.
        chapters (Sequence[Chapter]): its sections.
        left_out (Mapping[tuple[str, str], Sequence[str]]): heading of a section that could
            not be made, and why, to the datasets for which.

    Returns:
        Path: the file.
    """
    name = escape(str(results.config["name"]))
    headings = ["What was run", "What is missing", *(one.title for one in chapters)]
    bodies = [
        _what_was_run(results),
        _what_is_missing(results, left_out),
        *("\n".join(map(_part, one.parts)) for one in chapters),
    ]
    contents = "\n".join(
        f'<li><a href="#s{i}">{escape(heading)}</a></li>'
        for i, heading in enumerate(headings)
    )
    sections = "\n".join(
        f'<section id="s{i}">\n<h2>{escape(heading)}</h2>\n{body}\n</section>'
        for i, (heading, body) in enumerate(zip(headings, bodies, strict=True))
    )
    path.write_text(
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{name}</h1>\n<nav><ul>\n{contents}\n</ul></nav>\n{sections}\n"
        "<footer>Every table is in <code>tables/</code> beside this page as Markdown, CSV "
        "and LaTeX, every figure in <code>figures/</code> as PNG and SVG.</footer>\n"
        "</body>\n</html>\n",
        encoding="utf-8",
    )
    return path


def _part(part: Table | Figure) -> str:
    if isinstance(part, Table):
        return f'<div class="scroll">\n{to_html(part)}\n</div>'
    picture = b64encode(part.svg.encode()).decode()
    width = round(part.canvas.get_figwidth() * 130)  # pixels: larger than in print
    return (
        f'<figure>\n<img width="{width}" alt="{escape(part.caption)}" '
        f'src="data:image/svg+xml;base64,{picture}">\n'
        f"<figcaption>{escape(part.caption)}</figcaption>\n</figure>"
    )


def _what_was_run(results: Results) -> str:
    ran, config = results.ran, results.config
    hardware = ran.get("hardware") or {}
    gpus = ", ".join(hardware.get("gpus") or []) or "none"
    match = config.get("match", "flops")
    facts = {
        "Datasets": ", ".join(f"{k} ({v})" for k, v in config["datasets"].items()),
        "Seeds": ", ".join(map(str, results.seeds)),
        "Matched in": match if isinstance(match, str) else _settings(match),
        "Budgets (FLOPs)": ", ".join(f"{b:.6g}" for b in results.budgets) or "none",
        "All runs": _settings(config.get("overrides")),
        "Processes of a run": str(config.get("nproc_per_node", 1)),
        "Versions": ", ".join(
            f"{k} {v}" for k, v in (ran.get("versions") or {}).items()
        ),
        "Revision": str(ran.get("revision") or "unknown"),
        "Hardware": f"{hardware.get('cpu', 'unknown')}, {hardware.get('cores', '?')} cores; "
        f"GPUs: {gpus}",
    }
    methods = [
        [method, _settings(config["methods"][method])] for method in results.methods
    ]
    columns = [Column("Method"), Column("Sets")]
    return "\n".join(
        [
            _part(
                Table(
                    "facts",
                    "The experiment.",
                    [Column("Key"), Column("Value")],
                    [*facts.items()],
                )
            ),
            _part(Table("methods", "Its methods.", columns, methods)),
        ]
    )


def _settings(values: Mapping[str, Any] | None) -> str:
    """Overrides as one types them."""
    return " ".join(f"{key}={value}" for key, value in (values or {}).items())


def _what_is_missing(
    results: Results, left_out: Mapping[tuple[str, str], Sequence[str]]
) -> str:
    cells = list(_missing_cells(results))
    runs = _list(cells) if cells else "<p>No run: all have ended and are scored.</p>"
    if not left_out:
        return runs
    reasons = _list(
        f"{title} ({', '.join(where) or 'all datasets'}): {why}."
        for (title, why), where in left_out.items()
    )
    return f"{runs}\n<p>Sections that these results do not allow:</p>\n{reasons}"


def _list(items: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{escape(one)}</li>" for one in items) + "\n</ul>"


def _missing_cells(results: Results) -> Iterator[str]:
    for (dataset, method), seeds in results.missing().items():
        started = {
            seed: len(rows)
            for seed in seeds
            if (rows := results.checkpoints(dataset, method, seed))
        }
        absent = [str(seed) for seed in seeds if seed not in started]
        if absent:
            word = "seed" if len(absent) == 1 else "seeds"
            yield f"{method} on {dataset}: nothing of {word} {', '.join(absent)}."
        for seed, count in started.items():
            word = "checkpoint" if count == 1 else "checkpoints"
            yield f"{method} on {dataset}: seed {seed} is unfinished, {count} {word} scored."
