"""A check that a model computes the same for packed texts as for each text alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from erjepa.datasets import Pair
from erjepa.objective import PackedDecoder
from erjepa.packing import BLOCK, PairCollator, prefix_tree

_LENGTH = 640  # most tokens of a text; longer than many attention windows
_NEAR = 4  # tokens of a text behind another one that are also compared by themselves
# Largest relative difference of hidden states that is due to rounding.
_ROUNDING = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.05}


@torch.no_grad()
def require_packable(
    model: PackedDecoder, pairs: Sequence[Pair], device: torch.device, name: str
) -> None:
    """Fail if hidden states of texts in a packed row differ from those of each text alone.

    They differ if layers carry a state from token to token (recurrence, convolution), or ignore
    position ids. All ranks call this together, with the same pairs.

    Args:
        model: model with its weights, sharded or not.
        pairs: pairs, of which the first and the last are used.
        name: name of the model, for the error.

    Raises:
        ValueError: if they differ by more than rounding, or the model fails on such a row.
    """
    texts = [
        text[: min(_LENGTH, model.num_positions)]
        for pair in (pairs[0], pairs[-1])
        for text in (pair.source + pair.bridge + pair.target, pair.target_view)
    ]
    tree = prefix_tree(texts)
    width = -(-len(tree.tokens) // BLOCK) * BLOCK
    end = torch.arange(1, width + 1)  # each padding token is its own subtree
    end[: len(tree.end)] = torch.from_numpy(tree.end)
    attention, was_training = model.attention, model.training
    model.eval()
    try:
        packed = _hidden(model, device, [tree.tokens], [tree.depth], end[None])[0]
        model.attend_by("causal")
        # Rows of these shapes never occur again.
        with torch.compiler.set_stance("force_eager"):
            rows = _hidden(model, device, texts, [range(len(text)) for text in texts])
    except Exception as error:
        message = " ".join(str(error).split())
        raise ValueError(f"model: {name} cannot read packed rows: {message}") from error
    finally:
        model.attend_by(attention)
        model.train(was_training)
        # This shape never occurs again, but torch would compile the next ones as dynamic.
        torch._dynamo.reset()
    alone = torch.cat([row[: len(text)] for row, text in zip(rows, texts, strict=True)])
    in_row = torch.cat([packed[torch.from_numpy(path)] for path in tree.paths])
    # A state leaks most into the tokens right after those of another text.
    jumps = np.concatenate([np.diff(path, prepend=-1) != 1 for path in tree.paths])
    near = torch.from_numpy(np.convolve(jumps, np.ones(_NEAR))[: len(jumps)] > 0)
    difference = _difference(in_row, alone)
    if near.any():
        difference = max(difference, _difference(in_row[near], alone[near]))
    if difference > _ROUNDING[alone.dtype]:
        raise ValueError(
            f"model: {name} cannot train on packed rows: hidden states of texts in a row "
            f"differ by {difference:.1e} from those of the same texts alone, more than rounding "
            f"({_ROUNDING[alone.dtype]:.0e}); choose a model whose layers attend under a mask"
        )


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).norm() / other.float().norm())


def _hidden(
    model: PackedDecoder,
    device: torch.device,
    rows: Sequence[Any],
    positions: Sequence[Any],
    end: Tensor | None = None,
) -> Tensor:
    """Return the hidden states of rows, padded on the right, [R, L, H]."""
    width = max(map(len, rows)) if end is None else end.shape[1]
    tokens, input_pos = (
        torch.tensor([[*values, *[0] * (width - len(values))] for values in table])
        for table in (rows, positions)
    )
    batch = replace(
        PairCollator()([]),  # no pairs and no labels
        tokens=tokens,
        input_pos=input_pos,
        end=tokens if end is None else end.int(),
        target_pos=torch.arange(tokens.numel())[None],
    )
    return model(batch.to(device)).target[0].view(*tokens.shape, -1)
