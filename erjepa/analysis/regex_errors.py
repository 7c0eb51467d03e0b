"""How a predicted regex is wrong, which errors another method corrects, and into what."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from erjepa.analysis.regex_tokens import regex_tokens
from erjepa.analysis.statistics import Spread, spread
from erjepa.tasks.regex_syntax import RegexSyntaxError, parse

CORRECT = "correct"
SYNTAX_ERROR = "syntax error"
LENGTH_CATEGORIES = ("over-generation", "under-generation", "same-length mismatch")
ERROR_CATEGORIES = (*LENGTH_CATEGORIES, SYNTAX_ERROR)


@dataclass(frozen=True)
class Correction:
    """Errors of one method, in one category and seed, that another has right.

    Args:
        errors (int): errors of the first method.
        corrected (int): those of them that the second predicts exactly.
    """

    errors: int
    corrected: int

    @property
    def rate(self) -> float | None:
        """Share of errors that are corrected; None without errors."""
        return self.corrected / self.errors if self.errors else None


def prediction_category(target: str, output: str) -> str:
    """``CORRECT`` or one of ``ERROR_CATEGORIES``.

    An output is correct when it is the target's text, white space around both aside. One that
    does not parse is a syntax error, whatever its length; all others go by their number of
    regex tokens against the target's.
    """
    target, output = target.strip(), output.strip()
    if output == target:
        return CORRECT
    try:
        parse(output)
    except (RegexSyntaxError, RecursionError):
        return SYNTAX_ERROR
    surplus = len(regex_tokens(output)) - len(regex_tokens(target))
    if surplus:
        return LENGTH_CATEGORIES[0 if surplus > 0 else 1]
    return LENGTH_CATEGORIES[2]


def is_right_beginning(target: str, output: str) -> bool:
    """Whether an output begins with the whole target and runs on: all but its end is right."""
    target, output = target.strip(), output.strip()
    return output != target and output.startswith(target)


def corrections(baseline: Sequence[str], other: Sequence[str]) -> dict[str, Correction]:
    """Errors of a baseline that another method has right, on the same inputs and seed.

    Args:
        baseline (Sequence[str]): category of each of the baseline's predictions.
        other (Sequence[str]): those of the other method, in the same order.

    Returns:
        dict[str, Correction]: of every category of errors.
    """
    errors = Counter(baseline)
    corrected = Counter(
        mine for mine, theirs in zip(baseline, other, strict=True) if theirs == CORRECT
    )
    return {
        name: Correction(errors[name], corrected[name]) for name in ERROR_CATEGORIES
    }


def summarize_corrections(
    by_seed: Sequence[Correction],
) -> tuple[Spread, Spread, Spread | None]:
    """Spreads over seeds of errors, of corrected ones, and of the rates.

    A rate is taken within each seed before averaging; a seed without errors has none.
    """
    rates = [one.rate for one in by_seed if one.rate is not None]
    return (
        spread([one.errors for one in by_seed]),
        spread([one.corrected for one in by_seed]),
        spread(rates) if rates else None,
    )


def outcome_matrix(
    errors_of: Sequence[str], outcomes_of: Sequence[str]
) -> dict[str, dict[str, int]]:
    """What one method predicts where another errs.

    Args:
        errors_of (Sequence[str]): category of each prediction of the method that errs,
            all seeds one after the other.
        outcomes_of (Sequence[str]): those of the other method, in the same order.

    Returns:
        dict[str, dict[str, int]]: category of the error to category of the outcome,
        ``CORRECT`` first, to their count.
    """
    pairs = Counter(zip(errors_of, outcomes_of, strict=True))
    return {
        row: {column: pairs[row, column] for column in (CORRECT, *ERROR_CATEGORIES)}
        for row in ERROR_CATEGORIES
    }
