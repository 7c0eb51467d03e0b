"""Texts that a page, a table or a printer takes."""

import re
from typing import Any


def printable(text: Any) -> Any:
    """A text without what no page, table or printer takes: a ? for each such character.

    Answers of a model may hold control characters, and halves of letters. What is no text
    stays as it is.
    """
    unprintable = r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]"
    return re.sub(unprintable, "?", text) if isinstance(text, str) else text
