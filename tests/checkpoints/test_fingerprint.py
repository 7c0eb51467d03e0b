"""Every key is classified as changing results or not; a change of the former is detected."""

from array import array

import pytest
import torch

from erjepa.checkpoints.fingerprint import (
    DECIDING,
    changed_keys,
    digest_of_weights,
    fingerprint,
)
from erjepa.configs.schema import KEYS
from erjepa.datasets import Pair
from tests.harness.runs import make_config

# Where, how long and how fast a run runs, how it is cut, and what it reports.
FREE = set(
    """
    base_model checkpointer init_from continue_from eval_earlier max_forgetting
    output_dir resume_from_checkpoint resume_changes keep_best keep_epochs keep_last_n
    save_adapter_weights_only save_every_n_steps checkpoint_at_flops epochs stop
    device attention compile num_workers cudnn_deterministic_mode step_timeout
    enable_activation_checkpointing enable_activation_offloading custom_sharded_layers
    fsdp_cpu_offload fsdp_reshard_after_forward
    batch_size gradient_accumulation_steps row_length
    eval_dataset eval_every_n_steps eval_split eval_batch_size max_new_tokens
    task primary databases checkpoint checkpoint_dir base_only merged alignment target_loss
    metric_logger profiler log_every_n_steps log_peak_memory_stats log_collapse
    log_example_errors log_replay_gradients_every_n_steps
    """.split()
)
# Known by the tokens they lead to, or kept under a name of their own.
BY_CONTENT = {"dataset", "tokenizer", "max_seq_len", "skip_too_long", "base_adapters"}
BY_NAME = {"seed", "validation"}


def test_every_key_is_known_to_decide_a_run_or_not():
    kinds = [set(DECIDING), FREE, BY_CONTENT, BY_NAME]
    assert sum(map(len, kinds)) == len(set.union(*kinds))
    assert set.union(*kinds) == {*KEYS}


def pair(i, *tokens):
    return Pair(i, *(array("i", tokens) for _ in range(5)))


def cut(source, bridge):
    return Pair(0, *(array("i", tokens) for tokens in (source, bridge, (4,), (), ())))


PAIRS = (pair(0, 1, 2), pair(1, 3))


def mine(*overrides, pairs=PAIRS, share=0.0):
    cfg = make_config(list(overrides), "tiny_synth")
    return fingerprint(cfg, pairs_of_a_step=16, share=share, pairs=pairs)


@pytest.mark.parametrize(
    "override",
    [
        *(
            "optimizer.lr=1e-3",
            "model.lora_rank=8",
            "replay.weight=0",
            "views=standalone",
        ),
        *("loss.jepa_weight=2", "seed=1", "validation.size=3", "validation.seed=1"),
        *("dtype=bf16", "clip_grad_norm=2", "lr_scheduler.num_warmup_steps=1"),
        *("optimizer=torch.optim.SGD", "shuffle=False"),
    ],
)
def test_what_decides(override):
    assert mine(override) != mine()


def test_what_does_not():
    overrides = ["output_dir=b", "epochs=9", "stop.steps=4", "optimizer.fused=False"]
    overrides += ["batch_size=8", "log_every_n_steps=7", "num_workers=2", "device=null"]
    assert mine(*overrides) == mine()


def test_where_an_inherited_memory_was_does_not_decide():
    uniform = "replay.selection=uniform"
    one, other = (mine(uniform, f"replay.init_from={path}") for path in ("a", "[b,c]"))
    older = {**one, "replay.init_from": "a"}
    assert one == other and changed_keys(older, other, [], "run") == set()
    with pytest.raises(ValueError, match="replay.init_from: True there, False here"):
        changed_keys(older, mine(uniform), [], "run")
    with pytest.raises(ValueError, match="the memory that it started with"):
        changed_keys(mine(uniform), one, ["replay"], "run")


def test_the_data_counts_by_its_tokens():
    digests = {
        mine(pairs=pairs)["dataset"]
        for pairs in (
            [pair(0, 1, 2), pair(1, 3)],
            [pair(0, 1, 2), pair(1, 4)],
            [pair(0, 1), pair(1, 2, 3)],
            [pair(0, 1, 2), pair(2, 3)],
            [cut((1, 2), (3,))],
            [cut((1,), (2, 3))],
            [pair(0, 1, 2)],
        )
    }
    assert len(digests) == 7


