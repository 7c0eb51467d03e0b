"""Score answers that were generated anywhere.

TASK is the name of a task or the dotted path of your own. FILE has one JSON object per line with
"target" and "output", for Spider also "db_id"; if lines have an "origin", each origin is also
scored separately. FILE may also be the output of a batch in OpenAI's format for the requests of
`erjepa prompts`; --targets is then the targets file that it wrote. Prints the summary; --output
also writes the predictions with their scores.
"""

from collections.abc import Sequence
from pathlib import Path

from erjepa.tasks import task_names
from erjepa.tasks.score import (
    load_task,
    read_predictions,
    score_predictions,
    write_scores,
)
from erjepa.utils.command_line import CommandLine
from erjepa.utils.files import SUMMARY
from erjepa.utils.summary import read_summary


def main(arguments: Sequence[str]) -> None:
    parser = CommandLine(prog="erjepa score", description=__doc__)
    parser.add_argument("task", metavar="TASK", help=", ".join(task_names()))
    parser.add_argument("file", metavar="FILE.jsonl", type=Path)
    parser.add_argument(
        "--databases", metavar="DIR", type=Path, help="Spider's databases"
    )
    parser.add_argument(
        "--primary", metavar="METRIC", help="metric to report as accuracy"
    )
    parser.add_argument(
        "--targets", metavar="FILE.jsonl", type=Path, help="written by `erjepa prompts`"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        help="folder to write predictions and summary to",
    )
    args = parser.parse_args(arguments)
    with parser.errors(args):
        if args.output is not None:
            _require_folder(args.output)
        task = load_task(args.task, args.databases, args.primary)
        predictions = read_predictions(args.file, task, args.targets)
        scored, summary = score_predictions(task, predictions)
        if args.output is not None:
            args.output.mkdir(parents=True, exist_ok=True)
            write_scores(args.output, scored, summary)
    print(summary.to_json())


def _require_folder(folder: Path) -> None:
    """Raise if a folder is a file, or has the scores of a checkpoint, which say more than those of
    answers.
    """
    if folder.is_file():
        raise FileExistsError(f"--output {folder} is a file; choose a folder")
    if (folder / SUMMARY).is_file() and read_summary(folder).checkpoint is not None:
        raise FileExistsError(
            f"--output {folder} has the scores of a checkpoint; choose another folder"
        )
