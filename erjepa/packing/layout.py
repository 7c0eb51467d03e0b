"""How one pair is laid out: as paths of tokens, each from position 0 on.

::

    views="shared"        S Q A      S P      T
    views="standalone"    S Q A      U P      T
    views="none"          S Q A

    S  source up to its last content token        P  k predictor tokens
    Q  rest of the source, header of the target   T  target alone, up to its last content token
    A  target and its end of turn                 U  source alone, up to its last content token

Standalone views are chats of their own, as in LLM-JEPA; ``views="none"`` is for training on
the next-token loss only. What paths begin with alike is computed once, see
:mod:`erjepa.packing.tree`: S, and whatever else one pair or several have in common.

Labels are the tokens of A. Readouts: :math:`z^u` at the last token of S (of U), :math:`p` at
the last P (at :math:`z^u` when k = 0), :math:`z^a` at the last token of T.
"""

from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from erjepa.datasets.pairs import Pair

Views = Literal["shared", "standalone", "none"]


class Path(NamedTuple):
    """Tokens from position 0 on, and what is read along them.

    Args:
        tokens (array): token ids; ``-1 - i`` stands for predictor token i.
        readouts (Mapping[str, int]): ``source``, ``predicted`` or ``target`` to the index of
            the token whose hidden state is that embedding.
        labels (range): indices of the tokens that the next-token loss predicts.
    """

    tokens: array
    readouts: Mapping[str, int] = MappingProxyType({})
    labels: range = range(0)


def lay_out(pair: Pair, views: Views, num_predictor_tokens: int) -> list[Path]:
    """The paths of one pair, that of ``S Q A`` first.

    Args:
        pair (Pair): the tokenized pair.
        views (Views): layout, see the module's docstring.
        num_predictor_tokens (int): k.

    Returns:
        list[Path]: one path, or three.

    Raises:
        ValueError: if there is no such layout.
    """
    if views not in get_args(Views):
        raise ValueError(f"views={views}: expected one of {', '.join(get_args(Views))}")
    full = _joined(pair.source, pair.bridge, pair.target)
    labels = range(len(full) - len(pair.target), len(full))
    if views == "none":
        return [Path(full, labels=labels)]
    source = pair.source if views == "shared" else pair.source_view
    predictors = range(-1, -1 - num_predictor_tokens, -1)
    view = _joined(source, predictors)
    target = _joined(pair.target_view)
    return [
        Path(full, labels=labels),
        Path(view, {"source": len(source) - 1, "predicted": len(view) - 1}),
        Path(target, {"target": len(target) - 1}),
    ]


def _joined(*parts) -> array:
    tokens = array("i")
    for part in parts:
        tokens.extend(part)
    return tokens
