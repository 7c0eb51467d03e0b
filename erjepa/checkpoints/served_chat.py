"""Comparison of the prompts of serving engines with those of training.

Training tokenizes a chat with torchtune's tokenizers, a serving engine with the Jinja template in
the model's folder. The two may differ: SmolLM2's and Qwen2.5's templates add a default system
message, Llama 3.2's the date.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from torchtune.data import Message

from erjepa.datasets import ChatTemplate, PairedDataset

TEMPLATE = "chat_template.jinja"
_CONFIG = "tokenizer_config.json"
_TOKENIZER = "tokenizer.json"
_GENERATION = "generation_config.json"
_PAIRS = 64  # pairs to compare, evenly spaced
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
_ANSWER = Message(role="assistant", content="a")

# `joints` maps the roles of a message and the one before it to the text between their contents. A
# content may be a list of parts: vLLM passes one if it finds a loop over contents in the base's.
_PLAIN = """\
{{%- set joints = {joints} -%}}
{{%- set chat = namespace(joint="") -%}}
{{%- for message in messages -%}}
{{%- set chat.joint = (chat.joint.split(" ")[-1] ~ " " ~ message["role"]) | trim -%}}
{{%- if chat.joint not in joints -%}}
{{{{- raise_exception("trained on turns of user and assistant, after at most one system message") -}}}}
{{%- endif -%}}
{{%- set content = message["content"] -%}}
{{%- set content = content if content is string else content | map(attribute="text") | join -%}}
{{{{- joints[chat.joint] ~ content{trim} -}}}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}
{{{{- {ask} -}}}}
{{%- elif chat.joint == "user assistant" -%}}
{{{{- {end} -}}}}
{{%- endif -%}}"""


class ServedChat:
    """Tokenizer and chat template of a model's folder, applied as by a serving engine.

    Raises:
        ValueError: if the folder has no chat template or no readable ``tokenizer.json``.
    """

    def __init__(self, folder: Path) -> None:
        if (template := chat_template(folder)) is None:
            raise ValueError(f"{folder} has no chat template")
        if not (folder / _TOKENIZER).is_file():
            raise ValueError(
                f"{folder} has no {_TOKENIZER} to compare its prompts with"
            )
        self.template = template
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
        except Exception as error:  # tokenizers raises plain Exceptions
            raise ValueError(f"{folder / _TOKENIZER}: {error}") from None
        config = _config(folder)
        self._special = {
            name: token["content"] if isinstance(token, dict) else token
            for name in _SPECIAL
            if (token := config.get(name)) is not None
        }

    def tokens(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of the prompt for a chat.

        Raises:
            ValueError: if the template rejects the chat.
        """
        # The same settings as in transformers.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters["tojson"] = lambda value, **options: json.dumps(
            value, ensure_ascii=False, **options
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = datetime.now().strftime
        try:
            text = environment.from_string(self.template).render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special,
            )
        except TemplateError as error:
            raise ValueError(f"the chat template refuses a chat: {error}") from None
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, tokens: Sequence[int]) -> str:
        """Decode tokens, including special tokens."""
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    def asks(self, pairs: PairedDataset, ids: Iterable[int]) -> bool:
        """Return whether the template reproduces the training prompts of these pairs."""
        try:
            return all(self.tokens(as_json(pairs, i)) == pairs.prompt(i) for i in ids)
        except ValueError:
            return False

    def plain(self, template: ChatTemplate) -> str:
        """Return a Jinja template for the prompts of ``template``, which training uses.

        Training has no tools; chats with tools are rendered by the folder's own template.
        """

        def between(*roles: Any) -> list[str]:
            """Return the texts around the contents of a prompt's messages."""
            marks = [f"<{i}>" for i in range(len(roles))]
            turns = zip(roles, marks, strict=True)
            chat = [Message(role=role, content=mark) for role, mark in turns]
            rest, found = self.text(template.prompt([*chat, _ANSWER])), []
            for mark in marks:
                part, _, rest = rest.partition(mark)
                found.append(part)
            return [*found, rest]

        user, answer, again, ask = between("user", "assistant", "user")
        system, asked, _ = between("system", "user")
        joints = {
            **{"user": user, "system": system, "system user": asked},
            **{"user assistant": answer, "assistant user": again},
        }
        padded, bare = (
            template.prompt([Message(role="user", content=text), _ANSWER])
            for text in (" a ", "a")
        )
        plain = _PLAIN.format(
            # Jinja does not combine the surrogates of an escaped emoji.
            joints=json.dumps(joints, ensure_ascii=False),
            # Templates of thinking models begin past answers and the next one differently.
            ask=json.dumps(ask, ensure_ascii=False),
            trim=" | trim" if padded == bare else "",
            end=json.dumps(self.text([template.end_of_turn])),
        )
        return f"{{%- if tools -%}}{self.template}{{%- else -%}}{plain}{{%- endif -%}}"


