"""Summarizes the verdicts of an evaluation: accuracies, intervals and changes."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

from erjepa.tasks.task import Prediction, Verdicts
from erjepa.utils.summary import Change, Reading, ReadingOfOrigin

Texts = tuple[str, str]  # source and target text
_Z = 1.959963984540054  # 97.5% quantile of the standard normal distribution


def wilson_interval(right: int, examples: int) -> tuple[float, float]:
    """Return the 95% Wilson score interval (Wilson 1927) of the fraction of right examples.

    Unlike the normal approximation it stays within [0, 1] and does not shrink to a point if all
    or no examples are right.
    """
    share, shrink = right / examples, 1 + _Z**2 / examples
    center = (share + _Z**2 / (2 * examples)) / shrink
    spread = share * (1 - share) / examples + (_Z / (2 * examples)) ** 2
    half = _Z * sqrt(spread) / shrink
    # Exactly 0 and 1 at the ends, despite rounding.
    low = center - half if right > 0 else 0.0
    high = center + half if right < examples else 1.0
    return low, high


def summarize(
    predictions: Sequence[Prediction], verdicts: Sequence[Verdicts], primary: str
) -> dict[str, Reading]:
    """Return the summary of each metric. Undecided examples count as wrong.

    Raises:
        ValueError: if there are no predictions, the numbers of predictions and verdicts differ,
            ``primary`` is not a metric, or a verdict lacks a metric or is not a bool or None.
    """
    if not predictions or len(predictions) != len(verdicts):
        raise ValueError(
            f"{len(predictions)} predictions and {len(verdicts)} verdicts: expected as "
            "many of both, and at least one"
        )
    if primary not in verdicts[0]:
        raise ValueError(f"primary={primary} is not among {', '.join(verdicts[0])}")
    for number, verdict in enumerate(verdicts, 1):
        if verdict.keys() != verdicts[0].keys():
            raise ValueError(
                f"prediction {number} has verdicts on {sorted(verdict)}, the first one on "
                f"{sorted(verdicts[0])}; return all metrics for every prediction"
            )
        for name, value in verdict.items():
            if value is not None and type(value) is not bool:
                raise ValueError(
                    f"prediction {number}: the verdict {name} must be True, False or None "
                    f"(undecided), got {value!r} of type {type(value).__name__}; convert it "
                    "with bool()"
                )
    return {
        name: _reading([verdict[name] for verdict in verdicts]) for name in verdicts[0]
    }


class Seen(NamedTuple):
    """Ids of examples whose pair, and whose target, occurs in training."""

    pairs: frozenset[int]
    targets: frozenset[int]


def seen_in(train: Iterable[Texts], scored: Mapping[int, Texts]) -> Seen:
    """Return which examples occur in ``train``, where white space may differ."""

    def single_spaced(texts: Texts) -> Texts:
        source, target = (" ".join(text.split()) for text in texts)
        return source, target

    pairs = set(map(single_spaced, train))
    targets = {target for _, target in pairs}
    texts_of_scored = {i: single_spaced(texts) for i, texts in scored.items()}
    return Seen(
        frozenset(i for i, pair in texts_of_scored.items() if pair in pairs),
        frozenset(i for i, (_, target) in texts_of_scored.items() if target in targets),
    )


def reading_without(
    scored: Sequence[Prediction], seen: Collection[int], metric: str
) -> Reading | None:
    """Return the summary of a metric over examples not in ``seen``, or ``None`` without any."""
    values = [one[metric] for one in scored if one["id"] not in seen]
    return _reading(values) if values else None


def mean_target_loss(predictions: Sequence[Prediction]) -> float | None:
    """Return the cross-entropy of all targets in nats per token, the log of their perplexity.

    The result is ``None`` if the predictions have no ``target_loss``.
    """
    if "target_loss" not in predictions[0]:
        return None
    total = sum(p["target_loss"] * p["target_tokens"] for p in predictions)
    return total / sum(p["target_tokens"] for p in predictions)


def by_origin(
    predictions: Sequence[Prediction], verdicts: Sequence[Verdicts], primary: str
) -> list[ReadingOfOrigin]:
    """Return the accuracy on each dataset in ``origin``, in order of appearance."""
    values_of: dict[str, list[bool | None]] = {}
    for prediction, verdict in zip(predictions, verdicts, strict=True):
        if isinstance(origin := prediction.get("origin"), str):
            origin = origin.encode(errors="replace").decode()  # no lone surrogates
            values_of.setdefault(origin, []).append(verdict[primary])
    return [
        ReadingOfOrigin(origin=name, **_reading(values).model_dump())
        for name, values in values_of.items()
    ]


def _reading(values: Sequence[bool | None]) -> Reading:
    right = values.count(True)
    return Reading(
        share=right / len(values),
        right=right,
        undecided=values.count(None),
        examples=len(values),
        interval=wilson_interval(right, len(values)),
    )


def change(checkpoint: str, before: Sequence[bool], now: Sequence[bool]) -> Change:
    """Return the change of accuracy since ``checkpoint``, on the same examples.

    The interval is the adjusted Wald interval of Bonett & Price 2012, "Adjusted Wald Confidence
    Interval for a Difference of Binomial Proportions Based on Paired Data", which adds one example
    to those gained and one to those lost. It covers the choice of examples, not of seeds.
    """
    n = len(before)
    counts = Counter(zip(before, now, strict=True))
    kept, gained, lost = counts[True, True], counts[False, True], counts[True, False]
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = _Z * sqrt((up + down - (up - down) ** 2) / (n + 2))
    low, high = max(-1.0, up - down - half), min(1.0, up - down + half)
    return Change(
        checkpoint=checkpoint,
        examples=n,
        accuracy=(kept + lost) / n,
        kept=kept,
        gained=gained,
        lost=lost,
        difference=(gained - lost) / n,
        interval=(low, high),
    )
