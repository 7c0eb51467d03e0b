"""A check that a model computes the same for texts in the rows of a run as for each text alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from erjepa.datasets import Pair
from erjepa.objective import PackedDecoder
from erjepa.packing import BLOCK, PairCollator, prefix_tree

_LENGTH = 640  # most tokens of a text; longer than many attention windows
_NEAR = 2  # tokens of a text behind another one that are also compared by themselves
# Largest relative difference of hidden states that is due to rounding.
_ROUNDING = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.05}

_Row = tuple[Any, Any, Any]  # tokens, depths and ends


@torch.no_grad()
def require_packable(
    model: PackedDecoder, pairs: Sequence[Pair], device: torch.device, name: str
) -> None:
    """Fail if hidden states of texts in the rows of a run differ from those of each text alone.

    In packed rows they differ if layers carry a state from token to token (recurrence, convolution)
    or ignore position ids; from embeddings, if a layer reads tokens; and in any row, if tokens see
    later ones. All ranks call this together, with the same pairs.

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
    attention, was_training = model.attention, model.training
    one_each: list[_Row] = [
        (text, range(len(text)), [len(text)] * len(text)) for text in texts
    ]
    tree = prefix_tree(texts)
    rows, remedy = one_each, "choose another model"
    if attention != "causal":
        rows = [(tree.tokens, tree.depth, tree.end)]
        remedy = "set attention=causal, a text per row"
    model.eval()
    try:
        packed = torch.cat(_hidden(model, device, rows))
        model.attend_by("causal")
        # Rows of these shapes never occur again.
        with torch.compiler.set_stance("force_eager"):
            alone = torch.cat(_hidden(model, device, one_each, from_tokens=True))
    except (torch.OutOfMemoryError, dist.DistError):
        raise
    except Exception as error:
        message = " ".join(str(error).split())
        if "/gloo/" in message:  # lost another rank: a plain RuntimeError of Gloo
            raise
        raise ValueError(
            f"model: {name} cannot read the rows of this run: {message}"
        ) from error
    finally:
        model.attend_by(attention)
        model.train(was_training)
        # This shape never occurs again, but torch would compile the next ones as dynamic.
        torch._dynamo.reset()
    in_row = packed
    if attention != "causal":
        in_row = torch.cat([packed[torch.from_numpy(path)] for path in tree.paths])
    # A state leaks most into the tokens right after those of another text.
    jumps = np.concatenate([np.diff(path, prepend=-1) != 1 for path in tree.paths])
    near = torch.from_numpy(np.convolve(jumps, np.ones(_NEAR))[: len(jumps)] > 0)
    difference = _difference(in_row, alone)
    if near.any():
        difference = max(difference, _difference(in_row[near], alone[near]))
    if difference > (rounding := _ROUNDING[alone.dtype]):
        raise ValueError(
            f"model: {name} cannot train on these rows: hidden states of texts in a row differ by "
            f"{difference:.1e} from those of the same texts alone, more than rounding "
            f"({rounding:.0e}); {remedy}"
        )


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the relative difference of hidden states, each [N, H], that three of four tokens do not
    exceed. Rounding alone can carry single tokens far, such as those that other experts read.
    """
    one, other = one.float(), other.float()
    each = (one - other).norm(dim=1) / other.norm(dim=1)
    return float(each.sort().values[-(-3 * len(each) // 4) - 1])


def _hidden(
    model: PackedDecoder,
    device: torch.device,
    rows: Sequence[_Row],
    *,
    from_tokens: bool = False,
) -> list[Tensor]:
    """Return the hidden states of rows, each [L, H].

    From tokens, all rows are padded: rows of one text, where the longest is not, must not depend on
    the tokens behind them.
    """
    columns = []
    for column in zip(*rows, strict=True):
        table = pad_sequence([torch.tensor([*row]) for row in column], batch_first=True)
        padding = -table.shape[1] % BLOCK
        if from_tokens:
            padding = padding or BLOCK
        elif model.attention == "causal":
            padding = 0
        columns.append(F.pad(table, (0, padding)))
    tokens, input_pos, end = columns
    # Each padding token is its own subtree.
    end = end.where(end > 0, torch.arange(1, end.shape[1] + 1))
    batch = replace(
        PairCollator()([]),  # no pairs and no labels
        tokens=tokens,
        input_pos=input_pos,
        end=end.int(),
        target_pos=torch.arange(tokens.numel())[None],
    )
    output = model(batch.to(device), from_tokens=from_tokens)
    hidden = output.target[0].view(*tokens.shape, -1)
    return [states[: len(row[0])] for states, row in zip(hidden, rows, strict=True)]
