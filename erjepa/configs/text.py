"""Write a config as one complete YAML file, with the comments of its source files."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from erjepa.configs.files import chain
from erjepa.configs.reading import load
from erjepa.utils.escape import one_line

# A tag such as [paper]: from there on, a comment is about the value in the file.
TAG = re.compile(r"\[[a-z-]+\]")


@dataclass(frozen=True)
class Line:
    """A key as written in a file: its value, and the comments above and behind it."""

    value: Any
    text: str
    above: tuple[str, ...]
    behind: str
    is_spaced: bool  # whether an empty line precedes the key and its comments


def as_yaml(name: str, overrides: Sequence[str] = ()) -> str:
    """Return a config as the text of one YAML file, without ``defaults``.

    The comment of a key is that of the first file that has one, starting with the config itself.
    From a tag such as ``[paper]`` on, it is dropped if the value has changed. Arguments and
    errors as in :func:`~erjepa.configs.load`.
    """
    values = load(name, overrides).as_written()
    paths = [path for path, _ in chain(name)]
    texts = [Path(path).read_text("utf-8") for path in paths]
    heads = [_head(text) for text in texts]
    paragraphs = [*heads[0], *(heads[-1][1:] if len(heads) > 1 else [])]
    if overrides:
        paragraphs.insert(1, [f"# With {one_line(' '.join(overrides))}"])
    files = [lines_of(text) for text in texts]
    lines = [line for paragraph in paragraphs for line in (*paragraph, "")]
    written = "\n".join([*lines, *_write(values, files)]) + "\n"
    try:
        reads = OmegaConf.to_container(OmegaConf.create(written), resolve=False)
    except yaml.YAMLError:  # an alias was copied without its anchor
        reads = None
    if reads != values:
        written = "\n".join([*lines, OmegaConf.to_yaml(OmegaConf.create(values))])
    return written


def _write(
    values: Mapping[str, Any], files: list[dict[str, Line]], path: str = ""
) -> list[str]:
    written: list[str] = []
    for key, value in values.items():
        indent = "  " * path.count(".")
        known = [lines[path + key] for lines in files if path + key in lines]
        above = next((line for line in known if line.above), None)
        behind = next((line for line in known if line.behind), None)
        if written and known and known[-1].is_spaced:
            written.append("")
        if above is not None:
            comments: Iterable[str] = above.above
            if above.value != value:
                comments = takewhile(lambda line: not TAG.search(line), comments)
            written += [indent + line for line in comments]
        comment = "" if behind is None else behind.behind
        if behind is not None and behind.value != value:
            comment = TAG.split(comment)[0].rstrip(" #")
        comment = f"  {comment}" if comment else ""
        if isinstance(value, Mapping) and value:
            written.append(f"{indent}{key}:{comment}")
            written += _write(value, files, f"{path}{key}.")
        else:
            same = next((line.text for line in known if line.value == value), None)
            written.append(f"{indent}{key}: {same or _dump(value)}{comment}")
    return written


def _dump(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


def _head(text: str) -> list[list[str]]:
    """Return the paragraphs of comments before the first key."""
    paragraphs: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.strip():
            paragraphs.append([])
        elif line.startswith("#"):
            paragraphs[-1].append(line)
        else:
            break
    return [paragraph for paragraph in paragraphs[:-1] if paragraph]


def lines_of(text: str) -> dict[str, Line]:
    """Return every key of a YAML file by its dotted path."""
    rows = text.split("\n")
    by_path: dict[str, Line] = {}

    def visit(node: yaml.MappingNode, values: Mapping[str, Any], prefix: str) -> None:
        for key, value in node.value:
            name, line = key.value, key.start_mark.line
            is_section = isinstance(value, yaml.MappingNode) and not value.flow_style
            written = text[value.start_mark.index : value.end_mark.index]
            is_on_line = not is_section and "\n" not in written
            end = value.end_mark if is_on_line else key.end_mark
            above = line
            while above and rows[above - 1].lstrip().startswith("#"):
                above -= 1
            _, mark, behind = rows[end.line][end.column :].partition("#")
            by_path[prefix + name] = Line(
                value=values.get(name),
                text=written if is_on_line else "",
                above=tuple(row.strip() for row in rows[above:line]),
                behind=f"{mark} {behind.strip()}" if mark else "",
                is_spaced=above > 0 and not rows[above - 1].strip(),
            )
            if is_section:
                visit(value, values.get(name) or {}, f"{prefix}{name}.")

    root = yaml.compose(text)
    if isinstance(root, yaml.MappingNode):
        visit(root, OmegaConf.to_container(OmegaConf.create(text), resolve=False), "")
    return by_path
