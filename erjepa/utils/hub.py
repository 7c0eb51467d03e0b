"""Models of the Hugging Face hub, by the names of their repositories."""

import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def is_repository(path: str) -> bool:
    """Whether ``path`` may name a repository: ``owner/name``, and no folder of this machine."""
    return _REPOSITORY.fullmatch(path) is not None and not Path(path).exists()


def local_copy(repository: str, revision: str | None, key: str) -> Path:
    """A folder with config, tokenizer and weights of a model, downloaded once per machine.

    Ranks may call this together: the hub's cache lets one of them download a file while the others
    wait.

    Args:
        repository: ``owner/name``.
        revision: branch, tag or commit; ``None``: the newest.
        key: that names it, for errors.

    Raises:
        FileNotFoundError: if it cannot be had, saying what to do.
    """
    try:
        folder = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=_FILES,
            ignore_patterns=["*/*", "consolidated*"],
        )
        return Path(folder)
    except GatedRepoError:
        todo = f"is gated: accept its terms at https://huggingface.co/{repository}, then run: hf auth login"
    except RevisionNotFoundError:
        todo = f"has no revision {revision}"
    except RepositoryNotFoundError:
        todo = "is no folder, and no repository of the hub that you may read"
    except OSError as error:
        cause = " ".join(str(error).split())[:200]
        todo = f"is no folder, and the hub cannot be reached ({cause}): set it to the model's folder"
    raise FileNotFoundError(f"{key}={repository} {todo}")
