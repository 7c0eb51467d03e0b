"""What a trained model answers: ``python -m erjepa.generate RUN "prompt" ...``.

RUN is the ``output_dir`` of a run, whose newest checkpoint answers, or a checkpoint; with
``--set checkpoint=ema`` its averaged weights do. A prompt
is put as the training pairs were, their system message in front. FILE has a prompt a line; or,
as ``.jsonl``, one JSON object a line whose only text, or whose ``prompt``, is the prompt.
Answers are greedy, go to the screen, and with ``--output`` into a JSONL file.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torchtune import config
from tqdm import tqdm

from erjepa.checkpoints import checkpoint
from erjepa.configs import complete, load, require_files
from erjepa.evaluation.generation import batches_of_like_length, generate_greedy
from erjepa.evaluation.model import load_model
from erjepa.evaluation.run import find_run, first_pair
from erjepa.training.device import run_device
from erjepa.utils.command_line import CommandLine
from erjepa.utils.escape import printable
from erjepa.utils.files import require_utf8, write_whole
from erjepa.utils.jsonl import read_jsonl, to_jsonl


def answers(
    cfg: DictConfig,
    path: Path | None,
    prompts: Sequence[str],
    *,
    system_prompt: str | None = None,
) -> list[dict[str, Any]]:
    """Greedy answers to prompts.

    Args:
        cfg (DictConfig): config of the run; ``merged``, ``max_new_tokens``,
            ``eval_batch_size`` and ``device`` count here.
        path (Path | None): checkpoint; ``None``: the base model.
        prompts (Sequence[str]): sources.
        system_prompt (str | None): system message; "": none; ``None``: that of the first
            training pair.

    Returns:
        list[dict[str, Any]]: ``prompt``, ``output``, ``tokens`` of the output, and whether it
        ``finished`` by itself, in order.
    """
    device = run_device(cfg)
    require_files(cfg)
    tokenizer = config.instantiate(cfg.tokenizer)
    pairs = first_pair(cfg, tokenizer)
    tokens = [pairs.ask(prompt, system_prompt) for prompt in prompts]
    model = load_model(cfg, device, path)
    outputs: dict[int, list[int]] = {}
    batches = batches_of_like_length(tokens, cfg.eval_batch_size)
    for batch in tqdm(batches, unit="batch", disable=len(batches) == 1):
        generated = generate_greedy(
            model,
            [tokens[i] for i in batch],
            max_new_tokens=cfg.max_new_tokens,
            stop_tokens=tokenizer.stop_tokens,
            pad_id=tokenizer.pad_id,
        )
        outputs.update(zip(batch, generated, strict=True))
    return [
        {
            "prompt": prompt,
            "output": tokenizer.decode(outputs[i]),
            "tokens": len(outputs[i]),
            "finished": len(outputs[i]) < cfg.max_new_tokens,
        }
        for i, prompt in enumerate(prompts)
    ]


def read_prompts(file: Path) -> list[str]:
    """The prompts of a file; see the top of this file.

    Args:
        file (Path): of lines, or ``.jsonl``.

    Returns:
        list[str]: prompts in order; empty lines are none.

    Raises:
        ValueError: naming the place of what is no prompt.
    """
    if file.suffix != ".jsonl":
        content = file.read_bytes()
        require_utf8(content, str(file))
        lines = content.decode("utf-8-sig").splitlines()
        return [line for line in lines if line.strip()]
    prompts = []
    for where, fields in read_jsonl(file):
        texts = [value for value in fields.values() if isinstance(value, str)]
        prompt = fields.get("prompt", texts[0] if len(texts) == 1 else None)
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(
                f"{where}: expected a text in prompt, or as the only text; the line has "
                f"{list(fields)}"
            )
        prompts.append(prompt)
    return prompts


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer prompts.

    Args:
        arguments (Sequence[str] | None): command line; ``None`` for that of the process.
    """
    parser = CommandLine(prog="python -m erjepa.generate", description=__doc__)
    parser.add_argument("run", metavar="RUN", type=Path)
    parser.add_argument("prompts", metavar="prompt", nargs="*")
    parser.add_argument("--file", metavar="FILE", type=Path, help="of prompts")
    parser.add_argument("--output", metavar="FILE", type=Path, help="JSONL to write")
    parser.add_argument("--system", metavar="TEXT", help="system message; '' for none")
    parser.add_argument(
        "--set",
        metavar="key=value",
        action="append",
        default=[],
        help="a key of the run's config, such as max_new_tokens, device or merged",
    )
    chosen = parser.parse_intermixed_args(arguments)
    with parser.errors(chosen):
        _answer(chosen, parser)


def _answer(chosen: argparse.Namespace, parser: CommandLine) -> None:
    prompts = list(chosen.prompts)
    if chosen.file is not None:
        prompts += read_prompts(chosen.file)
    if not prompts:
        parser.error("there is no prompt: type one, or name a FILE of them")
    cfg_file, path = find_run(chosen.run)
    cfg = complete(load(str(cfg_file), chosen.set))
    path = checkpoint.of_weights(path, cfg.checkpoint)[0]
    found = answers(cfg, path, prompts, system_prompt=chosen.system)
    if chosen.output is not None:
        write_whole(chosen.output, to_jsonl(found))
        print(f"{len(found)} answers of {path} are in {chosen.output}")
        return
    for answer in found:
        cut = "" if answer["finished"] else f"  [cut at {cfg.max_new_tokens} tokens]"
        head = f"{answer['prompt']}\n" if len(found) > 1 else ""
        print(printable(f"{head}{answer['output']}{cut}"))


if __name__ == "__main__":
    main()
