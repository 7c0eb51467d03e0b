"""Attention as matrix products equals torch's, in outputs and gradients."""

import pytest
import torch
import torch.nn.functional as F
from torchtune.models.gemma2 import gemma2

from erjepa.objective.attention import MaskedAttention
from erjepa.objective.backend import TorchtuneParts
from erjepa.packing import PairCollator, attention_mask, dense_mask
from tests.harness.models import PREDICTOR_IDS, random_pairs, small_decoder


def refuse(*args, **kwargs):
    raise AssertionError("torchtune's attention was called")


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)]
)
def test_outputs_and_gradients(dtype, tolerance):
    torch.manual_seed(0)
    batch = PairCollator(predictor_ids=PREDICTOR_IDS, row_length=256)(random_pairs(30))
    rows, length = batch.tokens.shape
    assert rows > 1 and batch.num_tokens < batch.tokens.numel()
    exact = [torch.randn(rows, 3, length, 16, requires_grad=True) for _ in range(3)]
    weights = torch.randn(rows, 3, length, 16)
    expected = F.scaled_dot_product_attention(*exact, dense_mask(batch.end)[:, None])
    (expected * weights).sum().backward()
    inputs = [x.detach().to(dtype).requires_grad_() for x in exact]
    mask = attention_mask(batch.end, dtype)
    output = MaskedAttention(refuse)(*inputs, mask=mask, dropout_p=0.0, is_causal=False)
    (output * weights.to(dtype)).sum().backward()
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(output.float(), expected, **close)
    for mine, reference in zip(inputs, exact, strict=True):
        torch.testing.assert_close(mine.grad.float(), reference.grad, **close)


@pytest.mark.parametrize(
    ("mask", "dropout"),
    [(None, 0.0), (torch.ones(1, 2, 2).bool(), 0.0), (torch.zeros(1, 2, 2), 0.1)],
)
def test_any_other_mask_is_torchtunes(mask, dropout):
    calls = []
    query = torch.randn(1, 1, 2, 4)
    attention = MaskedAttention(lambda *args, **kwargs: calls.append(kwargs))
    attention(query, query, query, mask=mask, dropout_p=dropout, is_causal=False)
    assert calls == [{"mask": mask, "dropout_p": dropout, "is_causal": False}]


def test_a_decoder_is_wrapped_once():
    decoder = small_decoder()
    TorchtuneParts(decoder).attend_by("dense")
    calls = [layer.attn._attention_call for layer in decoder.layers]
    TorchtuneParts(decoder).attend_by("dense")
    assert [layer.attn._attention_call for layer in decoder.layers] == calls


def test_attention_of_another_kind_is_refused():
    with torch.device("meta"):
        decoder = gemma2(
            vocab_size=64,
            num_layers=1,
            num_heads=2,
            head_dim=8,
            num_kv_heads=1,
            embed_dim=16,
            intermediate_dim=32,
            max_seq_len=64,
        )
    with pytest.raises(ValueError, match="model: Gemma2Attention .* choose a model"):
        TorchtuneParts(decoder).attend_by("dense")
