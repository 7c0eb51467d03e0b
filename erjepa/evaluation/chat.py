"""Generates answers of a trained run to a user's prompts."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from torchtune import utils
from torchtune.modules.transforms import Transform
from tqdm import tqdm

from erjepa.configs import Config
from erjepa.datasets import PairedDataset
from erjepa.evaluation.answers import generate_texts
from erjepa.evaluation.generation import batches_of_like_length
from erjepa.evaluation.model import empty_model, load_weights
from erjepa.evaluation.run import first_pair
from erjepa.training.model.device import run_device
from erjepa.utils.escape import one_line
from erjepa.utils.files import require_utf8
from erjepa.utils.jsonl import read_jsonl

log = utils.get_logger("INFO")


def answers(
    cfg: Config,
    path: Path | None,
    prompts: Sequence[tuple[str, str]],
    *,
    system_prompt: str | None = None,
) -> list[dict[str, Any]]:
    """Generate greedy answers to prompts.

    Args:
        path: checkpoint; ``None``: the base model.
        prompts: each after its place, which errors name.
        system_prompt: system message; "": none; ``None``: the one of the first training pair.

    Raises:
        ValueError: naming a prompt that has more tokens than the model has positions.
    """
    device = run_device(cfg)
    tokenizer = cfg.tokenizer.build()
    pairs = first_pair(cfg, tokenizer)
    tokens = [pairs.ask(prompt, system_prompt) for _, prompt in prompts]
    if note := system_note(pairs, tokenizer, system_prompt):
        utils.log_rank_zero(log, note)
    model = empty_model(cfg, device)
    for (where, _), own in zip(prompts, tokens, strict=True):
        if len(own) > model.max_seq_len:
            raise ValueError(
                f"{where}: the prompt has {len(own)} tokens, but the model has "
                f"{model.max_seq_len} positions; shorten it"
            )
    load_weights(model, cfg, path)
    outputs: dict[int, dict[str, Any]] = {}
    batches = batches_of_like_length([*map(len, tokens)], cfg.eval_batch_size)
    for batch in tqdm(batches, unit="batch", disable=len(batches) == 1):
        batch_tokens = [tokens[i] for i in batch]
        generated = generate_texts(model, tokenizer, batch_tokens, cfg.max_new_tokens)
        outputs.update(zip(batch, generated, strict=True))
    return [{"prompt": prompt, **outputs[i]} for i, (_, prompt) in enumerate(prompts)]


def system_note(
    pairs: PairedDataset, tokenizer: Transform, system_prompt: str | None
) -> str | None:
    """Return a note on the default system message, if there is one and the user set no other."""
    first = pairs.messages(0)[0]
    if system_prompt is None and first.role == "system":
        whose, message = "that of the first training pair", first.text_content
    else:
        whose = "the chat template's"
        message = getattr(tokenizer, "default_system_message", "")
    if system_prompt or not message:
        return None
    shown = one_line(message, 60)
    return f"The system message is {whose}, {shown!r}; --system sets another."


def read_prompts(file: Path) -> list[tuple[str, str]]:
    """Read prompts from a file, each after its place, ``FILE:LINE``.

    Args:
        file: a text file with one prompt per line; or a ``.jsonl`` file with one JSON object per
            line, whose ``prompt``, or whose only string, is the prompt.

    Raises:
        ValueError: naming the line, if one has no prompt, or the file, if it has another format.
    """
    suffix = file.suffix.lower()
    if suffix in (".json", ".csv", ".tsv", ".parquet"):
        raise ValueError(
            f"{file}: expected a text file with a prompt per line, or .jsonl"
        )
    if suffix not in (".jsonl", ".ndjson"):
        content = file.read_bytes()
        require_utf8(content, str(file))
        lines = StringIO(content.decode("utf-8-sig"), newline=None)
        return [
            (f"{file}:{number}", line.rstrip("\n"))
            for number, line in enumerate(lines, start=1)
            if line.strip()
        ]
    prompts = []
    for where, fields in read_jsonl(file):
        texts = [value for value in fields.values() if isinstance(value, str)]
        prompt = fields.get("prompt", texts[0] if len(texts) == 1 else None)
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(
                f"{where}: expected a text in prompt, or as the only text; the line has "
                f"{list(fields)}"
            )
        prompts.append((where, prompt))
    return prompts
