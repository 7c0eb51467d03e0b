"""The forward pass with FlexAttention's mask, on CUDA and, where possible, on a CPU."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torchtune import training

from erjepa.objective import attention
from erjepa.objective.decoder import PackedDecoder
from erjepa.objective.loss import JEPALoss
from erjepa.packing import PairCollator
from tests.harness.cases import DEVICES
from tests.harness.models import PREDICTOR_IDS, random_pairs, small_decoder


def packed(views):
    """Several rows of more than one block each, and padding at the end of them."""
    collator = PairCollator(views=views, predictor_ids=PREDICTOR_IDS, row_length=256)
    batch = collator(random_pairs(40))
    assert len(batch.tokens) > 1 and batch.num_tokens < batch.tokens.numel()
    return batch


def model(attention):
    decoder = small_decoder(num_heads=2)  # kernels take heads of 16 and more
    model = PackedDecoder(decoder, num_trained_tokens=2, attention=attention)
    torch.nn.init.normal_(model.predictor)
    return model


def assert_same(output, expected, tolerance):
    for name, value in expected._asdict().items():
        torch.testing.assert_close(
            getattr(output, name), value, rtol=tolerance, atol=tolerance, msg=name
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("views", ["shared", "standalone"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_what_the_dense_mask_does(views, device, monkeypatch):
    if device == "cpu":
        monkeypatch.setattr(attention, "_compiled", lambda: flex_attention)
    batch = packed(views).to(torch.device(device))
    with torch.no_grad():
        dense, output = (model(kind).to(device)(batch) for kind in ("dense", "flex"))
    assert_same(output, dense, 1e-5 if device == "cpu" else 1e-4)


@pytest.mark.slow
def test_compiled_layers_compile_flex_attention_on_its_own(monkeypatch):
    monkeypatch.setenv("TORCH_COMPILE_BACKEND", "eager")
    torch._dynamo.reset()  # of graphs in other tests
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(flex_attention, dynamic=False, backend=counter)
    monkeypatch.setattr(attention, "_compiled", lambda: compiled)
    batch, with_layers = packed("shared"), model("flex")
    training.compile_model(with_layers.decoder)
    with torch.no_grad():
        assert_same(with_layers(batch), model("dense")(batch), 1e-5)
    assert counter.frame_count == 1


def test_nothing_leaves_the_device_and_nothing_is_read_from_it():
    """Tensors without data: they cannot be read, nor meet any of another device."""
    batch, decoder = packed("shared").to(torch.device("meta")), model("flex").to("meta")
    seen = []

    def sum_of_inputs(query, key, value, *, mask, **_):
        seen.append(mask)
        return query + key + value

    for layer in decoder.decoder.layers:
        layer.attn._attention_call = sum_of_inputs
    loss, lm = JEPALoss()(decoder(batch), batch, 10, 5)
    loss.backward()
    assert [type(mask) for mask in seen] == [BlockMask] * 2
    assert seen[0].kv_indices.is_meta and loss.is_meta and lm.is_meta
    trained = [p for p in decoder.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.is_meta for p in trained)
