"""The contents of a run's memory, and statistics of the logged errors of its examples."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from erjepa.checkpoints.checkpoint import PROGRESS
from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS, read_visits
from erjepa.checkpoints.stored_memory import StoredMemory, open_memory
from erjepa.commands.memory.reading import read_slots

# An example counts as learned if the mean cross-entropy of its target is below log 2: the right
# tokens then have, in the geometric mean, a probability above one half.
LEARNED = math.log(2)
# Robust standard deviations above the median that make an error suspect.
DEVIATIONS = 3.0
VISITS = 4  # an example with fewer may be hard only because it is new
_MAD = 1.4826  # normal distribution: standard deviation / median absolute deviation


def trajectories(visits: pd.DataFrame) -> pd.DataFrame:
    """Summarize the visits of each example, one row per example id.

    Columns: ``visits`` (their number), ``error`` (cross-entropy per token at the last, in nats),
    ``late_error`` (mean over the later half), ``learned`` (whether the example was learned at the
    last) and ``forgotten``: how often it was learned at one visit but not at the next (Toneva et
    al., "An Empirical Study of Example Forgetting during Deep Neural Network Learning", 2019).
    """
    errors = visits.groupby("example").lm_loss
    is_late = errors.cumcount() >= errors.transform("size") // 2
    is_learned = visits.lm_loss < LEARNED
    was_learned = is_learned.groupby(visits.example).shift(fill_value=False)
    last = visits.drop_duplicates("example", keep="last").set_index("example").lm_loss
    return pd.DataFrame(
        {
            "visits": errors.size(),
            "error": last,
            "late_error": visits[is_late].groupby("example").lm_loss.mean(),
            "learned": last < LEARNED,
            "forgotten": (was_learned & ~is_learned).groupby(visits.example).sum(),
        }
    )


def stay_hard(examples: pd.DataFrame) -> pd.Index:
    """Return the ids of the examples with at least ``VISITS`` visits that are not learned and
    whose late error is more than ``DEVIATIONS`` robust standard deviations above the median.
    """
    known = examples[examples.visits >= VISITS]
    late, middle = known.late_error, known.late_error.median()
    spread = _MAD * (late - middle).abs().median()
    limit = max(middle + DEVIATIONS * spread, LEARNED)
    return known.index[(late > limit) & ~known.learned]


def flags(
    slots: pd.DataFrame, prompts: Sequence[bytes], hard: Collection[int]
) -> pd.Series:
    """Return the reasons why each slot is suspect, as one text; empty if there are none.

    ``prompts`` holds the tokens of each source, system message included; ``hard`` the ids of the
    examples that stay hard.
    """
    answers = slots[["slot", "target"]].assign(prompt=prompts)
    # Of each prompt, the first slots with each of two targets.
    two = answers.drop_duplicates(["prompt", "target"]).groupby("prompt").head(2)
    pairs = answers.merge(two, on="prompt", suffixes=("", "_of_other"))
    differing = pairs[pairs.target != pairs.target_of_other]
    others = differing.groupby("slot").slot_of_other.first()
    texts = others.map("slot {} has the same source and another target".format)
    texts = texts.astype(object).reindex(slots.slot, fill_value="")
    is_hard = np.where(slots.example.isin(hard), "stays hard; ", "").astype(object)
    return (is_hard + texts).str.removesuffix("; ")


@dataclass
class Contents:
    """The memory of a run, and the logged errors of its examples."""

    stored: StoredMemory
    slots: pd.DataFrame  # of read_slots, with flags
    visits: pd.DataFrame  # no rows without ``log_example_errors``
    examples: pd.DataFrame  # their trajectories


def read_contents(path: Path) -> Contents:
    """Read the memory of a run or checkpoint, and flag suspect slots.

    Raises:
        FileNotFoundError: if there is no memory.
        ValueError: if it is damaged.
    """
    stored = open_memory(path)
    slots = read_slots(stored)
    visits = read_visits(_run_of(stored.folder) / EXAMPLE_ERRORS)
    examples = trajectories(visits)
    prompts = [pair.source.tobytes() for pair in stored.pairs]
    slots = slots.assign(flags=flags(slots, prompts, stay_hard(examples)))
    return Contents(stored, slots, visits, examples)


def _run_of(memory: Path) -> Path:
    """Return the folder of the run whose checkpoint, which may be linked, holds a memory; that of
    another memory itself.
    """
    checkpoint = memory.absolute().parent
    if not (checkpoint / PROGRESS).is_file():
        return checkpoint
    runs = [checkpoint.parent, checkpoint.resolve().parent]
    return next((run for run in runs if (run / EXAMPLE_ERRORS).is_file()), runs[0])
