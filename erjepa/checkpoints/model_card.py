"""The model card of a run, ``README.md``: base model, data, method, config keys and scores.

torchtune copies the base model's card into every checkpoint; this one replaces it.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from erjepa.checkpoints.checkpoint import scored_weights
from erjepa.checkpoints.manifest import MANIFEST
from erjepa.checkpoints.served_chat import chat_template
from erjepa.configs import Component, resolved
from erjepa.configs.component import COMPONENT
from erjepa.datasets import dataset_name, origin_labels
from erjepa.utils.escape import backticks, markdown, markdown_code
from erjepa.utils.files import CARD, CONFIG, EMA, PEFT, write_whole
from erjepa.utils.hub import is_copy_of
from erjepa.utils.summary import Summary, scores_of_run

PROMPT = "prompt.txt"  # a training prompt, if no chat template reproduces it
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # many times as fast

_MADE = "Trained with ER-JEPA for torchtune."
_TEXT = """\
---
{front_matter}---

# {base}, fine-tuned on {data} with {method}

| | |
| --- | --- |
{table}

{made} At inference nothing is added: this is the base model's
architecture and tokenizer. {prompt}

## Use

{use}

## Scores

{scores}

## Keys

{fence}yaml
{keys}{fence}
"""

_PROMPT = """\
The folders' chat template builds other prompts than training
used, so send a server the tokens of a text such as this one:

{prompt}"""

_USE_ADAPTER = """\
Each folder `epoch_*` holds the merged model, unless only the adapter was saved, and in `adapter/` the adapter:

```python
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("FOLDER")  # merged
model = AutoPeftModelForCausalLM.from_pretrained("FOLDER/adapter")  # on top of the base
```"""

_USE_QUANTIZED = """

The adapter was trained over the 4-bit base, so over the unquantized base its outputs differ; the merged
model computes those of training."""

_USE_MODEL = """\
Each folder `epoch_*` holds the model:

