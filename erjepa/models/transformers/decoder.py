"""A decoder of transformers as the objective sees one: embed tokens, run the body, project.

The body runs under the mask of the rows' trees, one for each kind of its layers, at the positions
that tokens have in their own texts. All of it is the public interface of transformers' models:
``inputs_embeds``, ``attention_mask`` and ``position_ids``.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel

from erjepa.packing import Attention, Window, attention_mask


class TransformersDecoder(nn.Module):
    """A causal language model of transformers that reads packed pairs.

    Parameters have the names that they have in transformers; tied embeddings are one parameter.

    Args:
        model: a causal language model; its parameters may be on the meta device.

    Raises:
        ValueError: if it has no layers, attention heads or positions by their usual names.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.config = model.config
        body = model.base_model
        self._windows = windows_of_layers(self.config)
        for holder, name in (
            (body, "layers"),
            (self.config, "num_attention_heads"),
            (self.config, "max_position_embeddings"),
        ):
            if not hasattr(holder, name):
                raise ValueError(
                    f"model: {type(holder).__name__} has no {name}; choose a model whose layers "
                    "attend under a mask"
                )
        if self.config.tie_word_embeddings:
            output = model.get_output_embeddings()
            model.set_output_embeddings(
                _TiedOutput(model.get_input_embeddings(), output.bias)
            )
        # The model's parts are parts of this; the model itself is not, for names to stay.
        for name, part in model.named_children():
            self.add_module(name, part)
        head = copy.copy(model)
        head._modules = {
            name: _Passed() if part is body else part
            for name, part in model.named_children()
        }
        self._held = {"model": model, "body": body, "head": head}

    @property
    def tok_embeddings(self) -> nn.Embedding:
        return self._held["body"].get_input_embeddings()

    @property
    def layers(self) -> nn.ModuleList:
        return self._held["body"].layers

    @property
    def output(self) -> nn.Module:
        return self._held["model"].get_output_embeddings()

    @property
    def max_seq_len(self) -> int:
        return self.config.max_position_embeddings

    @property
    def num_heads(self) -> int:
        return self.config.num_attention_heads

    @property
    def head_dim(self) -> int:
        width = self.config.hidden_size // self.config.num_attention_heads
        return getattr(self.config, "head_dim", None) or width

    def attend_by(self, attention: Attention) -> None:
        """As :meth:`~erjepa.objective.backend.Backend.attend_by`.

        Raises:
            ValueError: if transformers has no FlexAttention for this model.
        """
        model, name = self._held["model"], "flex_attention"
        if attention == "flex" and not model._supports_flex_attn:
            raise ValueError(
                f"model: {type(model).__name__} has no FlexAttention; set attention=dense"
            )
        if attention != "flex":
            # Fused attention leaves out the caps of Gemma 2's scores.
            is_capped = getattr(self.config, "attn_logit_softcapping", None)
            name = "sdpa" if model._supports_sdpa and not is_capped else "eager"
        model.set_attn_implementation(name)

    def body(
        self, hidden: Tensor, end: Tensor, input_pos: Tensor, attention: Attention
    ) -> Tensor:
        """As :meth:`~erjepa.objective.backend.Backend.body`."""
        body = self._held["body"]
        if attention == "causal":
            return body(inputs_embeds=hidden, use_cache=False).last_hidden_state
        masks = {}
        for window in set(self._windows.values()):
            mask = attention_mask(
                end, hidden.dtype, attention, depth=input_pos, window=window
            )
            masks[window] = mask[:, None] if isinstance(mask, Tensor) else mask
        of_kinds = {kind: masks[window] for kind, window in self._windows.items()}
        return body(
            inputs_embeds=hidden,
            attention_mask=of_kinds if len(masks) > 1 else masks.popitem()[1],
            position_ids=input_pos,
            use_cache=False,
        ).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states after the final norm, [q, H] -> [q, V], as the model makes them."""
        return self._held["head"](inputs_embeds=hidden[None], use_cache=False).logits[0]

    @torch.inference_mode()
    def generate_greedy(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop_tokens: Sequence[int],
        pad_id: int,
    ) -> list[list[int]]:
        """As :meth:`~erjepa.objective.backend.Backend.generate_greedy`, by ``generate``."""
        model = self._held["model"]
        device = self.tok_embeddings.weight.device
        width = max(map(len, prompts))
        tokens = [[pad_id] * (width - len(p)) + list(p) for p in prompts]
        real = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
        self.attend_by("dense")
        return model.generate(
            input_ids=torch.tensor(tokens, device=device),
            attention_mask=torch.tensor(real, device=device),
            generation_config=GenerationConfig(
                do_sample=False,
                max_new_tokens=max_new_tokens,
                eos_token_id=list(stop_tokens),
                pad_token_id=pad_id,
            ),
        )[:, width:].tolist()


def windows_of_layers(config: PretrainedConfig) -> dict[str, Window | None]:
    """The window of each kind of layer that a model has; ``None``: its layers see all."""
    size = getattr(config, "sliding_window", None)
    windows = {
        "sliding_attention": Window(size) if size else None,
        "chunked_attention": Window(
            getattr(config, "attention_chunk_size", None) or 0, chunked=True
        ),
    }
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if size else "full_attention"]
    return {kind: windows.get(kind) for kind in sorted(set(kinds))}


class _TiedOutput(nn.Module):
    """The output projection by the weight of the embeddings, which stay theirs."""

    bias: nn.Parameter | None

    def __init__(self, embeddings: nn.Embedding, bias: nn.Parameter | None) -> None:
        super().__init__()
        self._embeddings = (embeddings,)  # no part of this module
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> Tensor:
        return self._embeddings[0].weight

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight, self.bias)


class _Passed(nn.Module):
    """In place of a body: gives what it is given."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> "_Hidden":
        return _Hidden(inputs_embeds)


class _Hidden(tuple):
    """What a body returns, of hidden states alone; all else of it is ``None``."""

    def __new__(cls, hidden: Tensor) -> "_Hidden":
        return super().__new__(cls, (hidden,))

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None
