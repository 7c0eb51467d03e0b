"""The text of an answer is that of its tokens, without special ones."""

import pytest

from erjepa.configs import load
from erjepa.evaluation.answers import decode_answer


@pytest.mark.parametrize("text", ["a <| 3 |> b", "(<|a|>)", "<|>|<|>", "plain"])
def test_text_like_a_special_token_is_kept(text):
    tokenizer = load("tiny_synth").tokenizer.build()
    tokens = tokenizer.encode(text, add_bos=False, add_eos=False)
    assert decode_answer(tokenizer, tokens) == text
    assert decode_answer(tokenizer, [*tokens, tokenizer.eot_id]) == text
