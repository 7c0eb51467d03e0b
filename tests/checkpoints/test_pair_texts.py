"""The texts of a pair are decoded whole, with what only looks like a special token."""

from torchtune.data import Message

from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.datasets.chat_template import ChatTemplate


def test_content_that_looks_like_a_special_token(tokenizer):
    texts = "the account <|secret 4711|> of dogs", "yes <|eot_id|> no"
    roles = ("user", "assistant")
    messages = [
        Message(role=role, content=text)
        for role, text in zip(roles, texts, strict=True)
    ]
    assert PairTexts(tokenizer)(ChatTemplate(tokenizer)(messages)) == texts
