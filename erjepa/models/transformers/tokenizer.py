"""A tokenizer of transformers, with its own chat template, as a torchtune tokenizer."""

from collections.abc import Mapping
from os.path import commonprefix
from typing import Any

from jinja2 import TemplateError
from torchtune.data import Message
from torchtune.modules.transforms import Transform
from torchtune.modules.transforms.tokenizers import ModelTokenizer
from transformers import AutoConfig, AutoTokenizer

from erjepa.datasets.chat_template import shared_ending

_EMPTY = {"role": "assistant", "content": ""}
_MOST_RESERVED = 64
# Some templates insert today's date, which would change a run's prompts from day to day.
_FIXED_DATE = "{%- macro strftime_now(_) -%}26 Jul 2024{%- endmacro -%}"


class TransformersTokenizer(ModelTokenizer, Transform):
    """Tokenizes chats as rendered by the model's own chat template, like inference servers.

    Args:
        max_seq_len: must be ``None``, because a rendered template cannot be truncated.
        chat_template_kwargs: variables of the template, such as ``enable_thinking``.

    Raises:
        ValueError: if there is no tokenizer, or it has no chat template.
    """

    def __init__(
        self,
        path: str,
        max_seq_len: int | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(path)
        except ValueError as error:
            raise ValueError(
                f"tokenizer.path={path} has no tokenizer that transformers can load; add "
                "tokenizer.json and tokenizer_config.json"
            ) from error
        template = self._tokenizer.chat_template
        if isinstance(template, dict):  # several, by name
            template = template.get("default")
        if template is None:
            raise ValueError(
                f"tokenizer.path={path}: the tokenizer has no chat template; choose a chat model, "
                "or add a chat_template.jinja to the folder"
            )
        if "strftime_now" in template:
            template = _FIXED_DATE + template
        self._tokenizer.chat_template = template
        self._template_kwargs = dict(chat_template_kwargs or {})
        self.max_seq_len = max_seq_len
        self.special_tokens = self._special_tokens(path)
        self.bos_id = self._tokenizer.bos_token_id
        self.eos_id = self._tokenizer.eos_token_id
        pad_ids = (self._tokenizer.pad_token_id, self.eos_id, 0)
        self.pad_id = next(i for i in pad_ids if i is not None)
        self._ending = {role: self._ending_of(role) for role in ("user", "assistant")}
        self._header = self._default_header()
        question, answer = ({"role": r, "content": "a"} for r in ("user", "assistant"))
        prompt = self._render([question], add_generation_prompt=True)
        # The prompt may end with text that finished chats do not have, such as "<think>".
        self._chats_extend_prompts = (
            self._render([question, answer])[: len(prompt)] == prompt
        )
        ending = self._ending["assistant"]
        special = self._tokenizer.added_tokens_decoder
        # Some templates put a space before the token.
        ends = [token for token in ending if token in special] or ending
        self.end_of_turn = ends[0] if ends else None
        self.stop_tokens = sorted({self.eos_id, self.end_of_turn} - {None})

    def _special_tokens(self, path: str) -> dict[str, int]:
        """Return special tokens by name, including unused tokens by names with ``reserved``.

        If none have such names, these are tokens named ``unused``, or else the rows by which the
        embeddings are padded beyond the vocabulary.
        """
        special = {
            token.content: token_id
            for token_id, token in self._tokenizer.added_tokens_decoder.items()
        }
        if any("reserved" in name for name in special):
            return special
        vocabulary = self._tokenizer.get_vocab()
        unused = sorted(i for name, i in vocabulary.items() if "<unused" in name)
        rows = AutoConfig.from_pretrained(path).get_text_config().vocab_size
        free = unused or range(max(vocabulary.values()) + 1, rows)
        return special | {f"<reserved_{i}>": i for i in free[:_MOST_RESERVED]}

    def _ending_of(self, role: str) -> list[int]:
        before = [{"role": "user", "content": "a"}] if role == "assistant" else []
        chats = ([*before, {"role": role, "content": c}] for c in ("a", "b"))
        return shared_ending(*map(self._render, chats))

    @property
    def vocab_size(self) -> int:
        return len(self._tokenizer)

    def encode(
        self, text: str, add_bos: bool = False, add_eos: bool = False
    ) -> list[int]:
        """Return token ids of ``text``, optionally with the BOS and EOS tokens."""
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        return [self.bos_id] * add_bos + tokens + [self.eos_id] * add_eos

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(
            token_ids, skip_special_tokens=skip_special_tokens
        )

    def tokenize_messages(
        self, messages: list[Message], *, add_end_tokens: bool = True
    ) -> tuple[list[int], list[bool]]:
        """Return the tokens of a chat, and a mask of False only, because
        :class:`~erjepa.datasets.ChatTemplate` locates the contents.

        Args:
            add_end_tokens: False: leave out the end of the last message; if this is an empty
                answer, end with the prompt for an answer. An answer follows its prompt, even if
                finished chats lack a part of this prompt.

        Raises:
            RuntimeError: if a message contains anything other than text.
            ValueError: if the template rejects the chat.
        """
        chat = []
        for message in messages:
            if any(item["type"] != "text" for item in message.content):
                raise RuntimeError(f"only text can be read, got {message.content}")
            chat.append({"role": message.role, "content": message.text_content})
        if add_end_tokens:
            tokens = self._render(chat)
        elif chat[-1] == _EMPTY:
            tokens = self._render(chat[:-1], add_generation_prompt=True)
        elif chat[-1]["role"] == "assistant" and not self._chats_extend_prompts:
            prompt = self._render(chat[:-1], add_generation_prompt=True, tokenize=False)
            tokens = self.encode(prompt + chat[-1]["content"])
        else:
            tokens = self._render(chat)
            ending = self._ending[chat[-1]["role"]]
            if ending != tokens[len(tokens) - len(ending) :]:
                raise ValueError(
                    "the end of a message's content was not found in the rendered chat "
                    f"{self.decode(tokens, skip_special_tokens=False)!r}"
                )
            tokens = tokens[: len(tokens) - len(ending)]
        return tokens, [False] * len(tokens)

    def view(self, messages: list[Message]) -> list[int]:
        """Return the tokens of messages as a separate text, up to the end of the last content.

        What the template adds before every chat, such as a default system message, is left out. An
        answer alone, which many templates reject, is rendered after a question and cut out.
        """
        start = [self.bos_id] if self._header[:1] == [self.bos_id] else []
        before, behind = self._header, list[int]()
        if messages[0].role == "assistant":
            question = Message(role="user", content="a")
            before, _ = self.tokenize_messages([question], add_end_tokens=False)
            behind = self._ending["user"]
            messages = [question, *messages]
        tokens, _ = self.tokenize_messages(messages, add_end_tokens=False)
        if tokens[: len(before)] != before:
            raise ValueError(
                "the source or the target was not found in the rendered chat "
                f"{self.decode(tokens, skip_special_tokens=False)!r}"
            )
        view = tokens[len(before) :]
        # Some templates end a question differently where no answer follows.
        return start + view[len(commonprefix([behind, view])) :]

    def _default_header(self) -> list[int]:
        """Return the tokens before the first turn of a chat without a system message."""
        question, answer, other = (
            {"role": role, "content": content}
            for role, content in (("user", "a"), ("assistant", "a"), ("assistant", "b"))
        )
        # From the end of an answer to that of the next question. Past answers only: templates of
        # thinking models render the last one differently.
        between = shared_ending(
            self._render([question, answer, question]),
            self._render([question, other, question]),
        )
        ending = commonprefix([between, self._ending["assistant"]])
        one = self._render([question])
        return one[: max(0, len(one) - (len(between) - len(ending)))]

    @property
    def default_system_message(self) -> str:
        """The system message that the template adds to a chat without one; "" if none."""
        return self.decode(self._header).strip().removeprefix("system").strip()

    def _render(self, chat: list[dict[str, str]], **options: bool) -> Any:
        """Return the tokens of a chat, or with ``tokenize=False`` its text."""
        try:
            return self._tokenizer.apply_chat_template(
                chat, return_dict=False, **options, **self._template_kwargs
            )
        except TemplateError as error:
            raise ValueError(
                f"the chat template refuses a chat: {error}. The chat: {chat}"
            ) from None

    def __call__(
        self, sample: Mapping[str, Any], inference: bool = False
    ) -> Mapping[str, Any]:
        """Replace ``messages`` of a sample by ``tokens`` and ``mask``."""
        rest = {key: value for key, value in sample.items() if key != "messages"}
        tokens, mask = self.tokenize_messages(
            sample["messages"], add_end_tokens=not inference
        )
        return {**rest, "tokens": tokens, "mask": mask}
