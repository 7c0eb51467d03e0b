"""Exported chat templates render the prompts of training.

The reference for what a server renders is transformers' ``apply_chat_template``.
"""

import json
import shutil

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from erjepa.checkpoints.served_chat import (
    ServedChat,
    Serving,
    serving_of,
    write_chat_template,
)
from erjepa.datasets import ChatTemplate, PairedDataset, Record
from erjepa.datasets.messages import RecordMessages
from erjepa.models.smollm2 import smollm2_tokenizer
from erjepa.models.smollm2.gguf_checkpoint import write_checkpoint
from erjepa.models.transformers import TransformersTokenizer
from tests.harness.models import SPECIAL_TOKENS
from tests.harness.runs import small_config, train
from tests.harness.smollm2 import write_gguf
from tests.harness.transformers_models import write_folder

DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DATED = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{% set head = '<|start_header_id|>' %}{% set tail = '<|end_header_id|>\n\n' %}"
    "{{ head ~ 'system' ~ tail ~ 'Today Date: ' ~ strftime_now('%d %b %Y') ~ '\n\n' ~ system }}"
    "<|eot_id|>{% for m in messages %}{{ head ~ m.role ~ tail ~ m.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}{{ head ~ 'assistant' ~ tail }}{% endif %}"
)
# As Qwen3's: an empty thought before the last answer alone; and transformers' tag.
THINKING = (
    "{% set thought = '<think>\n\n</think>\n\n' %}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if loop.last and m.role == 'assistant' %}{{ thought }}{% endif %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' + thought }}{% endif %}"
)
CHATS = [
    [("user", "line 1")],
    [("system", "Convert."), ("user", " lines\nwith 'é' ")],
    [("user", "a"), ("assistant", "b|c"), ("user", '"d" \\ {{ e }} <|x|>')],
    [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c")],
]


def turns(chat):
    return [{"role": role, "content": content} for role, content in chat]


def pairs_of(tokenizer, chats=CHATS):
    records = [
        Record(f"row {i}", {"messages": turns([*chat, ("assistant", "x")])})
        for i, chat in enumerate(chats)
    ]
    return PairedDataset(records, tokenizer, RecordMessages({"messages": "messages"}))


def write_llama(folder):
    """Of the tests' Llama 3 tokenizer, what transformers reads; its template has a date."""
    theirs = Tokenizer(BPE({bytes_to_unicode()[i]: i for i in range(256)}, merges=[]))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    theirs.add_special_tokens(SPECIAL_TOKENS)
    theirs.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {"bos_token": "<|begin_of_text|>", "chat_template": DATED}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def leave_one_special_token(folder):
    """Another vocabulary: the text of a special token is other tokens there."""
    file = folder / "tokenizer.json"
    values = json.loads(file.read_text())
    values["added_tokens"] = values["added_tokens"][:1]
    file.write_text(json.dumps(values))


@pytest.fixture(params=["chatml", "llama3"])
def served(request, tmp_path, tokenizer):
    """A base's folder whose template differs, and training's tokenizer."""
    if request.param == "chatml":
        file = write_gguf(tmp_path / "small.gguf")
        write_checkpoint(file, tmp_path / "base", "org/name")
        write_chat_template(tmp_path / "base", DEFAULT_SYSTEM)
        return tmp_path / "base", smollm2_tokenizer(
            str(tmp_path / "base" / "tokenizer.json")
        )
    (tmp_path / "base").mkdir()
    write_llama(tmp_path / "base")
    return tmp_path / "base", tokenizer


def asked(folder, chat, **options):
    """Tokens that transformers makes of a chat."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    options = {"add_generation_prompt": True, "tokenize": False, **options}
    text = tokenizer.apply_chat_template(turns(chat), **options)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_the_exported_template_gives_the_prompts_of_training(served):
    folder, tokenizer = served
    pairs = pairs_of(tokenizer)
    assert asked(folder, CHATS[0]) != pairs.prompt(0)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    before = asked(folder, CHATS[0], tools=tools)
    for chat in CHATS:  # as transformers does, the template of the base as well
        assert ServedChat(folder).tokens(turns(chat)) == asked(folder, chat)
    serving = serving_of(folder, pairs, tokenizer)
    assert serving.warning is serving.prompt is None
    write_chat_template(folder, serving.template)
    for i, chat in enumerate(CHATS):
        assert asked(folder, chat) == pairs.prompt(i)
        in_parts = [(role, [{"type": "text", "text": text}]) for role, text in chat]
        assert asked(folder, in_parts) == pairs.prompt(i)
        assert ServedChat(folder).tokens(turns(chat)) == pairs.prompt(i)
        answered = [*chat, ("assistant", "x")]
        whole = [token for part in pairs[i].segments[:3] for token in part]
        assert asked(folder, answered, add_generation_prompt=False) == whole
    assert asked(folder, CHATS[0], tools=tools) == before
    with pytest.raises(ValueError, match="turns of user and assistant"):
        ServedChat(folder).tokens(turns([("user", "a"), ("user", "b")]))
    assert serving_of(folder, pairs, tokenizer) == Serving()


def test_an_answer_may_begin_otherwise_in_the_prompt_than_in_the_past(tmp_path):
    folder = write_folder(tmp_path, "llama", THINKING)
    tokenizer = TransformersTokenizer(str(folder))
    pairs = pairs_of(tokenizer)
    for i, chat in enumerate(CHATS):
        assert ServedChat(folder).tokens(turns(chat)) == pairs.prompt(i)
    # The exported template, wherever the base's does not agree.
    exported = ServedChat(folder).plain(ChatTemplate(tokenizer))
    write_chat_template(folder, exported)
    for i, chat in enumerate(CHATS):
        assert asked(folder, chat) == pairs.prompt(i)


def test_a_template_that_agrees_on_the_pairs_stays(served):
    folder, tokenizer = served
    with_system = [CHATS[1][:1] + [("user", "line 1")]]
    serving = serving_of(folder, pairs_of(tokenizer, with_system), tokenizer)
    assert (serving.template is None) == ("Today" not in ServedChat(folder).template)


def test_a_prompt_that_no_template_gives_is_shown(served):
    folder, tokenizer = served
    leave_one_special_token(folder)
    serving = serving_of(folder, pairs_of(tokenizer, CHATS[1:2]), tokenizer)
    assert serving.template is None and "Convert." in serving.prompt
    assert "lines" not in serving.prompt and "..." in serving.prompt
    assert "\n" not in serving.warning and "builds other prompts" in serving.warning


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_what_cannot_be_compared(served, file):
    folder, tokenizer = served
    (folder / file).unlink()
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    serving = serving_of(folder, pairs_of(tokenizer), tokenizer)
    assert serving.template is serving.prompt is None
    assert (serving.warning is not None) == (file == "tokenizer.json")


@pytest.mark.parametrize("can_be_served", [True, False])
def test_a_run_says_and_exports_it(base, data, tokenizer, tmp_path, can_be_served):
    folder = shutil.copytree(base, tmp_path / "base")
    write_llama(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 7, "top_k": 3}')
    if not can_be_served:
        leave_one_special_token(folder)
    cfg = small_config(folder, data, tmp_path, stop__steps=1, ema_decay=0.9)
    train(cfg)
    chat = [("system", "Convert."), ("user", "a dog")]
    expected = pairs_of(tokenizer, [chat]).prompt(0)
    for exported in (tmp_path / "epoch_0_step_1", tmp_path / "epoch_0_step_1" / "ema"):
        assert (asked(exported, chat) == expected) == can_be_served
        card = (exported / "README.md").read_text()
        assert ("template builds the prompts of training" in card) == can_be_served
        assert ("```text\n<|begin" in card and "Convert." in card) != can_be_served
        generation = json.loads((exported / "generation_config.json").read_text())
        stops = [7, ChatTemplate(tokenizer).end_of_turn]
        assert generation == {"eos_token_id": stops, "top_k": 3}


@pytest.mark.parametrize("is_named", [False, True])
def test_it_is_rendered_as_by_transformers(tmp_path, is_named):
    """Without tools and documents, which are then none; or as the default of several templates."""
    tools = "{% if tools is not none %}{{ tools | tojson }}{% endif %}{{ documents }}"
    folder = write_folder(tmp_path, "llama", tools + DEFAULT_SYSTEM)
    if is_named:
        (folder / "chat_template.jinja").unlink()
        file = folder / "tokenizer_config.json"
        names = {"tool_use": "x", "default": tools + DEFAULT_SYSTEM}
        templates = [{"name": n, "template": text} for n, text in names.items()]
        config = {**json.loads(file.read_bytes()), "chat_template": templates}
        file.write_text(json.dumps(config))
    for chat in CHATS:
        assert ServedChat(folder).tokens(turns(chat)) == asked(folder, chat)
    write_chat_template(folder, DEFAULT_SYSTEM)
    assert ServedChat(folder).template == DEFAULT_SYSTEM
    if is_named:  # the template for tools stays
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        x = AutoTokenizer.from_pretrained(folder)("x")["input_ids"]
        assert asked(folder, CHATS[0], tools=tools) == x