class Serving(NamedTuple):
    """How to serve a model with the prompts of training.

    Args:
        template: chat template to export; ``None``: that of the base model.
        warning: why servers may build other prompts, if they may.
        prompt: a training prompt that the template does not reproduce.
        end_of_turn: token at which servers stop.
    """

    template: str | None = None
    warning: str | None = None
    prompt: str | None = None
    end_of_turn: int | None = None


def serving_of(folder: Path, pairs: PairedDataset, tokenizer: Any) -> Serving:
    """Find a chat template that reproduces the training prompts of up to 64 of the pairs, trying
    that in the base model's ``folder`` first.
    """
    if not any((folder / name).is_file() for name in (TEMPLATE, _CONFIG)):
        return Serving()
    try:
        served = ServedChat(folder)
    except ValueError as error:
        return Serving(
            warning=f"{error}: a server may build other prompts than training does."
        )
    ids = range(0, len(pairs), -(-len(pairs) // _PAIRS))
    if served.asks(pairs, ids):
        return Serving()
    template = ChatTemplate(tokenizer)
    served.template = served.plain(template)
    if served.asks(pairs, ids):
        return Serving(template=served.template)
    shown = [
        m if m.role == "system" else Message(role=m.role, content="...")
        for m in pairs.messages(0)[:-1]
    ]
    return Serving(
        warning=f"The chat template of {folder} builds other prompts than training does. Send "
        "token ids to a server (erjepa prompts --url /v1/completions); the model card "
        "shows a prompt of training.",
        prompt=served.text(template.prompt([*shown, _ANSWER])),
    )


def chat_template(folder: Path) -> str | None:
    """Return the chat template in a model's folder, or ``None`` if there is none."""
    if (folder / TEMPLATE).is_file():
        return (folder / TEMPLATE).read_text(encoding="utf-8")
    template = _config(folder).get("chat_template")
    if isinstance(template, list):
        template = {t["name"]: t["template"] for t in template}.get("default")
    return template if isinstance(template, str) else None


def _config(folder: Path) -> dict[str, Any]:
    file = folder / _CONFIG
    return json.loads(file.read_bytes()) if file.is_file() else {}


def as_json(pairs: PairedDataset, example_id: int) -> list[dict[str, str]]:
    """Return the chat of a pair without its target, in the JSON format of servers."""
    *context, _ = pairs.messages(example_id)
    return [{"role": m.role, "content": m.text_content} for m in context]


def write_serving(folder: Path, serving: Serving) -> None:
    """Make servers of a model's folder use the chat template and the end of turn of training."""
    if serving.template is not None:
        write_chat_template(folder, serving.template)
    if (file := folder / _GENERATION).is_file():
        config = json.loads(file.read_bytes())
        stops = config.get("eos_token_id")
        stops = [stops] if isinstance(stops, int) else stops or []
        if serving.end_of_turn not in (None, *stops):
            _write_json(file, {**config, "eos_token_id": [*stops, serving.end_of_turn]})


def write_chat_template(folder: Path, template: str) -> None:
    """Write ``template`` as the chat template of a model's folder, of several the default one."""
    config = _config(folder)
    named = config.get("chat_template")
    if isinstance(named, list) and not (folder / TEMPLATE).is_file():
        others = [t for t in named if t["name"] != "default"]
        named = [*others, {"name": "default", "template": template}]
    else:
        named = template
        (folder / TEMPLATE).write_text(template, encoding="utf-8")
    if config:
        _write_json(folder / _CONFIG, {**config, "chat_template": named})


def _write_json(file: Path, values: Mapping[str, Any]) -> None:
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    file.write_text(text, encoding="utf-8")


class _Generation(Extension):
    """The tag of transformers' templates around what an assistant wrote."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise TemplateError(message)
