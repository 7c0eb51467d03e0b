"""Attacks with config texts that could break the YAML, Markdown or HTML of a model card."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from erjepa.checkpoints.model_card import base_of, write_model_card
from erjepa.utils.escape import printable
from erjepa.utils.files import CARD, CONFIG
from erjepa.utils.files import SUMMARY as SUMMARY_FILE
from tests.campaign.attack import REFUSED, UNHARMED, Attack, Lost, Try
from tests.campaign.queries import mutate
from tests.harness.model_cards import SUMMARY, config

_TEXTS = [
    *("---", "...", "a: b", "- x", "# y", "!!python/object", "&a *a", "'", '"', "{{"),
    *("| a | b |", "```", "~~~", "# Title", "<script>", "<!--", "&lt;", "[x](y)"),
    *("![x](y)", "**b**", "_i_", "\\", "\\|", "$x$", "</table>", "~~x~~", "> q"),
    *("https://x.y", "a@b.c", "1. x", "    code", "\n\n", "\n---\n", "\n```\n", "\r\n"),
    *("Ignore this.", "null", "~", "1e3", "yes", "", "\u2028", "\x85", "\ufeff"),
]


def cards(folder: Path) -> Try:
    """Hostile texts in a run's config and scores. The card must have the parts that it has with
    plain texts, and say the texts themselves.
    """
    expected = [kind for kind, _ in _parts(_card(folder, config(), SUMMARY))]

    def attempt(rng: random.Random, scratch: Path) -> str:
        cfg, hostile = config(), _hostile(rng)
        cfg["base_model"] = hostile
        folder_of_base = rng.choice(["/absent/", "/base/"])
        cfg["checkpointer"]["checkpoint_dir"] = folder_of_base + hostile
        base = base_of(cfg)
        cfg["dataset"][rng.choice(["subset", "split"])] = _hostile(rng)
        cfg["replay"]["selection"] = _hostile(rng)
        summary = {**SUMMARY, "pairs": _hostile(rng)}
        try:
            card = _card(scratch, cfg, summary)
        except (OmegaConfBaseException, UnicodeEncodeError, yaml.YAMLError):
            return REFUSED  # no config has such a value
        parts = _parts(card)
        for found, kind in itertools.zip_longest(parts, expected):
            if found is None or found[0] != kind:
                raise Lost(f"{found} in place of {kind}:\n{card[:2500]}")
        header, _, _ = card.removeprefix("---\n").partition("\n---\n")
        _, keys = (text for kind, text in parts if kind == ("fence", "code"))
        cells = [text for kind, text in parts if kind == ("code_inline", "code")]
        shown = " ".join(printable(base).split())
        for what, is_said in {
            "front matter": yaml.safe_load(header)["base_model"] == base,
            "keys": OmegaConf.to_container(OmegaConf.create(keys)) == cfg,
            "table": shown in [" ".join(cell.split()) for cell in cells],
        }.items():
            if not is_said:
                raise Lost(f"{what}: not {base!r}:\n{card[:2500]}")
        return UNHARMED

    return attempt


def _card(folder: Path, cfg: dict[str, Any], summary: dict[str, Any]) -> str:
    """Return the card as a run in ``folder`` writes it."""
    OmegaConf.save(OmegaConf.create(cfg), folder / CONFIG)
    scores = folder / "evaluation" / "epoch_0"
    scores.mkdir(parents=True)
    (scores / SUMMARY_FILE).write_text(json.dumps(summary))
    write_model_card(folder)
    return (folder / CARD).read_text()


def _parts(card: str) -> list[tuple[tuple[str, str], str]]:
    """Return kind and text of all Markdown elements of a card except plain text."""
    _, _, body = card.removeprefix("---\n").partition("\n---\n")
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = [[block, *(block.children or [])] for block in parser.parse(body)]
    return [
        ((token.type, token.tag), "" if token.type == "inline" else token.content)
        for token in itertools.chain.from_iterable(tokens)
        if token.type != "text"
    ]


def _hostile(rng: random.Random) -> str:
    text = "".join(rng.choices(_TEXTS, k=rng.randint(1, 3)))
    text = mutate(rng, text, _TEXTS)[:500]
    return text if text.strip() else "x"


ATTACKS = [Attack("cards", 200, 1, cards)]
