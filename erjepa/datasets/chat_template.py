"""Tokenization of chats into the segments of a pair, by the tokenizer's own template."""

from array import array
from inspect import signature
from os.path import commonprefix

from torchtune.data import Message
from torchtune.modules.transforms import Transform


def shared_ending(one: list[int], other: list[int]) -> list[int]:
    """Return the tokens after the last content of two chats that differ only in that content.

    Raises:
        ValueError: if the tokens do not differ.
    """
    if one == other:
        raise ValueError(
            "the chat template leaves out the last message of a chat of user and assistant; "
            "choose a chat model"
        )
    return list(commonprefix([one[::-1], other[::-1]]))[::-1]


class ChatTemplate:
    """Splits a tokenized chat at the edges of its contents, for any torchtune tokenizer.

    A template wraps the content of a message in a header and an ending. Two renderings
    whose last contents differ show how many tokens the ending has, so the position of
    the last content token follows from tokenization alone: there are no rules for model
    families and no fixed offsets.

    Raises:
        ValueError: if the tokenizer truncates, cannot render prompts, or has no end-of-turn token.
    """

    def __init__(self, tokenizer: Transform) -> None:
        if getattr(tokenizer, "max_seq_len", None) is not None:
            raise ValueError(
                f"tokenizer.max_seq_len={tokenizer.max_seq_len} would cut a view before "
                "its readout; set tokenizer.max_seq_len=null and use the top-level "
                "max_seq_len instead."
            )
        if "inference" not in signature(tokenizer.__call__).parameters:
            raise ValueError(
                f"tokenizer: {type(tokenizer).__name__} renders no prompts (it has no argument "
                "inference); choose another model family, or a subclass that does"
            )
        self._tokenizer = tokenizer
        user = Message(role="user", content="a")
        self._ending_lengths = {
            "user": len(self._ending([], "user")),
            "assistant": len(self._ending([user], "assistant")),
        }
        ending = self._ending([user], "assistant", inference=False)
        if not ending:
            raise ValueError(
                f"{type(tokenizer).__name__} puts no token after the assistant's "
                "content, so a model could not learn to stop. Use a chat tokenizer."
            )
        self.end_of_turn = getattr(tokenizer, "end_of_turn", ending[0])

    def __call__(self, messages: list[Message]) -> tuple[array, ...]:
        """Return the segments of a :class:`~erjepa.datasets.Pair`; the last message is the target.

        Raises:
            ValueError: if source or target is missing or empty, or if the tokens of the source
                alone are not the first tokens of the chat.
        """
        prompt = self.prompt(messages)
        *context, answer = messages
        source = self._up_to_content(context)
        full = self._up_to_content(messages)
        if full[: len(prompt)] != prompt or prompt[: len(source)] != source:
            if answer.text_content[:1].isspace():
                raise ValueError(
                    "the target begins with white space, which becomes one token with the end of "
                    "the prompt; remove it"
                )
            raise ValueError(
                "the chat template does not extend the source's tokens when the target "
                "follows, so the two views cannot share them"
            )
        if len(full) == len(prompt):
            raise ValueError("the target has no content tokens")
        view = getattr(self._tokenizer, "view", self._up_to_content)
        source_view = view([m for m in context if m.role != "system"])
        return (
            array("i", source),
            array("i", prompt[len(source) :]),
            array("i", [*full[len(prompt) :], self.end_of_turn]),
            array("i", source_view),
            array("i", view([answer])),
        )

    def prompt(self, messages: list[Message]) -> list[int]:
        """Return the tokens of the prompt for the target, which is the last of ``messages``."""
        self.validate(messages)
        *context, _ = messages
        return self._up_to_content([*context, Message(role="assistant", content="")])

    def validate(self, messages: list[Message]) -> None:
        """Check that a chat ends with a source and a target.

        Raises:
            ValueError: if the roles of the last two messages are wrong, or one is empty.
        """
        if len(messages) < 2:
            raise ValueError(
                f"a pair needs a user and an assistant message, got {len(messages)}"
            )
        source, target = messages[-2:]
        if (source.role, target.role) != ("user", "assistant"):
            roles = [m.role for m in messages]
            raise ValueError(
                f"a pair ends with a user and an assistant message, got roles {roles}"
            )
        for name, message in (("source", source), ("target", target)):
            if not message.text_content.strip():
                raise ValueError(f"the {name} ({message.role} message) is empty")

    def _up_to_content(self, messages: list[Message]) -> list[int]:
        tokens = self._render(messages)
        return tokens[: len(tokens) - self._ending_lengths[messages[-1].role]]

    def _ending(
        self, context: list[Message], role: str, inference: bool = True
    ) -> list[int]:
        chats = ([*context, Message(role=role, content=c)] for c in ("a", "b"))
        return shared_ending(*(self._render(chat, inference) for chat in chats))

    def _render(self, messages: list[Message], inference: bool = True) -> list[int]:
        return self._tokenizer({"messages": messages}, inference=inference)["tokens"]
