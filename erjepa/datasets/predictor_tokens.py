"""Which tokens of the vocabulary serve as predictor tokens."""

from typing import Any


def predictor_token_ids(tokenizer: Any, count: int, vocab_size: int) -> list[int]:
    """The first ``count`` reserved special tokens, so that the vocabulary keeps its size.

    Args:
        tokenizer (Any): torchtune tokenizer with ``special_tokens``, names to ids.
        count (int): k.
        vocab_size (int): rows of the model's embedding; ids beyond it cannot be used.

    Returns:
        list[int]: k token ids.

    Raises:
        ValueError: if k is negative or the tokenizer reserves too few tokens.
    """
    if count < 0:
        raise ValueError(f"num_predictor_tokens must be at least 0, got {count}")
    reserved = sorted(
        token_id
        for name, token_id in getattr(tokenizer, "special_tokens", {}).items()
        if "reserved" in name and token_id < vocab_size
    )
    if len(reserved) < count:
        raise ValueError(
            f"num_predictor_tokens={count}, but {type(tokenizer).__name__} has "
            f"{len(reserved)} reserved special tokens below the vocabulary size "
            f"{vocab_size}; set num_predictor_tokens to at most that."
        )
    return reserved[:count]
