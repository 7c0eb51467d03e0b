"""Choice of the special tokens that serve as predictor tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

from erjepa.utils.escape import one_line


def predictor_token_ids(
    tokenizer: Any, count: int, vocab_size: int, names: Sequence[str] | None = None
) -> list[int]:
    """Return the ids of ``count`` unused special tokens, so that the vocabulary keeps its size.

    Args:
        vocab_size: rows of the model's embedding; larger ids cannot be used.
        names: special tokens to use, in order; ``None``: those with "reserved" in their name.

    Raises:
        ValueError: if a name is unknown, or there are too few tokens.
    """
    special = {
        name: token_id
        for name, token_id in getattr(tokenizer, "special_tokens", {}).items()
        if token_id < vocab_size
    }
    family = type(tokenizer).__name__
    if names is None:
        free = sorted(i for name, i in special.items() if "reserved" in name)
        found = f"{family} has {len(free)} reserved special tokens"
    else:
        if unknown := [name for name in names if name not in special]:
            raise ValueError(
                f"predictor_tokens: {unknown[0]} is no special token of {family} below "
                f"the vocabulary size {vocab_size}; it has {_listed(special)}"
            )
        free = [special[name] for name in names]
        found = f"predictor_tokens names {len(free)}"
    if len(free) < count:
        others = [name for name, token_id in special.items() if token_id not in free]
        which = f": some of {_listed(others)}" if others else ""
        raise ValueError(
            f"num_predictor_tokens={count}, but {found} below the vocabulary size "
            f"{vocab_size}. Set num_predictor_tokens to at most that, or name in "
            f"predictor_tokens special tokens that no chat has{which}"
        )
    return free[:count]


def _listed(names: Iterable[str]) -> str:
    return one_line(", ".join(names), 300)
