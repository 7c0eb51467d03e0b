"""The weights that a run starts from, and a check that they match its model."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor


class StartWeights(NamedTuple):
    """The weights that a run starts from."""

    base: dict[str, Tensor]  # of the base model, by name
    # Of the resumed run or of ``init_from``; ``None``: initialize them.
    trained: dict[str, Tensor] | None = None
    # Embeddings of the predictor tokens, [k, H]; ``None``: initialize them from the base.
    predictor: Tensor | None = None
    averaged: dict[str, Any] | None = None  # see :meth:`AveragedWeights.state_dict`


def require_same_model(
    model: Mapping[str, Tensor], weights: Mapping[str, Tensor], where: str
) -> None:
    """Compare names and shapes before anything is loaded; ``where`` is the source of ``weights``.

    Raises:
        ValueError: naming the first missing weight, the first unknown one and the first of
            another shape, with the number of each.
    """
    missing = [name for name in model if name not in weights]
    unknown = [name for name in weights if name not in model]
    other = [
        f"{name} is {list(weights[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in model.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    differs = [
        f"{what} {names[0]} ({len(names)} such)"
        for what, names in (
            ("it lacks", missing),
            ("it has", unknown),
            ("of another shape,", other),
        )
        if names
    ]
    if differs:
        raise ValueError(
            f"{where} holds another model than the config's: {'; '.join(differs)}. Name "
            "the model that was saved there, with its arguments, or its checkpoint"
        )
