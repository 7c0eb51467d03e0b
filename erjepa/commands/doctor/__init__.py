"""Check a machine and a config before a run.

Takes the config and overrides of `tune run erjepa_recipe`. Checks versions, device, files, pairs,
earlier runs, disk space, and the FLOPs and memory of a step, and prints one line per check: "ok"
and the result, "warn" and what the run would warn of, or "fix" and what to change, with exit code
2. No weights of the base model are loaded, and memory is computed, not measured.
"""

import os
from collections.abc import Sequence

from erjepa.utils.command_line import CommandLine


def main(arguments: Sequence[str]) -> int:
    parser = CommandLine(prog="erjepa doctor", description=__doc__)
    parser.add_argument("--config", required=True, metavar="NAME", help="name or path")
    parser.add_argument(
        "--nproc_per_node",
        type=int,
        metavar="N",
        default=int(os.environ.get("WORLD_SIZE", 1)),
        help="ranks of the run",
    )
    parser.add_argument(
        "--gpu_memory",
        type=float,
        metavar="GIB",
        help="memory of each GPU, to check for GPUs that this machine does not have",
    )
    parser.add_overrides()
    args = parser.parse_intermixed_args(arguments)
    if args.nproc_per_node < 1:
        parser.error(f"--nproc_per_node {args.nproc_per_node}: must be at least 1")
    if args.gpu_memory is not None and not 0 < args.gpu_memory < float("inf"):
        parser.error(f"--gpu_memory {args.gpu_memory}: must be a positive number")
    with parser.errors(args):
        from erjepa.commands.doctor.checks import GIB, find_faults
        from erjepa.configs import load

        cfg = load(args.config, args.overrides)
        memory = args.gpu_memory and int(args.gpu_memory * GIB)
        return 2 if find_faults(cfg, args.nproc_per_node, memory) else 0
