"""Compiled layers share their graphs, whose shapes are static while rows have one shape."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torchtune.models.llama3_2 import lora_llama3_2
from torchtune.training import set_default_dtype

from erjepa.objective import PackedDecoder
from erjepa.packing import PairCollator
from erjepa.training.model.adapter_layers import correct_dora, set_trainable_dtype
from erjepa.training.run.packed_rows import require_packable
from tests.harness.cases import some_of
from tests.harness.models import BASE_SHAPE, random_pairs, small_decoder


@pytest.fixture(autouse=True)
def own_graphs():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=64):
        yield
    torch._dynamo.reset()


def compiled(decoder, backend):
    for layer in decoder.layers:
        layer.compile(backend=backend)
    return PackedDecoder(decoder, attention="dense")


def graphs(num_layers, *, use_dora):
    with set_default_dtype(torch.bfloat16):
        decoder = lora_llama3_2(
            ["q_proj", "v_proj"],
            apply_lora_to_mlp=True,
            use_dora=use_dora,
            lora_rank=4,
            lora_alpha=8,
            **{**BASE_SHAPE, "num_layers": num_layers},
        )
    set_trainable_dtype(decoder, torch.float32)
    correct_dora(decoder)
    counter = CompileCounterWithBackend("eager")
    model = compiled(decoder, counter)
    model(PairCollator()(random_pairs(4))).logits.float().sum().backward()
    return counter.frame_count


@pytest.mark.parametrize(
    "use_dora", some_of([False, True], [False]), ids=["LoRA", "DoRA"]
)
def test_all_layers_are_compiled_once(use_dora):
    assert graphs(1, use_dora=use_dora) == graphs(4, use_dora=use_dora) == 1


def test_training_has_static_graphs_though_packed_rows_were_tried():
    """As those of a resumed run, which does not try them."""
    has_symbols = []

    def backend(graph, inputs):
        has_symbols.append(any(isinstance(i, torch.SymInt) for i in inputs))
        return graph.forward

    model, pairs = compiled(small_decoder(), backend), random_pairs(8)
    require_packable(model, pairs, torch.device("cpu"), "x")
    assert len(has_symbols) == 1  # the packed row
    batch = PairCollator(row_length=256)(pairs)
    assert batch.tokens.shape[1] == 256
    model(batch).logits.sum().backward()
    assert len(has_symbols) > 1 and not any(has_symbols)
