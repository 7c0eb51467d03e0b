"""Views start and end where contents do, with any template."""

from array import array
from types import SimpleNamespace

import pytest
from torchtune.data import Message
from torchtune.models.llama3 import llama3_tokenizer
from torchtune.models.phi4._tokenizer import Phi4Tokenizer

from erjepa.datasets import ChatTemplate, Pair, predictor_token_ids
from tests.harness.models import SPECIAL_TOKENS

IDS = {name: 256 + i for i, name in enumerate(SPECIAL_TOKENS)}


def chat(*turns):
    return [Message(role=role, content=content) for role, content in turns]


def header(role):
    return [
        IDS["<|start_header_id|>"],
        *role.encode(),
        IDS["<|end_header_id|>"],
        *b"\n\n",
    ]


EOT, BOS = IDS["<|eot_id|>"], IDS["<|begin_of_text|>"]


class ChatML:
    """A tokenizer of another family: text template, end of turn then a line break."""

    def __call__(self, sample, inference=False):
        tokens = []
        for message in sample["messages"]:
            body = f"{message.role}\n{message.text_content}".encode()
            tokens += [500, *body, 501, *b"\n"]
        return {"tokens": tokens}


def test_llama3_views(tokenizer):
    template = ChatTemplate(tokenizer)
    messages = chat(("system", "do it"), ("user", "in"), ("assistant", "out"))
    source, bridge, target, source_view, target_view = map(list, template(messages))
    assert source == [
        *[BOS, *header("system"), *b"do it", EOT],
        *[*header("user"), *b"in"],
    ]
    assert bridge == [EOT, *header("assistant")]
    assert target == [*b"out", EOT]
    assert source_view == [BOS, *header("user"), *b"in"]
    assert target_view == [BOS, *header("assistant"), *b"out"]
    full = tokenizer({"messages": messages})["tokens"]
    assert source + bridge + target == full[:-1]  # all but the end of text
    assert template.prompt(messages) == source + bridge
    assert template.end_of_turn == EOT


def test_chatml_views():
    template = ChatTemplate(ChatML())
    messages = chat(("user", "in"), ("assistant", "out"))
    source, bridge, target, source_view, target_view = map(list, template(messages))
    assert source == source_view == [500, *b"user\nin"]
    assert bridge == [501, *b"\n", 500, *b"assistant\n"]
    assert target == [*b"out", 501]
    assert target_view == [500, *b"assistant\nout"]


def test_qwen2_5_views(qwen):
    start, end = (qwen.special_tokens[f"<|im_{edge}|>"] for edge in ("start", "end"))

    def text(content):
        return qwen.encode(content, add_bos=False, add_eos=False)

    template = ChatTemplate(qwen)
    messages = chat(("system", "do it"), ("user", "in"), ("assistant", "out"))
    source, bridge, target, source_view, target_view = map(list, template(messages))
    user = [start, *text("user\nin")]
    assert source == [start, *text("system\ndo it"), end, *text("\n"), *user]
    assert bridge == [end, *text("\n"), start, *text("assistant\n")]
    assert target == [*text("out"), end] and source_view == user
    assert target_view == [start, *text("assistant\nout")]
    full = qwen({"messages": messages})["tokens"]
    assert source + bridge + target == full
    names = ["<|object_ref_start|>", "<|box_start|>"]
    assert predictor_token_ids(qwen, 2, 151_936, names) == [151_646, 151_648]


def test_without_a_bridge_no_earlier_turn_is_found():
    none, some = array("i"), array("i", [5, 6])
    assert Pair(0, some, none, some, some, some).earlier_turns() == []


def test_earlier_turns_belong_to_the_source(tokenizer):
    messages = chat(
        ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")
    )
    source, _, target, source_view, _ = ChatTemplate(tokenizer)(messages)
    assert list(source) == list(source_view)
    assert list(source)[-1] == ord("c") and list(target) == [ord("d"), EOT]


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([("user", "a")], "needs a user and an assistant message, got 1"),
        ([("user", "a"), ("user", "b")], "got roles .'user', 'user'."),
        ([("system", "a"), ("assistant", "b")], "ends with a user and an assistant"),
        ([("user", "a"), ("assistant", " \n")], "target .* is empty"),
        ([("user", " "), ("assistant", "b")], "source .* is empty"),
    ],
)
def test_bad_chats(tokenizer, turns, message):
    with pytest.raises(ValueError, match=message):
        ChatTemplate(tokenizer)(chat(*turns))


def test_a_tokenizer_that_truncates_is_refused(base):
    short = llama3_tokenizer(
        str(base / "tokenizer.model"),
        special_tokens_path=str(base / "special_tokens.json"),
        max_seq_len=64,
    )
    with pytest.raises(ValueError, match="tokenizer.max_seq_len=64 would cut"):
        ChatTemplate(short)


def test_a_tokenizer_without_prompts_is_refused():
    tokenizer = object.__new__(Phi4Tokenizer)  # its files are not at hand
    with pytest.raises(ValueError, match="tokenizer: Phi4Tokenizer renders no prompts"):
        ChatTemplate(tokenizer)


def test_predictor_tokens_are_reserved_and_within_the_vocabulary(tokenizer):
    reserved = [i for name, i in IDS.items() if "reserved" in name]
    assert predictor_token_ids(tokenizer, 2, 269) == reserved[:2]
    assert predictor_token_ids(tokenizer, 0, 269) == []
    with pytest.raises(ValueError, match="has 2 reserved special tokens below") as few:
        predictor_token_ids(tokenizer, 3, reserved[-1])
    others = str(few.value).partition("that no chat has: some of ")[2].split(", ")
    assert "<|python_tag|>" in others and not any("reserved" in o for o in others)


def test_predictor_tokens_by_name(tokenizer):
    names = ["<|python_tag|>", "<|reserved_special_token_1|>", "<|step_id|>"]
    ids = [IDS[name] for name in names]
    assert predictor_token_ids(tokenizer, 3, 269, names) == ids
    assert predictor_token_ids(tokenizer, 1, 269, names) == ids[:1]
    with pytest.raises(ValueError, match="4, but predictor_tokens names 3"):
        predictor_token_ids(tokenizer, 4, 269, names)
    for name, size in (("<|none|>", 269), (names[1], IDS[names[1]])):
        with pytest.raises(ValueError, match="is no special token of Llama3Tokenizer"):
            predictor_token_ids(tokenizer, 1, size, [name])
    many = SimpleNamespace(special_tokens={f"<|{i}|>": i for i in range(256)})
    for count, name in ((1, "<|none|>"), (2, "<|0|>")):
        with pytest.raises(ValueError, match=r"<\|1\|>, <\|2\|>, .*\.\.\.$") as error:
            predictor_token_ids(many, count, 256, [name])
        assert "<|255|>" not in str(error.value)
