"""A trained run on the disk: its config, its checkpoint, and how it puts a prompt."""

from pathlib import Path

from torchtune.modules.transforms import Transform

from erjepa.checkpoints import checkpoint
from erjepa.configs import Config, components
from erjepa.datasets import Pairs, build_dataset
from erjepa.utils.files import CONFIG, config_of_run


def find_run(run: Path) -> tuple[Path, Path]:
    """The config and the checkpoint of a run.

    Raises:
        FileNotFoundError: if there is none.
    """
    path = checkpoint.newest(run)
    if (config := config_of_run(run)) is None:
        raise FileNotFoundError(
            f"{run} is neither the output_dir of a run, which has {CONFIG}, nor a "
            "checkpoint in one"
        )
    return config, path


def first_pair(cfg: Config, tokenizer: Transform) -> Pairs:
    """A dataset that puts prompts as the run's does, with no more pairs than it must."""
    part = components(cfg.dataset)[0]
    for key in ("max_examples", "size"):
        if part.takes(key):
            return build_dataset(part.with_arguments(**{key: 1}), tokenizer)
    return build_dataset(part, tokenizer)
