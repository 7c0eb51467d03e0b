"""Names that users choose, turned into names of files and folders."""

import re
import unicodedata
from collections.abc import Mapping

_ALLOWED = re.compile(r"(?=.*[^ .])[\w .-]+")
_MAX_BYTES = 100  # most file systems allow 255; the rest is for suffixes


def slug(name: str) -> str:
    """Return a name in the form used in paths: ``ER-JEPA content`` gives ``er-jepa_content``."""
    return "".join(c if c.isalnum() or c in "-._" else "_" for c in name.lower())


def require_path_components(key: str, names: Mapping[str, str]) -> None:
    """Reject names that cannot name a folder, or that a file system may not tell apart.

    ``names`` maps each name to its path component; ``key`` is their config key.

    Raises:
        ValueError: if a name is invalid, or two names have the same folder name.
    """
    known: dict[str, str] = {}
    for name, component in names.items():
        size = len(component.encode(errors="replace"))
        if not _ALLOWED.fullmatch(component) or size > _MAX_BYTES:
            raise ValueError(
                f"{key}: {name!r} cannot name a folder: use letters, digits, spaces and "
                f"-._, not dots alone, of at most {_MAX_BYTES} bytes"
            )
        # Some file systems ignore case and Unicode normalization.
        same = unicodedata.normalize("NFKC", component).casefold()
        if same in known:
            raise ValueError(
                f"{key}: {known[same]!r} and {name!r} have the same folder name"
            )
        known[same] = name
