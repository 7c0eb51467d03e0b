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


def test_qwens_tool_calls_are_kept(qwen):
    """Its tokenizer reads them as special tokens, and a target may have them."""
    text = "<tool_call>a</tool_call>"
    tokens = qwen.encode(text, add_bos=False, add_eos=False)
    assert len(tokens) == 3 and decode_answer(qwen, tokens) == text
