"""The files of the base model."""

from dataclasses import replace
from pathlib import Path

from erjepa.configs.component import Component
from erjepa.configs.schema import Config
from erjepa.utils.files import relative_note
from erjepa.utils.hub import is_copy_of, is_repository, local_copy


def require_files(config: Config) -> Config:
    """Check that the base model exists; download it if ``model.path`` is a repository of the hub.

    Returns:
        The config, with the paths and the revision of the download.

    Raises:
        FileNotFoundError: if a path does not exist. The message has the ``tune download`` command,
            if the config names the base model.
    """
    path = config.model.get("path")
    if path is not None and is_repository(path):
        copy = local_copy(path, config.model.get("revision"))
        pinned = config.model.with_arguments(revision=copy.name)
        config = replace(
            config,
            model=pinned,
            tokenizer=_with_copy(config.tokenizer, "path", path, copy),
            checkpointer=_with_copy(config.checkpointer, "checkpoint_dir", path, copy),
        )
    folder = config.checkpointer.get("checkpoint_dir")
    for key, path in (
        ("checkpointer.checkpoint_dir", folder),
        ("tokenizer.path", config.tokenizer.get("path")),
    ):
        if config.model.get("path") == path:  # a builder that reads the folder itself
            key = "model.path"
        if path is not None and not Path(path).exists():
            if path == config.base_model:
                raise FileNotFoundError(
                    f"{key}={path} does not exist. Set it to the folder of a model, or to a "
                    f"repository of the hub, OWNER/NAME{relative_note(path)}."
                )
            raise FileNotFoundError(
                f"{key}={path} does not exist. Get the base model with\n"
                f"  tune download {config.base_model} --output-dir {folder}\n"
                f"or set {key} to where it is{relative_note(path)}."
            )
    return config


def _with_copy(
    component: Component, key: str, repository: str, copy: Path
) -> Component:
    """Replace the path of a hub repository, or of a copy of it on another machine, by ``copy``."""
    path = component.get(key)
    if path is None or Path(path).exists():
        return component
    if path != repository and not is_copy_of(repository, path):
        return component
    return component.with_arguments(**{key: str(copy)})
