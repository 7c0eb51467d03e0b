"""A decoder of transformers as the objective uses it: embed tokens, run the body, project.

The body is called through public arguments of transformers' models: ``inputs_embeds``,
``attention_mask``, the mask of the rows' trees for each kind of layer, and ``position_ids``, the
positions of tokens in their own texts.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel

from erjepa.packing import Attention, Window, attention_mask

# Kinds of layers that attend under a mask.
_MASKED = {"full_attention", "sliding_attention", "chunked_attention"}
# Biases that layers with a state add to padding, whose inputs transformers sets to zero.
_BIASES_OF_STATES = ("in_proj.bias", "linear_x.bias")


class TransformersDecoder(nn.Module):
    """A causal language model of transformers that reads packed pairs.

    Parameters keep their names in transformers; tied embeddings are one parameter.

    Args:
        model: a causal language model; its parameters may be on the meta device.

    Raises:
        ValueError: if it lacks the usual names for layers, attention heads or positions.
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
        # The model's children are registered instead of the model, to keep parameter names.
        for name, part in model.named_children():
            self.add_module(name, part)
        head = copy.copy(model)
        head._modules = {
            name: _Passed(body) if part is body else part
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
        """Maximum number of tokens in a text.

        LongRoPE is limited to its original positions: one longer text changes the frequencies of
        all texts in the pass.
        """
        rope = getattr(self.config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":
            return rope["original_max_position_embeddings"]
        return self.config.max_position_embeddings

    @property
    def num_heads(self) -> int:
        return self.config.num_attention_heads

    @property
    def head_dim(self) -> int:
        width = self.config.hidden_size // self.config.num_attention_heads
        return getattr(self.config, "head_dim", None) or width

    @property
    def active_experts(self) -> float:
        """Fraction of a layer's experts that compute a token; 1 if they are not known."""
        config = self.config
        of = ("num_experts", "num_local_experts", "n_routed_experts")
        count = next((n for name in of if (n := getattr(config, name, None))), None)
        active = getattr(config, "num_experts_per_tok", None)
        return active / count if active and count else 1.0

    @property
    def reads_packed_rows(self) -> bool:
        """Whether each token depends on embeddings, positions and a mask alone: False if layers
        carry a state from token to token, or read tokens apart from their embeddings.
        """
        return not (self._is_stateful or self.reads_tokens)

    @property
    def _is_stateful(self) -> bool:
        return bool(self._held["model"]._is_stateful or self._windows.keys() - _MASKED)

    @property
    def _is_changed_by_padding(self) -> bool:
        names = (name for name, _ in self.named_parameters())
        return self._is_stateful and any(n.endswith(_BIASES_OF_STATES) for n in names)

    @property
    def reads_tokens(self) -> bool:
        """Whether layers read tokens apart from their embeddings, as those of Gemma 3n do."""
        return bool(getattr(self.config, "hidden_size_per_layer_input", None))

    def attend_by(self, attention: Attention) -> None:
        """See :meth:`~erjepa.objective.backend.Backend.attend_by`.

        Raises:
            ValueError: if FlexAttention cannot compute the attention of this model.
        """
        model, name = self._held["model"], "flex_attention"
        if attention == "flex":
            self._require_flex(model)
        else:
            # SDPA does not apply Gemma 2's soft cap of attention scores.
            is_capped = getattr(self.config, "attn_logit_softcapping", None)
            name = "sdpa" if model._supports_sdpa and not is_capped else "eager"
        model.set_attn_implementation(name)

    def _require_flex(self, model: PreTrainedModel) -> None:
        if not model._supports_flex_attn:
            raise ValueError(
                f"model: {type(model).__name__} has no FlexAttention; set attention=dense"
            )
        if dropout := getattr(self.config, "attention_dropout", None):
            raise ValueError(
                f"model: config.json has attention_dropout={dropout}, which FlexAttention cannot "
                "apply; set attention=dense, or attention_dropout in that file to 0"
            )

    def body(
        self, hidden: Tensor, end: Tensor, input_pos: Tensor, attention: Attention
    ) -> Tensor:
        """See :meth:`~erjepa.objective.backend.Backend.body`."""
        body = self._held["body"]
        if attention == "causal":
            form = "inputs_embeds" if hidden.is_floating_point() else "input_ids"
            return body(**{form: hidden}, use_cache=False).last_hidden_state
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
        """Return the model's logits of hidden states after the final norm, [q, H] -> [q, V]."""
        return self._held["head"](inputs_embeds=hidden[None], use_cache=False).logits[0]

    @torch.inference_mode()
    def generate_greedy(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop_tokens: Sequence[int],
    ) -> list[list[int]]:
        """See :meth:`~erjepa.objective.backend.Backend.generate_greedy`."""
        if self._is_changed_by_padding and len({*map(len, prompts)}) > 1:
            answer = partial(
                self.generate_greedy,
                max_new_tokens=max_new_tokens,
                stop_tokens=stop_tokens,
            )
            return [answer([prompt])[0] for prompt in prompts]
        model = self._held["model"]
        device = self.tok_embeddings.weight.device
        width = max(map(len, prompts))
        tokens = [[0] * (width - len(p)) + list(p) for p in prompts]
        real = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
        before = self.config._attn_implementation
        self.attend_by("dense")
        try:
            answers = model.generate(
                input_ids=torch.tensor(tokens, device=device),
                attention_mask=torch.tensor(real, device=device),
                generation_config=GenerationConfig(
                    do_sample=False,
                    max_new_tokens=max_new_tokens,
                    eos_token_id=list(stop_tokens),
                    pad_token_id=0,
                ),
            )
        finally:
            model.set_attn_implementation(before)
        return answers[:, width:].tolist()


def windows_of_layers(config: PretrainedConfig) -> dict[str, Window | None]:
    """Return the window of each kind of layer in a model; ``None``: no window."""
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
    """An output projection by the weight of the embeddings, without its own copy of it."""

    bias: nn.Parameter | None

    def __init__(self, embeddings: nn.Embedding, bias: nn.Parameter | None) -> None:
        super().__init__()
        self._embeddings = (embeddings,)  # in a tuple, so that it is not a submodule
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> Tensor:
        return self._embeddings[0].weight

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight, self.bias)


class _Passed(nn.Module):
    """Replaces a body: returns its input embeddings as hidden states."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self._body = (body,)  # in a tuple, so that it is not a submodule

    def __getattr__(self, name: str) -> Any:  # such as a factor of the logits
        return getattr(self.__dict__["_body"][0], name)

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> "_Hidden":
        return _Hidden(inputs_embeds)


class _Hidden(tuple):
    """The output of a body with hidden states only; all other attributes are ``None``."""

    def __new__(cls, hidden: Tensor) -> "_Hidden":
        return super().__new__(cls, (hidden,))

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None