def test_the_base_counts_by_its_weights():
    weights = {"a": torch.ones(3, 4, dtype=torch.bfloat16), "b": torch.zeros(5)}
    digests = [digest_of_weights(weights)]
    for name, place in (("a", (1, 2)), ("b", 4)):
        other = {key: weight.clone() for key, weight in weights.items()}
        other[name][place] += 1
        digests.append(digest_of_weights(other))
    assert len(set(digests)) == 3
    assert digest_of_weights({**weights, "c": torch.tensor(1.0)}) not in digests


def test_changes():
    saved = {"seed": 1, "optimizer.lr": 1, "optimizer.betas": [0, 1], "views": "shared"}
    here = {**saved, "optimizer.lr": 2, "optimizer.betas": [0, 2], "optimizer.eps": 3}
    allowed = {"optimizer.lr", "optimizer.betas", "optimizer.eps"}
    assert changed_keys(saved, saved, [], "a") == set()
    assert changed_keys(saved, here, ["optimizer"], "a") == allowed
    assert changed_keys(saved, here, allowed, "a") == allowed
    with pytest.raises(ValueError) as error:
        changed_keys(saved, here, ["optimizer.lr"], "run/epoch_0")
    assert str(error.value).splitlines() == [
        "run/epoch_0 was written with other settings:",
        "  optimizer.betas: [0, 1] there, [0, 2] here",
        "  optimizer.eps: None there, 3 here",
        "Keep what it had, or allow the change: "
        "'resume_changes=[optimizer.betas,optimizer.eps]'",
    ]
    with pytest.raises(ValueError, match="A resumed run keeps its seed"):
        changed_keys(saved, {**saved, "seed": 2}, ["views"], "a")
    with pytest.raises(
        ValueError, match="A resumed run keeps model.lora_rank"
    ) as error:
        changed_keys(mine(), mine("model.lora_rank=8"), [], "a")
    assert "resume_changes" not in str(error.value)


FIXED = """
    seed shuffle max_steps_per_epoch replay.share replay.draw_from validation.size validation.seed
""".split()


@pytest.mark.parametrize("name", ["optimizer.rate", "replayed share", *FIXED])
def test_unknown_changes_are_refused(name):
    known = mine()
    assert (name in known) == (name != "optimizer.rate")
    with pytest.raises(ValueError, match=f"resume_changes: {name} is none of"):
        changed_keys(known, known, [name], "run")


@pytest.mark.parametrize("weight", [0, 1.0])
@pytest.mark.parametrize(
    "key, was, becomes",
    [
        ("dataset", "a", "b"),
        ("replay.on_revisit", "append", "update"),
        ("replay.address_dim", 64, 128),
        ("replay.capacity", 8, 6),
    ],
)
def test_what_a_memory_keeps_is_for_a_run_that_continues_it(key, was, becomes, weight):
    saved = {key: was, "views": "shared", "replay.weight": weight}
    here = {**saved, key: becomes, "views": "standalone"}
    with pytest.raises(ValueError) as error:
        changed_keys(saved, here, [], "run/epoch_0")
    *_, memory, way_on = str(error.value).splitlines()
    names_memory = memory.endswith("set a new output_dir and continue_from=run/epoch_0")
    assert names_memory == bool(weight)
    offered = "views" if weight else f"{key},views"
    assert way_on.endswith(f"'resume_changes=[{offered}]'")


def test_a_memory_may_grow():
    smaller, larger = (mine(f"replay.capacity={slots}") for slots in (6, 8))
    with pytest.raises(ValueError) as error:
        changed_keys(smaller, larger, [], "run")
    assert str(error.value).splitlines()[2:] == [
        "Keep what it had, or allow the change: 'resume_changes=[replay.capacity]'"
    ]


def test_a_step_keeps_its_replayed_share():
    """With another one a position in the data is another."""
    saved, here = mine(share=0.25), mine("replay.weight=0")
    with pytest.raises(ValueError, match="replayed share: 0.25 there, 0.0 here"):
        changed_keys(saved, here, ["replay"], "run")
    with pytest.raises(ValueError, match="the memory that it started with.$"):
        changed_keys(saved, here, [], "run")
    del saved["replayed share"]  # an older checkpoint
    assert changed_keys(saved, here, ["replay"], "run") == {"replay.weight"}
