"""Measure the activations saved by a step, and calculate the memory to fine-tune Llama-3.2-1B.

``python -m tests.benchmarks.memory`` prints the latter alone. It runs a step of the model on
tensors without data, so it needs neither weights nor a GPU.
"""

import random
import tempfile
from array import array
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torchtune import training
from torchtune.models.llama3_2 import lora_llama3_2_1b
from torchtune.modules.attention_utils import _sdpa_or_flex_attention
from torchtune.modules.peft import get_adapter_params, set_trainable_params

from erjepa.datasets import Pair
from erjepa.objective.decoder import PackedDecoder
from erjepa.objective.loss import JEPALoss
from erjepa.packing import PairCollator
from erjepa.training.model.adapter_layers import set_trainable_dtype
from tests.benchmarks.device import ON_GPU
from tests.benchmarks.setting import (
    BATCH_SIZE,
    build_recipe,
    fresh_recipe,
    pairs_are,
    shared_model,
    stepper,
    write_pairs,
)
from tests.benchmarks.timing import GIB, Row, peak_memory, reset_peak_memory

MODES = {
    "LLM-JEPA": {"replay__weight": 0},
    # As many replayed pairs as new ones, and no two alike, which would be computed once.
    "ER-JEPA": {"replay__neighbors": 64},
}


class SavedBytes:
    """Bytes of the tensors that autograd holds, each storage once, weights left out.

    Args:
        model (torch.nn.Module): whose parameters do not count.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._weights = {p.untyped_storage()._cdata for p in model.parameters()}
        self._holders: Counter[int] = Counter()
        self._now = self.peak = 0
        self._hooks = saved_tensors_hooks(self._pack, lambda saved: saved.tensor)

    def __enter__(self) -> "SavedBytes":
        self._hooks.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> "_Saved":
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._weights:
            if not self._holders[key]:
                self._now += storage.nbytes()
                self.peak = max(self.peak, self._now)
            self._holders[key] += 1
        return _Saved(tensor, self)

    def release(self, tensor: Tensor) -> None:
        """Forget a holder of ``tensor``."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._weights:
            self._holders[key] -= 1
            if not self._holders[key]:
                self._now -= storage.nbytes()


class _Saved:
    def __init__(self, tensor: Tensor, counter: SavedBytes) -> None:
        self.tensor, self._counter = tensor.detach(), counter

    def __del__(self) -> None:
        self._counter.release(self.tensor)


def benchmark(quick: bool) -> list[Row]:
    """Peak of saved activations of ER-JEPA over that of LLM-JEPA; memory of Llama-3.2-1B."""
    peaks = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = shared_model()
        pairs = write_pairs(folder / "pairs.jsonl", 512)
        for mode, settings in MODES.items():
            recipe = build_recipe(model, pairs, folder / mode, **settings)
            step = stepper(recipe)
            with SavedBytes(recipe._model) as saved:
                for _ in range(3 if quick else 6):
                    step()
            peaks[mode] = saved.peak
    setting = f"{pairs_are()}, {BATCH_SIZE} pairs a step"
    rows = [
        Row(f"saved activations, {mode}, {setting}", peak / 2**20, "MiB")
        for mode, peak in peaks.items()
    ]
    rows.append(
        Row(
            "saved activations, ER-JEPA over LLM-JEPA",
            peaks["ER-JEPA"] / peaks["LLM-JEPA"],
            "",
            target="<= 1.1",
        )
    )
    return [*rows, *llama_3_2_1b(), *(measured() if ON_GPU else [])]


def llama_3_2_1b(
    num_pairs: int = 16, pair: tuple[int, int, int, int] = (18, 19, 6, 15)
) -> list[Row]:
    """Memory of a step at the paper's setting: LoRA rank 512 on all linear layers.

    Counts what the step holds when its backward pass begins. Not counted: the allocator's
    slack, the CUDA context, intermediate gradients. New and replayed pairs run one after the
    other, so both passes share the activations' memory.

    Args:
        num_pairs (int): pairs of a micro-batch.
        pair (tuple[int, int, int, int]): tokens of the prompt that pairs share, source, bridge
            and target; the default is the mean of NL-RX-SYNTH.

    Returns:
        list[Row]: GiB.
    """
    prompt, source, bridge, target = pair
    rng = random.Random(0)

    def tokens(count: int) -> array:
        return array("i", rng.choices(range(100, 100_000), k=count))

    prompt, bridge, header = tokens(prompt), tokens(bridge), tokens(5)
    pairs = []
    for i in range(num_pairs):
        asked, answer = prompt + tokens(source), tokens(target)
        pairs.append(Pair(i, asked, bridge, answer, asked, header + answer[:-1]))
    batch = PairCollator(predictor_ids=[0], row_length=2048)(pairs)
    with training.set_default_dtype(torch.bfloat16), torch.device("meta"):
        decoder = lora_llama3_2_1b(
            ["q_proj", "k_proj", "v_proj", "output_proj"],
            apply_lora_to_mlp=True,
            lora_rank=512,
            lora_alpha=1024,
            lora_dropout=0.1,
        )
        set_trainable_dtype(decoder, torch.float32)
        set_trainable_params(decoder, get_adapter_params(decoder))
        model = PackedDecoder(
            decoder, num_trained_tokens=1, trainable_dtype=torch.float32
        )
    for layer in decoder.layers:  # a GPU's attention keeps no scores
        layer.attn._attention_call = _sdpa_or_flex_attention()
    for module in model.modules():
        if hasattr(module, "rope_init"):
            module.rope_init()  # looks at its numbers, so it needs some
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        trained = [p for p in model.parameters() if p.requires_grad]
        with SavedBytes(model) as saved:
            loss, _ = JEPALoss()(model(batch), batch, batch.num_labels, batch.num_pairs)
        loss.backward()
    kinds = {
        "weights": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.nbytes for p in trained),
        "optimizer": 2 * sum(p.nbytes for p in trained),
        "saved activations": saved.peak,
        # In bfloat16 and float32, and the gradient in float32; log-probabilities are saved.
        "logits": batch.num_projected
        * decoder.tok_embeddings.num_embeddings
        * (2 + 4 + 4),
    }
    note = (
        f"{num_pairs} pairs, {batch.num_tokens} tokens in rows of {batch.tokens.shape[1]}, "
        f"{batch.num_labels} labels"
    )
    name = "Llama-3.2-1B in bf16, LoRA rank 512 in fp32"
    rows = [Row(f"{name}: {kind}", size / GIB, "GiB") for kind, size in kinds.items()]
    total = sum(kinds.values()) / GIB
    return [*rows, Row(f"{name}: sum", total, "GiB", target="<= 24", note=note)]


def measured() -> list[Row]:
    """Most memory that steps of the same setting had allocated on the GPU."""
    with fresh_recipe(replay__neighbors=64) as recipe:
        step = stepper(recipe)
        reset_peak_memory()
        for _ in range(3):
            step()
    name = "Llama-3.2-1B in bf16, LoRA rank 512 in fp32"
    return peak_memory(name, target="<= 24", note=f"{BATCH_SIZE} pairs")


if __name__ == "__main__":
    for row in llama_3_2_1b():
        print(f"{row.name:<65}{row.value:8.2f} {row.unit}  {row.note}")
