"""FLOPs calculated from the shapes equal those that torch counts at run time."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torchtune.models.llama3 import lora_llama3
from torchtune.models.llama3_2 import llama3_2

from erjepa.models.transformers.builders import decoder as transformers_decoder
from erjepa.objective.decoder import PackedDecoder
from erjepa.objective.flops import StepFlops
from erjepa.packing import PairCollator, dense_mask
from tests.harness.models import (
    BASE_SHAPE,
    VOCAB,
    random_pairs,
    related_pairs,
    small_decoder,
)
from tests.harness.transformers_models import write_folder


def without_adapters():
    """Every layer trained, embeddings and head frozen."""
    decoder = llama3_2(**{**BASE_SHAPE, "vocab_size": VOCAB})
    decoder.tok_embeddings.weight.requires_grad_(False)
    return decoder


def partly_trained():
    """LoRA whose first layer is frozen."""
    decoder = small_decoder()
    decoder.layers[0].requires_grad_(False)
    return decoder


def fully_trained():
    """Every weight; embeddings and head are one."""
    return llama3_2(**{**BASE_SHAPE, "vocab_size": VOCAB})


def adapters_of_the_output():
    """The output projection is not tied, and has an adapter."""

    def build(scale_factor, **kwargs):
        return lora_llama3(apply_lora_to_output=True, **kwargs)

    return small_decoder(builder=build)


@pytest.mark.parametrize(
    "build",
    [
        *(small_decoder, without_adapters, partly_trained, fully_trained),
        adapters_of_the_output,
    ],
)
@pytest.mark.parametrize("num_pairs", [1, 5])
@pytest.mark.parametrize("train_on_input", [False, True])
def test_a_pass_by_torchs_count(build, num_pairs, train_on_input):
    """One row and no padding, so torch runs what is counted.

    But for attention: torch counts all of a row's positions seeing all, we those that the
    mask lets see each other.
    """
    decoder = build()
    model = PackedDecoder(decoder, num_trained_tokens=1)
    batch = PairCollator(predictor_ids=[94], train_on_input=train_on_input)(
        related_pairs(num_pairs)
    )
    if num_pairs > 1:
        assert batch.num_projected < batch.num_labels
    with (
        FlopCounterMode(display=False) as counter,
        sdpa_kernel(SDPBackend.MATH),  # the others are not counted on the CPU
    ):
        output = model(batch)
        sum(part.sum() for part in output).backward()
    counts = counter.get_flop_counts()["Global"]
    counted = StepFlops(decoder)
    attention = counted._per_attended * batch.attention_area
    linear = sum(n for op, n in counts.items() if op is torch.ops.aten.mm)
    assert counted(batch) - attention == linear
    products = sum(n for op, n in counts.items() if op is torch.ops.aten.bmm)
    assert batch.tokens.numel() == batch.num_tokens
    assert counted._per_attended * batch.num_tokens**2 == products


@pytest.mark.parametrize("views", ["shared", "standalone", "none"])
def test_attention_is_counted_where_the_mask_admits_it(views):
    collator = PairCollator(views=views, predictor_ids=[94], row_length=64)
    batch = collator(related_pairs(20))
    assert len(batch.tokens) > 1
    padding = batch.tokens.numel() - batch.num_tokens
    assert batch.attention_area == dense_mask(batch.end).sum() - padding


def test_what_pairs_share_counts_once():
    counted, collator = StepFlops(small_decoder()), PairCollator(predictor_ids=[94])
    pairs = random_pairs(4)
    assert counted(collator(pairs * 3)) == counted(collator(pairs))
    apart = sum(counted(collator([pair])) for pair in pairs)
    assert counted(collator(pairs)) < apart


def test_attention_by_hand():
    decoder = small_decoder()
    batch = PairCollator(views="none")(random_pairs(1))
    length = batch.num_tokens
    assert batch.attention_area == length * (length + 1) // 2
    # Two products of 32 multiply-adds a pair, thrice (forward, two gradients), in 2 layers.
    assert StepFlops(decoder)._per_attended == 2 * 2 * 32 * 3 * 2


def test_experts_count_by_how_many_a_token_is_sent_to(tmp_path):
    """Nearly as torch counts: a router and biases are counted otherwise."""
    pytest.importorskip("transformers")
    write_folder(tmp_path, "gpt_oss")
    decoder = transformers_decoder(str(tmp_path)).float()
    model = PackedDecoder(decoder)
    batch = PairCollator(predictor_ids=[], views="shared")(random_pairs(8))
    with FlopCounterMode(display=False) as counter:
        output = model(batch)
        (output.logits.sum() + output.predicted.sum()).backward()
    counted = StepFlops(decoder)(batch)
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.02)
