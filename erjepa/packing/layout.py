"""The layout of one pair: paths of tokens, each starting at position 0.

::

    views="shared"        S Q A      S P      T
    views="standalone"    S Q A      U P      T
    views="none"          S Q A
    views="spans"         S Q A                   see :mod:`erjepa.packing.spans`
    views="patches"       S Q A

    S  source up to its last content token        P  k predictor tokens
    Q  rest of the source, header of the target   T  target alone, up to its last content token
    A  target and its end of turn                 U  source alone, up to its last content token

Standalone views are separate chats, as in LLM-JEPA; ``views="none"`` is for training on
the next-token loss only. Common prefixes of paths are computed once, see
:mod:`erjepa.packing.tree`: S, and whatever else paths of one pair or of several begin with.

Labels are the tokens of A. Readouts: :math:`z^u` at the last token of S (of U), :math:`p` at
the last P (at :math:`z^u` when k = 0), :math:`z^a` at the last token of T.

This is the direction from source to target. In the direction from target to source, P follows T
and :math:`p` is compared with :math:`z^u`; with both directions, P follows both S and T. Predictor
tokens in front are inserted after the first token of S or T, usually the beginning-of-text token;
this makes a separate path, read at its end::

    both directions       S Q A      S P      T P
    in front              S Q A      S        s P ...      T
"""

from array import array
from collections.abc import Mapping
from random import Random
from typing import Any, Literal, NamedTuple

from erjepa.configs import Config
from erjepa.datasets.pairs import Pair
from erjepa.packing.spans import Step, patch_steps, span_steps

Views = Literal["shared", "standalone", "spans", "patches", "none"]
Direction = Literal["source_to_target", "target_to_source", "both"]
PredictorPosition = Literal["behind", "front"]

# The comparisons of each direction: (predicting side, predicted side).
COMPARISONS = {
    "source_to_target": [("source", "target")],
    "target_to_source": [("target", "source")],
    "both": [("source", "target"), ("target", "source")],
}


class Path(NamedTuple):
    """Tokens from position 0 on, and what is read from their hidden states."""

    tokens: array  # predictor token i is stored as -1 - i
    # Maps "source", and "predicted_m" or "target_m" of comparison m, to the index of the token
    # whose hidden state is that embedding.
    readouts: Mapping[str, int] = {}
    labels: range = range(0)  # indices of the tokens that the next-token loss predicts
    steps: list[Step] = []  # see erjepa.packing.spans


def lay_out(
    pair: Pair,
    views: Views,
    num_predictor_tokens: int,
    *,
    direction: Direction = "source_to_target",
    predictor_position: PredictorPosition = "behind",
    seed: str = "",
) -> list[Path]:
    """Return the paths of one pair: ``S Q A``, which has the labels, then those of the views.

    Args:
        num_predictor_tokens: k.
        seed: of the random spans or patches.
    """
    full = _joined(pair.source, pair.bridge, pair.target)
    start = len(full) - len(pair.target)
    labels = range(start, len(full))
    if views == "none":
        return [Path(full, labels=labels)]
    if views in ("spans", "patches"):
        if views == "spans":
            steps = span_steps(len(full), Random(seed))
        else:
            source, target = (0, len(pair.source) - 1), (start - 1, len(full) - 2)
            steps = patch_steps(source, target, Random(seed))
        return [Path(full, {"source": len(pair.source) - 1}, labels, steps)]
    sides = {
        "source": pair.source if views == "shared" else pair.source_view,
        "target": pair.target_view,
    }
    predictors = range(-1, -1 - num_predictor_tokens, -1)
    paths = [Path(full, labels=labels)]
    for side, tokens in sides.items():
        readouts = {"source": len(tokens) - 1} if side == "source" else {}
        predicting = tokens
        for m, (by, of) in enumerate(COMPARISONS[direction]):
            if of == side:
                readouts[f"target_{m}"] = len(tokens) - 1
            elif by == side and predictor_position == "front":
                around = _joined(tokens[:1], predictors, tokens[1:])
                paths.append(Path(around, {f"predicted_{m}": len(around) - 1}))
            else:
                predicting = _joined(tokens, predictors)
                readouts[f"predicted_{m}"] = len(predicting) - 1
        if readouts:
            paths.append(Path(_joined(predicting), readouts))
    return paths


def layout_of(cfg: Config) -> dict[str, Any]:
    """Return the arguments of :class:`~erjepa.packing.PairCollator` that determine the layout."""
    return {
        "views": cfg.views,
        "direction": cfg.loss.get("direction") or "source_to_target",
        "predictor_position": cfg.predictor_position,
    }


def _joined(*parts) -> array:
    tokens = array("i")
    for part in parts:
        tokens.extend(part)
    return tokens
