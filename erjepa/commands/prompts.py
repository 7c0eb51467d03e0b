"""Write the prompts of an evaluation for a serving engine.

CONFIG is a config of the recipes; key=value overrides a key. FILE gets one request per line in
OpenAI's batch format, with greedy decoding. FILE.targets.jsonl gets the token ids and the target
of each prompt: `erjepa score TASK ANSWERS --targets FILE.targets.jsonl` scores the answers.

An engine applies the chat template in the folder of its model, which may differ from that of
training: Llama 3.2's adds the date, SmolLM2's and Qwen2.5's a default system message. --check
FOLDER compares the tokens of every prompt. With --url /v1/completions the requests hold token
ids instead of chats. `erjepa generate RUN` says which system message training used.
"""

from collections.abc import Sequence
from pathlib import Path

from erjepa.tasks.batch_output import CHAT, COMPLETIONS
from erjepa.utils.command_line import CommandLine
from erjepa.utils.escape import counted


def main(arguments: Sequence[str]) -> None:
    parser = CommandLine(prog="erjepa prompts", description=__doc__)
    parser.add_argument("config", metavar="CONFIG")
    parser.add_overrides()
    parser.add_argument("--output", metavar="FILE.jsonl", type=Path, required=True)
    parser.add_argument("--url", choices=(CHAT, COMPLETIONS), default=CHAT)
    parser.add_argument(
        "--model",
        default="model",
        help="name of the model in the engine, often its folder",
    )
    parser.add_argument(
        "--check",
        metavar="FOLDER",
        type=Path,
        help="check the chat template in this folder",
    )
    args = parser.parse_intermixed_args(arguments)
    with parser.errors(args):
        from erjepa.checkpoints.output_file import require_new
        from erjepa.configs import load, require_files
        from erjepa.evaluation import batch_requests

        require_new("--output", args.output)
        require_new("the file of targets", batch_requests.targets_of(args.output))
        cfg = require_files(load(args.config, args.overrides))
        tokenizer = cfg.tokenizer.build()
        prompts = list(batch_requests.read_prompts(cfg, tokenizer))
        if args.check is not None:
            batch_requests.require_same_tokens(args.check, prompts)
        targets = batch_requests.write_requests(
            args.output,
            prompts,
            args.url,
            args.model,
            max_tokens=cfg.max_new_tokens,
            temperature=0,
            repetition_penalty=1.0,  # which a generation_config.json, as Qwen2.5's, may set
            stop_token_ids=list(tokenizer.stop_tokens),
        )
        count = counted(len(prompts), "prompt")
        print(f"Wrote {count} to {args.output}, and their targets to {targets}")
