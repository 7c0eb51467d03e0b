"""SmolLM2's tokenizer and chat template as a torchtune tokenizer."""

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer
from torchtune.data import Message, truncate
from torchtune.modules.transforms import Transform
from torchtune.modules.transforms.tokenizers import ModelTokenizer


class SmolLM2Tokenizer(ModelTokenizer, Transform):
    """Byte-level BPE of a ``tokenizer.json`` with the ChatML template of SmolLM2-Instruct.

    A message is ``<|im_start|>role\\ncontent<|im_end|>\\n``, with white space around its content
    removed. No default system prompt is added, because a view of the target alone would contain
    it. Special tokens that are spelled out in a content are treated as plain text.

    Args:
        max_seq_len: number of tokens to which chats are truncated; ``None``: no limit.

    Raises:
        ValueError: if the file cannot be read, or lacks a special token of the template.
    """

    def __init__(self, path: str, max_seq_len: int | None = None) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(path)
        except Exception as error:  # tokenizers raises plain Exceptions
            raise ValueError(f"{path}: {error}") from None
        self._tokenizer.encode_special_tokens = True
        self.special_tokens = {
            token.content: token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
        }
        for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
            if token not in self.special_tokens:
                raise ValueError(f"{path} has no special token {token}")
        self.bos_id = self.special_tokens["<|im_start|>"]
        self.eos_id = self.special_tokens["<|im_end|>"]
        self.pad_id = self.eos_id
        self.stop_tokens = [self.eos_id, self.special_tokens["<|endoftext|>"]]
        self.max_seq_len = max_seq_len

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tokenizer.encode_special_tokens = True  # which a pickled Tokenizer loses

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(
        self, text: str, add_bos: bool = False, add_eos: bool = False
    ) -> list[int]:
        """Return token ids of ``text``, optionally between ``<|im_start|>`` and ``<|im_end|>``."""
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self.bos_id] * add_bos + tokens + [self.eos_id] * add_eos

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(
            token_ids, skip_special_tokens=skip_special_tokens
        )

    def tokenize_messages(
        self, messages: list[Message], *, add_end_tokens: bool = True
    ) -> tuple[list[int], list[bool]]:
        """Tokenize a list of messages into a list of token ids and masks.

        Raises:
            RuntimeError: if a message contains anything other than text.
        """
        tokens, mask = [], []
        for i, message in enumerate(messages):
            if any(item["type"] != "text" for item in message.content):
                raise RuntimeError(f"SmolLM2 reads only text, got {message.content}")
            added = [self.bos_id, *self.encode(f"{message.role}\n")]
            added += self.encode(message.text_content.strip())
            if add_end_tokens or i < len(messages) - 1:
                added += [self.eos_id, *self.encode("\n")]
            tokens += added
            mask += [message.masked] * len(added)
        if self.max_seq_len is not None:
            tokens, mask = (truncate(t, self.max_seq_len, None) for t in (tokens, mask))
        return tokens, mask

    def __call__(
        self, sample: Mapping[str, Any], inference: bool = False
    ) -> Mapping[str, Any]:
        """Replace ``messages`` of a sample by ``tokens`` and ``mask``."""
        rest = {key: value for key, value in sample.items() if key != "messages"}
        tokens, mask = self.tokenize_messages(
            sample["messages"], add_end_tokens=not inference
        )
        return {**rest, "tokens": tokens, "mask": mask}


smollm2_tokenizer = SmolLM2Tokenizer  # by the name of torchtune's builders
