"""The calculated bytes of a step equal those that a run holds and the allocator hands out."""

from contextlib import contextmanager

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile
from torchtune import modules, training

from erjepa.commands.doctor.checks import longest_rows, rank_of
from erjepa.commands.doctor.memory import activation_bytes, memory_parts
from erjepa.objective import JEPALoss, PackedDecoder
from erjepa.packing import PairCollator
from erjepa.replay import slot_bytes
from erjepa.training.run.prepared import PreparedRun
from tests.harness.models import (
    BASE_SHAPE,
    PREDICTOR_IDS,
    VOCAB,
    random_pairs,
    small_decoder,
)
from tests.harness.runs import FULL_BUILDER, make_config, small_config, train

LORA = {}
EVERY_WEIGHT = {"model": FULL_BUILDER, "dtype": "bf16"}


def counted(cfg, ranks, inherited=0):
    with rank_of(ranks):
        run = PreparedRun(cfg, torch.device("cpu"))
        return memory_parts(run, longest_rows(run).largest, 1 << 40, inherited)


def held(recipe):
    """Bytes on this rank after a step, and of its gradients before the ranks add them up."""

    def local(tensor):
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    model, memory = recipe._model, recipe._memory.replay.memory
    weights = [*model.parameters(), *model.buffers()]
    kept = [t for state in recipe._optimizer.state.values() for t in state.values()]
    table = memory.address_table
    slots = [memory._example_ids, memory._scores, memory._replay_counts]
    slots += [t for t in vars(table).values() if isinstance(t, torch.Tensor)]
    batches = next(iter(recipe._pairs.loader))
    totals = recipe._passes.totals(batches)
    recipe._passes.forward_backward(batches, totals, last=False)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for module in model.modules():
        if state := getattr(module, "_get_fsdp_state", None):
            group = state()._fsdp_param_group
            for parameter in group.fsdp_params if group else []:
                unsharded = parameter.unsharded_accumulated_grad
                if unsharded is None and parameter._unsharded_param.grad is not None:
                    unsharded = parameter._unsharded_param.grad
                gradients += [] if unsharded is None else [unsharded]
    return {
        "weights": sum(local(t).nbytes for t in weights),
        # Where weights are kept gathered, these are the parameters of the model too.
        "gradients": sum(
            {t.data_ptr(): t.nbytes for t in map(local, gradients)}.values()
        ),
        "optimizer": sum(local(t).nbytes for t in kept),
        "replay memory": sum(t.nbytes for t in slots) + 8 * memory.capacity,
    }


@pytest.mark.parametrize(
    ("overrides", "ranks"), [(LORA, 1), (LORA, 2), (EVERY_WEIGHT, 2)], ids=str
)
def test_a_run_holds_what_is_counted(base, data, tmp_path, overrides, ranks):
    settings = {"batch_size": 2, "stop__steps": 1, "replay__capacity": 50, **overrides}
    cfg = small_config(base, data, tmp_path, **settings)
    measured = train(cfg, ranks, held)[0]
    parts = counted(cfg, ranks)
    assert {name: parts[name] for name in measured} == measured


@pytest.mark.parametrize(("draw_from", "slots"), [("all", 50), ("inherited", 53)])
def test_inherited_pairs_have_slots(base, data, tmp_path, draw_from, slots):
    settings = {"replay__capacity": 50, "replay__draw_from": draw_from}
    cfg = small_config(base, data, tmp_path, **settings)
    slot, projection = slot_bytes(cfg.replay, BASE_SHAPE["embed_dim"])
    parts = counted(cfg, 1, inherited=3)
    assert parts["replay memory"] == slots * slot + projection


def test_a_quantized_base_on_the_cpu_is_gathered_in_bfloat16():
    def gathered(quantized, offloaded):
        keys = {"model.quantize_base": quantized, "fsdp_cpu_offload": offloaded}
        keys["fsdp_reshard_after_forward"] = True
        cfg = make_config([f"{key}={value}" for key, value in keys.items()])
        return counted(cfg, 2)["gathered weights"]

    assert gathered(True, False) < gathered(True, True) == gathered(False, True)


def test_answers_need_all_weights_at_once():
    """Where a step frees those of a layer, a validation does not."""

    def parts(answered, reshards):
        keys = ["model.lora_rank=8", "batch_size=1", "max_seq_len=128"]
        keys += [f"fsdp_reshard_after_forward={reshards}", "validation.size=8"]
        return counted(make_config([*keys, f"validation.generate={answered}"]), 2)

    freed, kept = parts(4, True), parts(4, False)
    of_step = ("gathered weights", "gradients", "activations", "logits", "answers")
    assert sum(freed[part] for part in of_step) == kept["gathered weights"]
    assert freed["answers"] > 0 == kept["answers"] == parts(0, True)["answers"]


@contextmanager
def allocations():
    """Changes of the allocated bytes, in order, after the context."""
    changes = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield changes
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            changes.append((event.start_ns(), event.nbytes()))


def peak(changes):
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


@pytest.mark.parametrize("vocab_size", [VOCAB, 40_000])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("views", ["shared", "none"])
def test_a_pass_allocates_what_is_counted(views, checkpointing, vocab_size):
    """The profiler's bytes are the allocator's. In a model with a large vocabulary, whose weights
    are all trained, the peak of few layers is at another operation than that of all.
    """
    collator = PairCollator(views=views, predictor_ids=PREDICTOR_IDS, attention="dense")
    batch = collator(random_pairs(40))

    def model():
        sizes = {"num_layers": 5, "embed_dim": 64, "vocab_size": vocab_size}
        decoder = small_decoder(**sizes, lora_dropout=0.1)
        if vocab_size > VOCAB:
            decoder.requires_grad_(True)
        return PackedDecoder(decoder, num_trained_tokens=2)

    cfg = make_config(
        [f"enable_activation_checkpointing={checkpointing}"], "tiny_synth"
    )
    real = model()
    torch.nn.init.normal_(real.predictor)
    if checkpointing:
        training.set_activation_checkpointing(
            real, auto_wrap_policy={modules.TransformerSelfAttentionLayer}
        )
    for parameter in real.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                lambda p: setattr(p, "grad", None)
            )
    with allocations() as changes:
        loss, _ = JEPALoss()(real(batch), batch, batch.num_labels, batch.num_pairs)
        loss.backward()
    with rank_of(1):
        found = activation_bytes(cfg, model(), JEPALoss(), batch, torch.device("cpu"))
    assert sum(found) == pytest.approx(peak(changes), rel=0.05)
    assert all(size >= 0 for size in found)


def test_only_activations_are_offloaded():
    def parts(enabled):
        overrides = [f"enable_activation_offloading={enabled}", "row_length=1024"]
        cfg = make_config(overrides, "tiny_synth")
        with rank_of(1):
            run = PreparedRun(cfg, torch.device("cuda"), "flex")
            return memory_parts(run, longest_rows(run).largest, 1 << 40)

    offloaded, plain = parts(True), parts(False)
    assert offloaded.pop("activations") < plain.pop("activations")
    assert offloaded == plain
