"""Text classification with any records of texts and labels.

A prompt asks a question, lists the options and ends with the text. The order is that of O-LoRA's
instructions (Wang et al. 2023, "Orthogonal Subspace Learning for Language Model Continual
Learning"), the wording is this project's:

    What is the text about? Answer with one of the options.
    Options: Business, Science or Technology, Sports, World

    Title: Oil prices fall
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from torchtune import utils
from torchtune.data import InputOutputToMessages, Message
from torchtune.modules.transforms import Transform

from erjepa.datasets.messages import require_text
from erjepa.datasets.paired import PairedDataset
from erjepa.datasets.records import Record, flat, load_records
from erjepa.datasets.sources import subsample

log = utils.get_logger("INFO")


def classification_dataset(
    tokenizer: Transform,
    *,
    source: str,
    split: str = "train",
    text: str = "text",
    label: str = "label",
    options: Sequence[str | int | bool] | None = None,
    question: str = "Which label does the text have?",
    max_examples: int | None = None,
    sample_seed: int | None = None,
    balanced: bool = False,
    name: str | None = None,
    revision: str | None = None,
) -> PairedDataset:
    """Build pairs with a prompt and a text as the source, and the text's label as the target.

    Args:
        source: a file, a folder with a file of the split, a URL, or a dataset of the hub.
        text, label: names of the columns, ``OUTER.INNER`` for a nested field; labels are
            strings, integers or booleans.
        options: labels to choose from; records with other labels are left out. ``None``: all
            labels of the file, sorted.
        name, revision: configuration and revision of a dataset of the hub.
        balanced: whether ``max_examples`` keeps the same number of each label, if it has enough.

    Raises:
        ValueError: naming the record, if one has no such text or label, or if no record is left.
    """
    if balanced and max_examples is None:
        raise ValueError(
            "dataset.balanced=True needs dataset.max_examples, the number of pairs to keep"
        )
    read = load_records(source, split=split, name=name, revision=revision)
    records = [_labelled(record, text, label) for record in flat(read)]
    counts = Counter(map(_label, records))
    chosen = sorted(counts) if options is None else [str(option) for option in options]
    if others := {name: counts[name] for name in counts if name not in chosen}:
        message = f"{source}: left out, as dataset.options={chosen} lacks their labels: {others}"
        if any(isinstance(option, bool) for option in options or ()):
            message += (
                "; quote yes, no, true and false, which YAML reads as True and False"
            )
        if len(others) == len(counts):
            raise ValueError(f"{message}; no record is left")
        utils.log_rank_zero(log, message)
    allowed = [record for record in records if _label(record) in chosen]
    kept = subsample(allowed, max_examples, sample_seed, _label if balanced else None)
    transform = ClassificationMessages(question, chosen)
    return PairedDataset(kept, tokenizer, transform, task="classification")


class ClassificationMessages:
    """Message transform for records with ``input``, a text, and ``output``, its label."""

    def __init__(self, question: str, options: Sequence[str]) -> None:
        self._prompt = f"{question} Answer with one of the options.\nOptions: {', '.join(options)}\n\n"
        self._transform = InputOutputToMessages()

    def __call__(self, fields: Mapping[str, str]) -> Mapping[str, list[Message]]:
        return self._transform({**fields, "input": self.user_text(fields["input"])})

    def user_text(self, text: str) -> str:
        return self._prompt + text


def _label(record: Record) -> str:
    return record.fields["output"]


def _labelled(record: Record, text: str, label: str) -> Record:
    for key, column in (("text", text), ("label", label)):
        if column not in record.fields:
            raise ValueError(
                f"{record.where}: no column {column!r}; it has {list(record.fields)}. Set "
                f"dataset.{key} to one of them"
            )
    content, value = record.fields[text], record.fields[label]
    try:
        require_text(content, f"column {text!r}")
        output = str(value) if isinstance(value, int) else value
        require_text(output, f"column {label!r}")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{record.where}: {error}") from None
    return Record(record.where, {"input": content.strip(), "output": output.strip()})
