"""Show the memory of a run or a checkpoint: erjepa memory [show] RUN.

    erjepa memory create OUT   make a memory from a dataset
    erjepa memory export RUN   write a memory as chats, for another trainer
    erjepa memory forget RUN   delete pairs from the memories of a run

Each has its own --help. For a folder with the name of a command, write ./forget.
"""

from collections.abc import Sequence
from pathlib import Path

from erjepa.utils.command_line import CommandLine
from erjepa.utils.escape import counted, printable
from erjepa.utils.files import write_whole

_CREATE = """Make a memory from a dataset, without a run.

The pairs are drawn at random from a config's dataset or, with --by surprise, are those with the
largest token loss under a model. replay.init_from=OUT starts a run with this memory. The scores
of its pairs are these losses, or 1 for random pairs; the pairs have no addresses.
"""
_EXPORT = """Write a memory as chats, for another trainer.

One line per slot: {"messages": [{"role": ..., "content": ...}, ...], "origin": ..., "where": ...}.
"""
_FORGET = """Delete pairs from every memory of a run.

A pair is deleted from the slots and the texts of all checkpoints and from example_errors.csv;
manifests are updated, so the run can still be resumed. forgotten.jsonl in RUN records what was
deleted and by which option, without any text. The weights, the data file, evaluations and other
runs that inherited the memory are not changed: see docs/memory.md. The commands for those beside
RUN are printed.

If the command is killed, run it again: it resumes.
"""


def main(arguments: Sequence[str]) -> None:
    commands = {"show": _show, "create": _create, "export": _export, "forget": _forget}
    if arguments and arguments[0] in commands:
        commands[arguments[0]](arguments[1:])
    else:
        _show(arguments)


def _show(arguments: Sequence[str]) -> None:
    parser = CommandLine(prog="erjepa memory", description=__doc__)
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="output folder, or one of its checkpoints"
    )
    parser.add_argument(
        "--top", type=int, default=5, help="slots in each list (default: 5)"
    )
    by = parser.add_mutually_exclusive_group()
    by.add_argument(
        "--neighbors",
        type=int,
        metavar="SLOT",
        help="show the slots most similar to this one",
    )
    by.add_argument(
        "--prompt",
        metavar="TEXT",
        help="show the slots most similar to this text, by the run's model",
    )
    parser.add_set_option("a key of the run's config for --prompt, such as device=cpu")
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write all slots to this file"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write an HTML page to this file"
    )
    args = parser.parse_args(arguments)
    if args.top < 1:
        parser.error(f"--top {args.top}: must be at least 1")
    with parser.errors(args):
        from erjepa.checkpoints.output_file import require_new
        from erjepa.commands.memory import show
        from erjepa.commands.memory.page import page
        from erjepa.commands.memory.trajectories import read_contents

        files = {"--csv": (args.csv, show.to_csv), "--html": (args.html, page)}
        for option, (path, _) in files.items():
            if path is not None:
                require_new(option, path)
        memory = read_contents(args.run)
        if args.neighbors is not None:
            lines = show.neighbors(memory, args.neighbors, args.top)
        elif args.prompt is not None:
            lines = show.like_prompt(memory, args.prompt, args.top, args.overrides)
        else:
            lines = show.summary(memory, args.top)
        for path, write in files.values():
            if path is not None:
                write_whole(path, write(memory))
        print(printable("\n".join(lines)))


def _create(arguments: Sequence[str]) -> None:
    parser = CommandLine(prog="erjepa memory create", description=_CREATE)
    parser.add_argument("out", type=Path, metavar="OUT", help="a new folder")
    parser.add_overrides()
    parser.add_argument(
        "--config", required=True, metavar="NAME", help="config of the later run"
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--number", type=int, metavar="N", help="pairs (default: all)")
    size.add_argument("--share", type=float, metavar="S", help="fraction of the pairs")
    parser.add_argument(
        "--by", choices=("random", "surprise"), default="random", help="default: random"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="RUN",
        help="run or checkpoint whose model computes the loss (default: the base model)",
    )
    args = parser.parse_intermixed_args(arguments)
    if args.checkpoint and args.by == "random":
        parser.error("--checkpoint needs --by surprise")
    with parser.errors(args):
        from erjepa.commands.memory.create import create
        from erjepa.configs import load

        cfg = load(args.config, args.overrides)
        count, size_of_all = create(
            args.out, cfg, args.number, args.share, args.by, args.checkpoint
        )
        some = "" if count == size_of_all else f"{count:,} of "
        print(
            f"Wrote {some}{counted(size_of_all, 'pair')} to {args.out}. Start a run with "
            f"replay.init_from={args.out}"
        )


def _export(arguments: Sequence[str]) -> None:
    parser = CommandLine(prog="erjepa memory export", description=_EXPORT)
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="output folder, or one of its checkpoints"
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="JSONL file to write")
    args = parser.parse_args(arguments)
    with parser.errors(args):
        from erjepa.commands.memory.export import export

        count = export(args.run, args.file)
        print(f"Wrote {counted(count, 'pair')} to {args.file}")


def _forget(arguments: Sequence[str]) -> None:
    parser = CommandLine(prog="erjepa memory forget", description=_FORGET)
    parser.add_argument("run", type=Path, metavar="RUN", help="output folder")
    by = parser.add_mutually_exclusive_group(required=True)
    by.add_argument(
        "--match", metavar="TEXT", help="pairs with this text in source or target"
    )
    by.add_argument(
        "--ids", type=int, nargs="+", metavar="N", help="example ids, as in --csv"
    )
    by.add_argument(
        "--source",
        metavar="NAME",
        help="all pairs of a dataset, named as by erjepa memory",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show the pairs, and delete nothing"
    )
    args = parser.parse_args(arguments)
    if args.match == "":
        parser.error("--match '': give the text that the pairs contain")
    with parser.errors(args):
        from erjepa.commands.memory.forget import Choice, forget

        choice = Choice(args.match, args.ids, args.source)
        print(printable("\n".join(forget(args.run, choice, dry_run=args.dry_run))))
