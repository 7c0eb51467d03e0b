"""Attacks with invalid, or almost valid, configs and data files."""

import json
import random
import string
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import erjepa.configs
from erjepa.datasets import paired_dataset
from tests.campaign.attack import REFUSED, UNHARMED, Attack, Lost, Try, refused
from tests.campaign.files import harm
from tests.harness.data import write_records
from tests.harness.models import write_base

ODD: list[Any] = [
    *(0, -1, 1, 2, 1.5, -0.5, 1e9, 1e308, float("nan"), float("inf"), 10**30, True),
    *(
        "",
        "many",
        "null",
        "a: b",
        "${nothing}",
        "[1",
        "\u0000",
        "torch.optim.SGD",
        None,
    ),
    *([], [1, "a"], {}, {"_component_": "os.system"}, {"a": {"b": 1}}),
]


def configs(folder: Path) -> Try:
    """Keys with odd values, without a value, without their neighbors, or misspelled."""
    names = [n for n in erjepa.configs.config_names() if "/" not in n]

    def attempt(rng: random.Random, scratch: Path) -> str:
        base = erjepa.configs.merged(rng.choice(names))
        touched = [alter(rng, base) for _ in range(rng.randint(1, 2))]
        path = scratch / "odd.yaml"
        try:
            path.write_text(OmegaConf.to_yaml(OmegaConf.create(base)))
        except Exception:  # noqa: BLE001 - no YAML has such a value
            return REFUSED
        try:
            cfg = erjepa.configs.load(str(path))
        except Exception as error:  # noqa: BLE001
            keys = {part for key in touched for part in key.split(".")}
            return refused(error, path, *keys)
        if erjepa.configs.read(cfg.as_written()) != cfg:
            raise Lost(f"{touched}: read twice, it is another config")
        return UNHARMED

    return attempt


def alter(rng: random.Random, values: dict[str, Any]) -> str:
    """Change one key or item in place, at any depth; return the dotted names of the keys to it."""
    path: list[str] = []
    section: Any = values
    while True:
        keys = list(section if isinstance(section, dict) else range(len(section)))
        if not keys:
            return ".".join(path)
        key = rng.choice(keys)
        if isinstance(section, dict):
            path.append(str(key))
        is_section = isinstance(section[key], (dict, list)) and section[key]
        if not is_section or rng.random() >= 0.8:
            break
        section = section[key]
    way = rng.choice(["value", "value", "value", "remove", "rename", "add"])
    if way == "value":
        section[key] = rng.choice(ODD)
    elif way == "remove":
        del section[key]
    elif isinstance(section, list):
        section.append(section[key] if way == "rename" else rng.choice(ODD))
    elif way == "rename":
        letters = list(str(key)) or [""]
        letters[rng.randrange(len(letters))] = rng.choice(string.ascii_lowercase)
        section["".join(letters)] = section.pop(key)
    else:
        section["extra_" + str(key)] = rng.choice(ODD)
        path.append("extra_" + str(key))
    return ".".join(path)


def data_files(folder: Path) -> Try:
    """Files of pairs with damaged bytes, missing fields, or values that are not text."""
    from torchtune.models.llama3 import llama3_tokenizer

    base = write_base(folder / "base")
    tokenizer = llama3_tokenizer(
        str(base / "tokenizer.model"),
        special_tokens_path=str(base / "special_tokens.json"),
    )
    whole = write_records(folder / "whole.jsonl", 12)

    def attempt(rng: random.Random, scratch: Path) -> str:
        path = scratch / "pairs.jsonl"
        lines = whole.read_text().splitlines()
        at = rng.randrange(len(lines))
        if rng.random() < 0.5:
            lines[at] = _odd_record(rng, json.loads(lines[at]))
            path.write_text("\n".join(lines) + "\n", errors="surrogatepass")
        else:
            path.write_text("\n".join(lines) + "\n")
            harm(rng, path, None)
        try:
            dataset = paired_dataset(tokenizer, source=str(path))
        except Exception as error:  # noqa: BLE001
            return refused(error, path.name)
        texts = [line for line in path.read_text().splitlines() if line.strip()]
        if len(dataset) != len(texts):
            raise Lost(f"{len(texts)} lines gave {len(dataset)} pairs")
        for i, line in enumerate(texts):
            target = json.loads(line)["messages"][-1]["content"].strip()
            if dataset.target_text(i) != target:
                raise Lost(
                    f"line {i + 1}: {dataset.target_text(i)!r} is not {target!r}"
                )
        return UNHARMED

    return attempt


def _odd_record(rng: random.Random, record: dict[str, Any]) -> str:
    messages = record["messages"]
    message = rng.choice(messages)
    odd = rng.choice(
        [None, 7, "", " ", [], {}, ["a"], "\u0000", "\ud800", "a" * 5000, True]
    )
    way = rng.choice(["content", "role", "messages", "drop", "twice", "order"])
    if way == "messages":
        record["messages"] = odd
    elif way == "drop":
        messages.remove(message)
    elif way == "twice":
        messages.append(dict(message))
    elif way == "order":
        rng.shuffle(messages)
    else:
        message[way] = odd
    return json.dumps(record)


ATTACKS = [
    Attack("odd configs", 1000, 2, configs),
    Attack("odd data files", 500, 2, data_files),
]