```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("FOLDER")
```"""


def write_model_card(output_dir: Path) -> None:
    """Write the model card of a run into its folder, unless this has another ``README.md``, and
    into its checkpoints.
    """
    config_file = output_dir / CONFIG
    if not config_file.is_file():
        return  # a custom metric logger that saves no config
    keys = config_file.read_text(encoding="utf-8")
    config = resolved(yaml.load(keys, Loader=_Loader))
    prompt = output_dir / PROMPT
    models = [*output_dir.glob("*/*model*"), *output_dir.glob(f"*/{EMA}/*model*")]
    checkpoints = {p.parent for p in models if (p.parent / MANIFEST).is_file()}
    # Or a repository of the hub.
    served = Path(config["checkpointer"]["checkpoint_dir"])
    is_local = os.path.isdir(served)  # Path.is_dir fails on a name that is too long
    card = model_card(
        config,
        {path.name: summary for path, summary in scores_of_run(output_dir).items()},
        keys=keys,
        has_peft=any(output_dir.glob(f"*/{PEFT}/")),
        prompt=prompt.read_text(encoding="utf-8") if prompt.is_file() else None,
        has_template=not is_local or any(map(chat_template, (served, *checkpoints))),
    )
    folders = checkpoints | {output_dir}
    own = output_dir / CARD
    if own.exists() and _MADE.encode() not in own.read_bytes():
        folders.remove(output_dir)  # a file of the user's own stays
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):  # a run may prune it meanwhile
            write_whole(folder / CARD, card)


def model_card(
    config: Mapping[str, Any],
    summaries: Mapping[str, Summary],
    *,
    keys: str,
    has_peft: bool,
    prompt: str | None = None,
    has_template: bool = True,
) -> str:
    """Return the text of the model card, in Markdown.

    Args:
        summaries: evaluation summaries, by checkpoint.
        keys: the config as it is written in its file.
        has_peft: whether adapters were also written for PEFT; torchtune cannot for Phi-3.
        prompt: a training prompt, if the folders' chat template does not reproduce it.
        has_template: whether the base model or the folders have a chat template.
    """
    base, (method, objective) = base_of(config), method_of(config)
    datasets = datasets_of(config["dataset"])
    model = _component(config["model"])
    rows = {
        "base": markdown_code(base),
        "data": ", ".join(markdown_code(call) for _, call in datasets),
        "method": markdown(f"{method}: {objective}"),
    }
    if (rank := model.get("lora_rank")) is not None:
        tags = ["torchtune", "lora", "er-jepa"]
        use = _USE_ADAPTER if has_peft else _USE_MODEL
        alpha = model.get("lora_alpha")
        kind = "DoRA" if model.get("use_dora") else "LoRA"
        if model.get("quantize_base"):
            kind = f"Q{kind}"
            use += _USE_QUANTIZED if has_peft else ""
        rows["adapter"] = markdown(f"{kind}, rank {rank}, alpha {alpha}")
    else:
        tags, use = ["torchtune", "er-jepa"], _USE_MODEL
        rows["trained"] = "every weight (full fine-tuning)"
    if merged := config.get("base_adapters"):
        rows["base"] += f", adapters merged in: {', '.join(map(markdown_code, merged))}"
    replay = config.get("replay") or {}
    carried = {"weights": config.get("init_from"), "memory": replay.get("init_from")}
    for what, runs in carried.items():
        if runs:
            names = [runs] if isinstance(runs, str) else runs
            rows[f"{what} from"] = ", ".join(map(markdown_code, names))
    rows["seed"] = str(config["seed"])
    about = {
        "base_model": base,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": tags,
    }
    serving = "The folders' chat template builds the prompts of training."
    if not has_template:
        serving = "There is no chat template: send a server token ids, as `erjepa prompts` does."
    if prompt is not None:
        fence = backticks(prompt)
        serving = _PROMPT.format(prompt=f"{fence}text\n{prompt}\n{fence}")
    return _TEXT.format(
        front_matter=yaml.safe_dump(about, sort_keys=False),
        base=markdown(base),
        data=markdown(" and ".join(name for name, _ in datasets)),
        method=method,
        made=_MADE,
        table="\n".join(f"| {name} | {cell} |" for name, cell in rows.items()),
        use=use,
        prompt=serving,
        scores=_scores(summaries),
        fence=backticks(keys),
        keys=keys,
    )


def base_of(config: Mapping[str, Any]) -> str:
    """Return a run's ``base_model`` if it is a repository with the run's base weights, otherwise
    the absolute path of their folder.
    """
    folder = os.path.abspath(config["checkpointer"]["checkpoint_dir"])
    name = config["base_model"]
    if name == config["model"].get("path") and os.path.isdir(name):
        return folder  # of a model of transformers
    is_its = Path(name).name == Path(folder).name or is_copy_of(name, folder)
    return name if is_its else folder


def datasets_of(section: Any) -> list[tuple[str, str]]:
    """Return the label and the builder call of each dataset of a config section, as JSON."""
    sections = section if isinstance(section, list) else [section]
    parts = [_component(part) for part in sections]
    calls = [
        f"{part.name}({', '.join(f'{k}={v}' for k, v in part.arguments.items())})"
        for part in parts
    ]
    return list(zip(origin_labels(map(dataset_name, parts)), calls, strict=True))


def _component(section: Mapping[str, Any]) -> Component:
    arguments = dict(section)
    return Component(arguments.pop(COMPONENT), arguments)


def method_of(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the objective, and its terms.

    Replay of inherited pairs is left out of a run that inherits none.
    """
    replay = config.get("replay") or {"weight": 0}
    if replay.get("draw_from") == "inherited" and not replay.get("init_from"):
        replay = {"weight": 0}
    loss = config["loss"]
    terms = f"next-token loss (weight {loss.get('lm_weight', 1.0)})"
    jepa = loss.get("jepa_weight", 1.0)
    if jepa:
        terms += f", JEPA loss (weight {jepa}, {config['num_predictor_tokens']} predictor tokens)"
    for key, weight in loss.items():
        name = key.removesuffix("_weight")
        if weight and name not in (key, "lm", "jepa"):
            terms += f", {name} (weight {weight})"
    if (weight := config.get("orthogonal_weight")) and config.get("base_adapters"):
        terms += f", O-LoRA's penalty (weight {weight})"
    beta = replay.get("weight", 1.0)
    if beta:
        selection = replay.get("selection", "content")
        terms += f", {selection} replay (weight {beta}, capacity {replay.get('capacity', 10000)})"
    if jepa:
        return ("ER-JEPA" if beta else "LLM-JEPA"), terms
    return ("SFT with replay" if beta else "SFT"), terms


def _scores(summaries: Mapping[str, Summary]) -> str:
    if not summaries:
        return "Not scored yet: `tune run erjepa_eval --config ...` adds the scores."
    lines = [
        "| checkpoint | weights | pairs | score | accuracy | 95% interval | examples |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    if continues := any(summary.before for summary in summaries.values()):
        lines = [f"{lines[0]} earlier accuracy | of |", f"{lines[1]} --- | --- |"]
    for name, summary in summaries.items():
        reading = summary.readings[summary.primary]
        low, high = reading.interval
        cells = [
            markdown_code(scored_weights(name, summary).removesuffix("_merged")),
            markdown(summary.weights or "adapter"),
            markdown_code(summary.pairs or ""),
            markdown_code(summary.primary),
            f"{summary.accuracy:.2%}",
            f"{low:.2%} to {high:.2%}",
            str(reading.examples),
        ]
        if before := summary.before:
            cells += [f"{before.accuracy:.2%}", markdown_code(before.checkpoint)]
        elif continues:
            cells += ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
