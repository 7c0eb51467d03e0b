"""The prompts of an evaluation, for a serving engine: ``python -m erjepa.prompts CONFIG``.

CONFIG is a config of the recipes; ``key=value`` sets a key of it. FILE gets a request a line in
OpenAI's batch format, greedy. FILE.targets.jsonl beside it has, for each request, the token ids
of the prompt and what scoring needs::

    FILE           custom_id  method  url  body: model, messages or prompt (token ids), ...
    FILE.targets   custom_id  prompt  prompt_token_ids  target  fields of the task

``python -m erjepa.tasks.score TASK ANSWERS --targets FILE.targets.jsonl`` scores the answers.

An engine makes a chat's tokens by the template of its model's folder, which may differ from
that of training: Llama 3.2's adds a line with the date. ``--check FOLDER`` compares them pair by
pair. With ``--url /v1/completions`` a prompt is its token ids.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig
from torchtune import config

from erjepa.checkpoints.served_chat import ServedChat, as_json
from erjepa.configs import complete, load, prepare, require_files
from erjepa.datasets import Pairs, build_dataset, hold_out
from erjepa.utils.command_line import CommandLine
from erjepa.utils.files import write_whole
from erjepa.utils.jsonl import to_jsonl

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Prompt(NamedTuple):
    """A pair as it is asked: its id, chat and tokens, and what an answer is scored by."""

    id: int
    messages: list[dict[str, str]]
    tokens: list[int]
    target: dict[str, Any]


def read_prompts(cfg: DictConfig, tokenizer: Any) -> Iterator[Prompt]:
    """The pairs that ``erjepa_eval`` answers.

    Args:
        cfg (DictConfig): config of an evaluation.
        tokenizer (Any): its tokenizer.

    Yields:
        Prompt: each pair, in order.

    Raises:
        ValueError: if the config has no pairs to score.
    """
    key = "eval_dataset" if cfg.eval_split == "test" else "dataset"
    if cfg[key] is None:
        raise ValueError(f"{key} is null: there is nothing to score")
    dataset: Pairs = build_dataset(cfg[key], tokenizer, key)
    ids: Sequence[int] = range(len(dataset))
    if cfg.eval_split == "validation":
        if cfg.validation is None or cfg.validation.size is None:
            raise ValueError("eval_split=validation needs validation.size")
        split = hold_out(dataset.pairs, cfg.validation.size, cfg.validation.seed)
        ids = sorted(split.held_out)
    for i in ids:
        target = {
            "prompt": dataset.source_text(i),
            "target": dataset.target_text(i),
            **dataset.scoring_fields(i),
        }
        yield Prompt(i, as_json(dataset, i), dataset.prompt(i), target)


def request(
    prompt: Prompt, url: str, model: str, max_tokens: int, stop_tokens: Sequence[int]
) -> dict[str, Any]:
    """A line of the batch file.

    Args:
        prompt (Prompt): what is asked.
        url (str): ``CHAT``, for a chat, or ``COMPLETIONS``, for its token ids.
        model (str): what the engine calls the model.
        max_tokens (int): most tokens of an answer.
        stop_tokens (Sequence[int]): any of these ends an answer.

    Returns:
        dict[str, Any]: the request.
    """
    asked = {"messages": prompt.messages} if url == CHAT else {"prompt": prompt.tokens}
    body = {"model": model, **asked, "max_tokens": max_tokens, "temperature": 0}
    body["stop_token_ids"] = list(stop_tokens)
    return {"custom_id": str(prompt.id), "method": "POST", "url": url, "body": body}


def require_same_tokens(folder: Path, prompts: Sequence[Prompt]) -> None:
    """Find out before generating whether an engine would ask what training asked.

    Args:
        folder (Path): of the model that is served, with its tokenizer and chat template.
        prompts (Sequence[Prompt]): what is asked.

    Raises:
        ValueError: if the template there makes other tokens, showing the first prompt.
    """
    try:
        served = ServedChat(folder)
    except ValueError as error:
        raise ValueError(f"{error}; use --url {COMPLETIONS}") from None
    for prompt in prompts:
        theirs = served.tokens(prompt.messages)
        if theirs != prompt.tokens:
            raise ValueError(
                f"the chat template of {folder} asks otherwise than training did, first in "
                f"pair {prompt.id}: {served.text(theirs)!r}, not "
                f"{served.text(prompt.tokens)!r}; use --url {COMPLETIONS}, which takes token "
                "ids"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the prompts of a config.

    Args:
        arguments (Sequence[str] | None): command line; ``None`` for that of the process.
    """
    parser = CommandLine(prog="python -m erjepa.prompts", description=__doc__)
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("overrides", metavar="key=value", nargs="*")
    parser.add_argument("--output", metavar="FILE.jsonl", type=Path, required=True)
    parser.add_argument("--url", choices=(CHAT, COMPLETIONS), default=CHAT)
    parser.add_argument(
        "--model", default="model", help="what the engine calls it, often its folder"
    )
    parser.add_argument(
        "--check", metavar="FOLDER", type=Path, help="whose chat template is to agree"
    )
    args = parser.parse_intermixed_args(arguments)
    with parser.errors(args):
        prepare()
        cfg = complete(load(args.config, args.overrides))
        require_files(cfg)
        tokenizer = config.instantiate(cfg.tokenizer)
        prompts = list(read_prompts(cfg, tokenizer))
        if args.check is not None:
            require_same_tokens(args.check, prompts)
        asked = (args.url, args.model, cfg.max_new_tokens, tokenizer.stop_tokens)
        targets = args.output.with_suffix(".targets.jsonl")
        write_whole(
            targets,
            to_jsonl(
                {"custom_id": str(p.id), "prompt_token_ids": p.tokens, **p.target}
                for p in prompts
            ),
        )
        write_whole(args.output, to_jsonl(request(p, *asked) for p in prompts))
        print(f"{len(prompts)} prompts in {args.output}; their targets in {targets}")


if __name__ == "__main__":
    main()
