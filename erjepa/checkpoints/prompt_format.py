"""The wording of a run's prompts, stored so that they can be built without its data."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchtune.data import Message
from torchtune.modules.transforms import Transform

from erjepa.datasets import PairedDataset, Record
from erjepa.utils.checked import read_json
from erjepa.utils.files import write_whole

PROMPT_FORMAT = "prompt_format.json"
_PROBE = " Aa\0 "  # no wording has it, and one that changes texts changes it


@dataclass(frozen=True)
class PromptFormat:
    """Message transform that puts any text into the prompt of a run.

    Args:
        dataset: section of the config that names the training data.
        before: text of the user message before the source, and ``after`` it.
        system: system message of the first pair, if any.
    """

    dataset: Any
    before: str
    after: str
    system: str | None = None

    def user_text(self, text: str) -> str:
        return f"{self.before}{text}{self.after}"

    def __call__(self, fields: Mapping[str, Any]) -> dict[str, list[Message]]:
        """Return the chat of a placeholder."""
        turns = [("system", self.system)] if self.system is not None else []
        turns += [("user", self.user_text("-")), ("assistant", "-")]
        return {"messages": [Message(role=role, content=text) for role, text in turns]}


def write_prompt_format(run: Path, pairs: PairedDataset, section: Any) -> None:
    """Store the wording of a run's prompts in its folder, unless it changes or repeats the text.
    The ``section`` of the config names the pairs.
    """
    *system, user, _ = (message.text_content for message in pairs.chat_of(_PROBE))
    before, found, after = user.partition(_PROBE)
    if found and _PROBE.strip() not in before + after:
        stored = PromptFormat(section, before, after, *system)
        write_whole(run / PROMPT_FORMAT, json.dumps(asdict(stored), indent=2) + "\n")


def stored_prompt(
    run: Path, section: Any, tokenizer: Transform
) -> PairedDataset | None:
    """Return a pair with the prompt of a run; ``None`` if none is stored for the data ``section``.

    Raises:
        ValueError: naming the file and the key, if it is damaged.
    """
    file = run / PROMPT_FORMAT
    if not file.is_file():
        return None
    stored = read_json(PromptFormat, file)
    if stored.dataset != section:
        return None
    return PairedDataset([Record(str(file), {})], tokenizer, stored)
