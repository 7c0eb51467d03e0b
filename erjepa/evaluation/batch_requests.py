"""Writes the prompts of an evaluation as requests to a serving engine, in OpenAI's batch format.

There are two files: the requests, and the targets with the prompt's token ids and the fields that
scoring needs::

    FILE           custom_id  method  url  body: model, messages or prompt (token ids), ...
    FILE.targets   custom_id  prompt  prompt_token_ids  target  fields of the task
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from erjepa.checkpoints.served_chat import ServedChat, as_json
from erjepa.configs import Config
from erjepa.evaluation.examples import scored_pairs, scoring_fields
from erjepa.tasks.batch_output import CHAT, COMPLETIONS
from erjepa.utils.files import write_whole
from erjepa.utils.jsonl import to_jsonl


class Prompt(NamedTuple):
    """The prompt of a pair: its id, chat and token ids, and the fields that scoring needs."""

    id: int
    messages: list[dict[str, str]]
    tokens: list[int]
    target: dict[str, Any]


def read_prompts(cfg: Config, tokenizer: Any) -> Iterator[Prompt]:
    """Yield the prompts that ``erjepa_eval`` answers.

    Raises:
        ValueError: if the config has no pairs to score.
    """
    dataset, ids, _ = scored_pairs(cfg, tokenizer)
    for i, fields in zip(ids, scoring_fields(dataset, ids), strict=True):
        target = {
            "prompt": dataset.source_text(i),
            "target": dataset.target_text(i),
            **fields,
        }
        yield Prompt(i, as_json(dataset, i), dataset.prompt(i), target)


def require_same_tokens(folder: Path, prompts: Sequence[Prompt]) -> None:
    """Check that the chat template in a model's folder gives the prompts' token ids.

    Raises:
        ValueError: if it does not, with the first prompt that differs.
    """
    try:
        served = ServedChat(folder)
    except ValueError as error:
        raise ValueError(f"{error}; use --url {COMPLETIONS}") from None
    for prompt in prompts:
        theirs = served.tokens(prompt.messages)
        if theirs != prompt.tokens:
            raise ValueError(
                f"the chat template of {folder} gives other tokens than training, first in "
                f"pair {prompt.id}: {served.text(theirs)!r}, not "
                f"{served.text(prompt.tokens)!r}; use --url {COMPLETIONS}, which takes token "
                "ids"
            )


def write_requests(
    file: Path, prompts: Sequence[Prompt], url: str, model: str, **settings: Any
) -> Path:
    """Write the batch file and the file of targets, and return the path of the latter.

    Args:
        url: ``CHAT``, for requests with messages, or ``COMPLETIONS``, with token ids.
        model: name of the model in the engine.
        settings: further fields of each request's body, such as ``max_tokens``.
    """
    requests, targets = [], []
    for prompt in prompts:
        custom_id = {"custom_id": str(prompt.id)}
        chat, tokens = {"messages": prompt.messages}, {"prompt": prompt.tokens}
        body = {"model": model, **(chat if url == CHAT else tokens), **settings}
        requests.append(custom_id | {"method": "POST", "url": url, "body": body})
        target = {"prompt_token_ids": prompt.tokens, **prompt.target}
        targets.append(custom_id | target)
    write_whole(targets_of(file), to_jsonl(targets))
    write_whole(file, to_jsonl(requests))
    return targets_of(file)


def targets_of(file: Path) -> Path:
    """Return the file of targets beside a batch file."""
    return file.with_name(f"{file.name.removesuffix('.jsonl')}.targets.jsonl")
