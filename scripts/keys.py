"""Write the tables of docs/keys.md from the comments of a config: `make docs`."""

import re
from pathlib import Path

from erjepa.configs.component import COMPONENT
from erjepa.configs.text import TAG, lines_of

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "llama3_2_1b_synth.yaml"
PAGE = ROOT / "docs" / "keys.md"
BEGIN = (
    f"<!-- tables: from the comments of {CONFIG.relative_to(ROOT)}, by `make docs` -->"
)
END = "<!-- end of tables -->"
RULE = "| --- | --- | --- |"
_LINK = re.compile(r"docs/((\w+)\.md(?:#[\w-]+)?)")
# What is set as code: the choices of `a | b (so) | c`, and keys such as `a_b.c`.
_CODE = re.compile(
    r"(?<=\| )[\w-]+|[\w-]+(?= \|)|(?<![\w/#])[a-z]\w+(?:[_.=]\w+)+(?![\w/])"
)


def page(text: str, config: str) -> str:
    """Return a page, ``text``, with the tables of ``config``, the text of a YAML file.

    Each section of the config becomes a table. Its heading is the comment after an empty line
    and above a top-level key. The meaning of a key is the comment behind it, or else above it,
    up to a tag such as ``[paper]``; keys without a comment are left out.
    """
    rows: list[str] = []
    for key, line in lines_of(config).items():
        above = [comment.strip("# ") for comment in line.above]
        if line.is_spaced and above and "." not in key:
            heading = above.pop(0)
            rows += [f"\n## {heading}\n", "| key | default | meaning |", RULE]
        meaning, *_ = TAG.split(line.behind.strip("# ") or " ".join(above))
        if meaning:
            default = line.text or line.value.get(COMPONENT, "")
            rows.append(f"| `{key}` | {default} | {_markdown(meaning.strip())} |")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return "\n".join([head + BEGIN, *rows, "", END + tail])


def _markdown(meaning: str) -> str:
    meaning = _CODE.sub(r"`\g<0>`", meaning).replace(" | ", ", ")
    return _LINK.sub(lambda link: f"[{link[2].replace('_', ' ')}]({link[1]})", meaning)


if __name__ == "__main__":
    written = page(PAGE.read_text("utf-8"), CONFIG.read_text("utf-8"))
    PAGE.write_text(written, "utf-8")
