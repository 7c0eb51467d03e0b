"""Answer prompts with a trained model.

RUN is a checkpoint, or the output_dir of a run, whose newest checkpoint is used; --set
checkpoint=ema uses the averaged weights. Prompts are formatted as in training, with the system
message of the first training pair or else the default one of the chat template; a line says which.
--system TEXT sets another system message, --system '' omits that of the pair.

FILE has one prompt per line. A .jsonl FILE has one JSON object per line, whose "prompt" or only
text is the prompt. Decoding is greedy. Answers are printed, or written to --output as JSONL.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from erjepa.utils.command_line import CommandLine
from erjepa.utils.escape import counted, printable
from erjepa.utils.files import write_whole
from erjepa.utils.jsonl import to_jsonl


def main(arguments: Sequence[str]) -> None:
    parser = CommandLine(prog="erjepa generate", description=__doc__)
    parser.add_argument(
        "run", metavar="RUN", type=Path, help="output folder, or one of its checkpoints"
    )
    parser.add_argument("prompts", metavar="prompt", nargs="*", default=[])
    parser.add_argument("--file", metavar="FILE", type=Path, help="file of prompts")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="JSONL file to write"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_set_option(
        "a key of the run's config, such as max_new_tokens, device or merged"
    )
    args = parser.parse_intermixed_args(arguments)
    with parser.errors(args):
        _answer(args, parser)


def _answer(args: argparse.Namespace, parser: CommandLine) -> None:
    from erjepa.checkpoints import checkpoint
    from erjepa.checkpoints.output_file import require_new
    from erjepa.configs import load, require_files
    from erjepa.evaluation.chat import answers, read_prompts
    from erjepa.evaluation.run import find_run

    if args.output is not None:
        require_new("--output", args.output)
    prompts = [(f"prompt {i}", text) for i, text in enumerate(args.prompts, start=1)]
    if args.file is not None:
        prompts += read_prompts(args.file)
    if not prompts:
        parser.error("there is no prompt: type one, or pass --file")
    cfg_file, path = find_run(args.run)
    cfg = require_files(load(str(cfg_file), args.overrides))
    if cfg.checkpoint_dir:
        raise ValueError(
            f"checkpoint_dir={cfg.checkpoint_dir}: give the checkpoint as RUN"
        )
    weights = None if cfg.base_only else checkpoint.of_weights(path, cfg.checkpoint)[0]
    answered = answers(cfg, weights, prompts, system_prompt=args.system)
    if args.output is not None:
        write_whole(args.output, to_jsonl(answered))
        whose = weights or "the base model"
        print(f"Wrote {counted(len(answered), 'answer')} of {whose} to {args.output}")
        return
    for answer in answered:
        cut = "" if answer["finished"] else f"  [cut at {answer['tokens']} tokens]"
        head = f"{answer['prompt']}\n" if len(answered) > 1 else ""
        print(printable(f"{head}{answer['output']}{cut}"))
