"""Without replay and JEPA loss, the objective equals that of torchtune's LoRA SFT recipe.

Compares torchtune's collator, decoder and loss, with the label shift of its recipe, with one packed
pass of the full chats, to 1e-5.
"""

import pytest
import torch
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX, padded_collate_sft
from torchtune.modules.loss import CEWithChunkedOutputLoss

from erjepa.objective.decoder import PackedDecoder
from erjepa.objective.loss import JEPALoss
from erjepa.packing import PairCollator
from tests.harness.models import random_pairs, small_decoder


def torchtune_sft(decoder, pairs, train_on_input):
    """Loss as in torchtune's ``lora_finetune_distributed`` on one padded batch."""
    samples = []
    for pair in pairs:
        prompt = [*pair.source, *pair.bridge]
        tokens = [*prompt, *pair.target]
        ignored = 0 if train_on_input else len(prompt)
        labels = [CROSS_ENTROPY_IGNORE_IDX] * ignored + tokens[ignored:]
        samples.append({"tokens": tokens, "labels": labels})
    batch = padded_collate_sft(samples)
    labels = batch["labels"]
    ends = torch.full((len(pairs), 1), CROSS_ENTROPY_IGNORE_IDX)
    labels = torch.hstack((labels[..., 1:], ends))
    loss_fn = CEWithChunkedOutputLoss()
    decoder.set_num_output_chunks(loss_fn.num_output_chunks)
    return loss_fn(decoder(batch["tokens"]), labels)


@pytest.mark.parametrize("train_on_input", [False, True])
def test_equals_torchtunes_sft(train_on_input):
    pairs = random_pairs(9)
    decoder = small_decoder()
    expected = torchtune_sft(decoder, pairs, train_on_input)
    expected.backward()
    reference = {
        n: p.grad.clone() for n, p in decoder.named_parameters() if p.requires_grad
    }
    decoder.zero_grad()

    batch = PairCollator(views="none", row_length=64, train_on_input=train_on_input)(
        pairs
    )
    loss_fn = JEPALoss(jepa_weight=0.0)
    output = PackedDecoder(decoder)(batch)
    loss, _ = loss_fn(output, batch, batch.num_labels, batch.num_pairs)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    assert len(output.source) == 0
    assert batch.num_tokens == sum(
        len(p.source) + len(p.bridge) + len(p.target) for p in pairs
    )
    for name, gradient in reference.items():
        mine = decoder.get_parameter(name).grad
        assert gradient.abs().max() > 1e-6
        torch.testing.assert_close(mine, gradient, rtol=1e-5, atol=1e-6)
