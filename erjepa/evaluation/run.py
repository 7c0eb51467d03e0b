"""Finds the config, checkpoint and prompt format of a trained run on disk."""

from pathlib import Path

from torchtune.modules.transforms import Transform

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.prompt_format import stored_prompt
from erjepa.configs import Config, components
from erjepa.datasets import PairedDataset, build_dataset
from erjepa.utils.files import CONFIG, config_of_run


def find_run(run: Path) -> tuple[Path, Path]:
    """Return the paths of a run's config and newest checkpoint.

    Raises:
        FileNotFoundError: if either is missing.
    """
    path = checkpoint.newest(run)
    if (config := config_of_run(run)) is None:
        raise FileNotFoundError(
            f"{run} is neither the output_dir of a run, which has {CONFIG}, nor a "
            "checkpoint in one"
        )
    return config, path


def first_pair(cfg: Config, tokenizer: Transform) -> PairedDataset:
    """Return a pair with the run's prompt format: the stored one, or else from the run's data."""
    section = cfg.as_dict()["dataset"]
    if (stored := stored_prompt(Path(cfg.output_dir), section, tokenizer)) is not None:
        return stored
    part = components(cfg.dataset)[0]
    for key in ("max_examples", "size"):
        if part.takes(key):
            return build_dataset(part.with_arguments(**{key: 1}), tokenizer)
    return build_dataset(part, tokenizer)
