"""Names of the Hugging Face hub, and the download of models."""

import re
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_session

from erjepa.utils.files import relative_note

_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def is_repository(path: str) -> bool:
    """Return whether ``path`` has the form ``owner/name`` and does not exist locally."""
    return _REPOSITORY.fullmatch(path) is not None and not Path(path).exists()


def is_copy_of(repository: str, path: str) -> bool:
    """Return whether a path is that of a cached copy of a repository, here or elsewhere."""
    return f"models--{repository.replace('/', '--')}/snapshots/" in path


def is_reachable() -> bool:
    """Return whether the hub answers, by a single request."""
    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception:  # its errors depend on the version of huggingface_hub
        return False
    return True


def local_copy(repository: str, revision: str | None) -> Path:
    """Download config, tokenizer and weights of a model unless cached, and return their folder.

    All ranks may call this at once: one of them downloads each file while the others wait.

    Args:
        repository: ``owner/name``.
        revision: branch, tag or commit; ``None``: the newest.

    Raises:
        FileNotFoundError: if the model cannot be downloaded, saying what to do.
    """
    try:
        folder = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=_FILES,
            ignore_patterns=["*/*", "consolidated*"],
            # Offline, huggingface_hub 1 looks for a commit in the cache only if told to.
            local_files_only=constants.HF_HUB_OFFLINE,
        )
        return Path(folder)
    except GatedRepoError:
        todo = f"is gated: accept its terms at https://huggingface.co/{repository}, then run: hf auth login"
    except RevisionNotFoundError:
        todo = f"has no revision {revision}"
    except (RepositoryNotFoundError, HFValidationError):
        note = relative_note(repository)
        todo = f"is neither a folder nor a hub repository that you may read{note}"
    except OSError as error:
        cause = " ".join(str(error).split())[:200]
        todo = f"is not a folder, and the hub cannot be reached ({cause}): set it to the model's folder"
        todo += relative_note(repository)
    raise FileNotFoundError(f"model.path={repository} {todo}")
