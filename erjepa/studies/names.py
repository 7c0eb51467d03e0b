"""Names that users choose, as names of files and folders."""

import re
import unicodedata
from collections.abc import Mapping

_ALLOWED = re.compile(r"(?=.*[^ .])[\w .-]+")
_MAX_BYTES = 100  # most file systems take 255, of which suffixes need some


def slug(name: str) -> str:
    """A name as paths have it: ``ER-JEPA content`` is ``er-jepa_content``."""
    return "".join(c if c.isalnum() or c in "-._" else "_" for c in name.lower())


def require_path_components(key: str, names: Mapping[str, str]) -> None:
    """Reject names that lead out of their folder, or that a file system takes for one another.

    ``names`` has each name's component of a path; ``key`` is that of the config.

    Raises:
        ValueError: in one line, naming the key and the name.
    """
    known: dict[str, str] = {}
    for name, component in names.items():
        size = len(component.encode(errors="replace"))
        if not _ALLOWED.fullmatch(component) or size > _MAX_BYTES:
            raise ValueError(
                f"{key}: {name!r} cannot name a folder: use letters, digits, spaces and "
                f"-._, not dots alone, of at most {_MAX_BYTES} bytes"
            )
        # As file systems compare names that ignore case.
        same = unicodedata.normalize("NFKC", component).casefold()
        if same in known:
            raise ValueError(
                f"{key}: {known[same]!r} and {name!r} have the same folder name"
            )
        known[same] = name
