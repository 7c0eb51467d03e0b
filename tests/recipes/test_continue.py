"""``continue_from`` starts a run on new data from the weights and memory of another.

Recomputed scores equal the losses of three forward passes of each pair alone, on any number of
ranks. A continued run does not depend on how its steps are divided and resumes bit for bit.
Settings that would make it forget cause a warning.
"""

import functools
import shutil

import pytest
import torch

from erjepa.checkpoints.stored_memory import open_memory
from erjepa.commands.memory.forget import Choice, forget
from erjepa.datasets import Pair
from erjepa.datasets.split import text_of
from erjepa.training.run.replay_summary import inherited_summary, replay_summary
from erjepa.training.step.passes import Passes
from tests.harness.data import write_records
from tests.harness.runs import (
    assert_close_logs,
    assert_resumes,
    at_start,
    kill_at_step,
    read_metrics,
    slots_of,
    small_config,
    train,
    train_and_kill,
    watch_forwards,
)
from tests.reference.three_forwards import reference_loss

LM = {"loss__jepa_weight": 0, "replay__score": "lm", "replay__selection": "uniform"}
CONTINUAL = {
    **{**LM, "replay__share": 0.5, "replay__draw_from": "inherited"},
    **{"replay__draw_by": "origin", "replay__retention": "balanced"},
}


@pytest.fixture(scope="module")
def first(base, data, tmp_path_factory):
    """Runs on the first data, by what they were trained with, three steps of 8 pairs each."""
    folder = tmp_path_factory.mktemp("first")
    for name, settings in (
        ("paper", {}),
        ("lm", LM),
        ("sft", {"loss__jepa_weight": 0, "replay__weight": 0}),
    ):
        train(config(base, data, folder / name, **settings))
    return folder


def config(base, data, output_dir, **overrides):
    settings = {"batch_size": 8, "stop__steps": 3, "epochs": 1, **overrides}
    return small_config(base, data, output_dir, **settings)


@pytest.mark.parametrize(
    ("before", "settings"),
    [
        ("paper", CONTINUAL),
        ("lm", {"replay__init_addresses": "recomputed"}),
        ("paper", {"replay__init_scores": "recomputed"}),
    ],
    ids=["JEPA to token loss", "token loss to JEPA", "JEPA to JEPA"],
)
def test_scores_are_recomputed_under_the_model_that_the_run_starts_from(
    base, first, other_data, tmp_path, before, settings
):
    def expected(recipe):
        recipe._model.eval()
        has_views = recipe._prepared.collators.new.views != "none"
        views = {
            "views": "shared" if has_views else "none",
            "predictor_ids": recipe._prepared.collators.new.predictor_ids,
            "predictor_rows": recipe._model.predictor if has_views else None,
        }
        memory = recipe._memory.replay.memory
        for cut in memory.segments(range(len(memory))):
            pair = [Pair(0, *cut)]
            yield reference_loss(recipe._model.decoder, pair, **views)[1 + has_views]

    def start(ranks, inspect):
        own = {"batch_size": 10 // ranks, "continue_from": first / before, **settings}
        return at_start(
            config(base, other_data, tmp_path / str(ranks), **own), ranks, inspect
        )

    one, errors = start(
        1, lambda recipe: (slots_of(recipe), [e.item() for e in expected(recipe)])
    )
    assert one["scores"].tolist() == pytest.approx(errors, rel=1e-4)
    assert len(set(errors)) == 24
    two = start(2, slots_of)
    for name in one.keys() & {"scores", "address_values", "address_indices"}:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5)
    if "replay__init_addresses" in settings:
        assert (one["address_values"] != 0).any(dim=1).all()


def test_a_selection_that_reads_no_addresses_needs_none(
    base, first, other_data, tmp_path
):
    """With the JEPA loss, after a run without: its memory has no addresses."""
    settings = {**CONTINUAL, "loss__jepa_weight": 0.5, "continue_from": first / "lm"}
    cfg = config(base, other_data, tmp_path, **settings)
    assert at_start(cfg, 1, lambda r: r._memory.replay.memory.address_table) is None


def test_scores_of_another_kind_cannot_be_kept(base, first, other_data, tmp_path):
    settings = {"continue_from": first / "paper", "replay__init_scores": "kept"}
    cfg = config(base, other_data, tmp_path, **CONTINUAL, **settings)
    with pytest.raises(
        ValueError, match="init_scores=kept.*=jepa, this run by lm; set"
    ):
        train(cfg)


@pytest.mark.parametrize("weight", [0, 1])
def test_a_folder_that_does_not_exist_is_named_by_its_key(
    base, other_data, tmp_path, weight
):
    settings = {"continue_from": tmp_path / "misspelt", "replay__weight": weight}
    cfg = config(base, other_data, tmp_path / "run", **settings)
    with pytest.raises(
        FileNotFoundError, match="continue_from=.*misspelt does not exist"
    ):
        train(cfg)
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_memory_is_continued_by_its_weights_and_files(
    base, first, other_data, tmp_path
):
    settings = {"continue_from": first / "sft", **CONTINUAL}
    with pytest.raises(
        FileNotFoundError, match="no memory.* set init_from.*memory create"
    ):
        train(config(base, other_data, tmp_path, **settings))


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"continue_from": "lm", **CONTINUAL}, None),
        ({"continue_from": "lm", **LM, "replay__capacity": 40}, "capacity=40 is less"),
        ({"continue_from": "paper"}, "replay.selection=content recalls hardly any"),
        ({"init_from": "lm", **LM}, "this run replays none of it: continue_from="),
        (
            {"init_from": "paper", **CONTINUAL, "replay__weight": 0},
            "none of it: replay.weight=0",
        ),
        (
            {"replay__init_from": "lm", "replay__weight": 0},
            "none of it: replay.weight=0",
        ),
        ({"init_from": "sft", **LM}, None),
        ({"base_adapters": "lm", **LM}, "none of it: replay.init_from="),
    ],
)
def test_what_forgets_is_warned_of(
    base, first, other_data, tmp_path, warned, settings, warning
):
    carried = ("continue_from", "init_from", "replay__init_from")
    settings = {k: first / v if k in carried else v for k, v in settings.items()}
    if merged := settings.get("base_adapters"):
        settings["base_adapters"] = f"[{first / merged}]"
    cfg = config(base, other_data, tmp_path, **settings)
    said = at_start(cfg, 1, lambda _: warned)
    assert len(said) == (warning is not None)
    assert all(warning in text for text in said)


def test_what_is_carried_on_is_said(base, data, first, other_data, tmp_path, carried):
    def said(recipe):
        return [
            *carried,
            *inherited_summary(recipe._memory, 8),
            replay_summary(recipe._memory, 8),
        ]

    cfg = config(
        base, other_data, tmp_path / "a", continue_from=first / "paper", **CONTINUAL
    )
    stored = "up to 10,000 pairs are stored"
    assert at_start(cfg, 1, said) == [
        f"weights of {first / 'paper' / 'epoch_0_step_3'}",
        f"24 of {data} in memory",
        "4 replayed per step",
        f"4 pairs a step, by uniform; {stored}",
    ]
    cfg = config(base, other_data, tmp_path / "b", continue_from=first / "lm", **LM)
    assert at_start(cfg, 1, said)[2:] == [
        "up to 8 replayed per step, fewer as new ones are stored",
        f"up to 8 pairs a step, by uniform; {stored}",
    ]
    cfg = config(base, other_data, tmp_path / "c", **CONTINUAL)
    assert at_start(cfg, 1, said) == [
        f"none, as no pair is inherited; {stored} for later runs"
    ]


def test_ranks_and_kills_change_nothing(base, first, other_data, tmp_path):
    settings = {"continue_from": first / "paper", **CONTINUAL, "save_every_n_steps": 2}
    settings |= {"replay__capacity": 10, "replay__retention": "reservoir"}
    run = functools.partial(config, base, other_data, **settings)
    whole = assert_resumes(run, tmp_path, kill_at_step(3))
    train(run(tmp_path / "two", batch_size=4), 2)
    metrics = read_metrics(tmp_path / "whole")
    assert [step["replayed"] for step in metrics] == [4, 4, 4]
    assert_close_logs(tmp_path / "two", tmp_path / "whole")
    slots = "epoch_0_step_3/memory/slots.safetensors"
    ours, theirs = (
        (tmp_path / name / slots).read_bytes() for name in ("part", "whole")
    )
    assert ours == theirs
    # Ten of the inherited pairs, drawn from alone, have made no room for ten new ones.
    ids = whole["memory"]["example_ids"]
    assert int((ids < 0).sum()) == int((ids >= 0).sum()) == 10


def test_memories_of_two_branches_merge(base, data, first, other_data, tmp_path):
    third = write_records(tmp_path / "third.jsonl", 16, seed=7)
    branches = {}
    for name, source in (("left", other_data), ("right", third)):
        branches[name] = tmp_path / name
        settings = {**CONTINUAL, "continue_from": first / "lm"}
        train(config(base, source, branches[name], **settings, stop__steps=2))

    def read(recipe):
        replay, memory = recipe._memory.replay, recipe._memory
        slots = range(len(replay))
        return (
            sorted(memory.where(int(i)) for i in replay.memory.example_ids),
            sorted(map(repr, replay.memory.segments(slots))),
            inherited_summary(memory, 8)[0],
        )

    both = {
        "replay__init_from": [str(branches["left"]), str(branches["right"])],
        "continue_from": branches["left"],
    }
    cfg = config(base, other_data, tmp_path / "merged", **CONTINUAL, **both)
    one, two = (at_start(cfg, ranks, read) for ranks in (1, 2))
    assert one == two
    where, pairs, said = one
    # The 24 pairs that both started from, and what two steps of each branch had of its own.
    assert len({*where}) == len({*pairs}) == len(where) == 24 + 8 + 8
    assert said == f"24 of {data}, 8 of {other_data}, 8 of {third} in memory"


def test_pairs_of_two_files_of_one_name_are_kept_apart(base, other_data, tmp_path):
    runs, source = [tmp_path / "january", tmp_path / "february"], tmp_path / "new.jsonl"
    for seed, run in enumerate(runs):
        write_records(source, 8, seed=seed)
        train(config(base, source, run, **LM, stop__steps=1))
    overrides = {"replay__init_from": list(map(str, runs))}
    cfg = config(base, other_data, tmp_path / "march", **LM, **overrides)

    def read(recipe):
        memory = recipe._memory.replay.memory
        ids = memory.example_ids.tolist()
        pairs = map(repr, memory.segments(range(len(memory))))
        return ids, {*pairs}, [recipe._memory.where(i) for i in ids]

    ids, pairs, places = at_start(cfg, 1, read)
    assert len({*ids}) == len(pairs) == 16
    assert sorted(places) == sorted(
        f"{source}:{line}" for line in range(1, 9) for _ in runs
    )


def test_addresses_of_two_projections_are_recomputed(base, data, other_data, tmp_path):
    runs = [tmp_path / "one", tmp_path / "two"]
    for seed, run in enumerate(runs):
        train(config(base, data, run, seed=seed, stop__steps=1))
    overrides = {"replay__init_from": list(map(str, runs)), "replay__capacity": 50}
    refused = config(base, other_data, tmp_path / "kept", **overrides)
    with pytest.raises(ValueError, match="two.* another projection .*one.*recomputed"):
        train(refused)
    overrides["replay__init_addresses"] = "recomputed"
    train(config(base, other_data, tmp_path / "recomputed", **overrides))


def test_a_run_resumes_after_an_inherited_pair_was_deleted(
    base, first, other_data, tmp_path
):
    settings = {**CONTINUAL, "continue_from": first / "lm"}
    train(config(base, other_data, tmp_path, **settings, stop__steps=2))
    stored = open_memory(tmp_path)
    inherited = stored.tensors["example_ids"][stored.tensors["example_ids"] < 0]
    forget(tmp_path, Choice(ids=inherited[:1].tolist()))
    cfg = config(base, other_data, tmp_path, **settings, resume_from_checkpoint=True)
    (slots,) = train(cfg, 1, lambda recipe: len(recipe._memory.replay))
    assert slots == len(stored) - 1 + 4


def test_a_memory_that_grows_keeps_the_inherited_pairs(
    base, first, other_data, tmp_path
):
    settings = {**CONTINUAL, "continue_from": first / "lm"}
    small = {"replay__capacity": 8, "stop__steps": 1}
    train(config(base, other_data, tmp_path, **settings, **small))
    again = {"replay__capacity": 20, "resume_changes": "[replay.capacity]"}
    again["resume_from_checkpoint"] = True

    def read(recipe):
        memory = recipe._memory.replay.memory
        return memory.capacity, int((memory.example_ids < 0).sum())

    cfg = config(base, other_data, tmp_path, **settings, **again)
    assert at_start(cfg, 1, read) == (20 + 8, 8)


def test_a_memory_does_not_shrink_on_resuming(base, first, other_data, tmp_path):
    settings = {**CONTINUAL, "continue_from": first / "lm"}
    train(
        config(
            base, other_data, tmp_path, **settings, replay__capacity=8, stop__steps=1
        )
    )
    again = {"replay__capacity": 6, "resume_changes": "[replay.capacity]"}
    again["resume_from_checkpoint"] = True
    with pytest.raises(ValueError, match="at least the checkpoint's 8, got 6;"):
        train(config(base, other_data, tmp_path, **settings, **again))


def test_a_memory_that_was_turned_off_is_not_missed_silently(
    base, first, other_data, tmp_path
):
    settings = {**LM, "init_from": first / "lm", "replay__init_from": first / "lm"}
    off = {"replay__weight": 0, "stop__steps": 1}
    train(config(base, other_data, tmp_path, **settings, **off))
    again = {"resume_from_checkpoint": True, "resume_changes": "[replay.weight]"}
    with pytest.raises(ValueError, match="has no memory of .*lm; start a new run"):
        train(config(base, other_data, tmp_path, **settings, **again))


def test_other_pairs_are_no_reason_to_resume(base, data, other_data, tmp_path):
    """The memory would take them for those that it has."""
    train(config(base, data, tmp_path, **LM, stop__steps=1))
    again = {**LM, "resume_from_checkpoint": True, "resume_changes": "[dataset]"}
    with pytest.raises(ValueError, match=f"continue_from={tmp_path}"):
        train(config(base, other_data, tmp_path, **again))


def test_a_resumed_run_with_another_score_recomputes_all(base, data, tmp_path):
    settings = {"replay__selection": "uniform", "stop__steps": 1}
    train(config(base, data, tmp_path, **settings))
    before = open_memory(tmp_path).tensors["scores"]
    again = {"resume_from_checkpoint": True, "resume_changes": "[replay.score]"}
    again |= {**settings, "replay__score": "lm"}

    def scores(recipe):
        return recipe._memory.replay.memory.scores.clone()

    after = at_start(config(base, data, tmp_path, **again), 1, scores)
    assert (after > 3).all() and (before < 2).all()  # nats per label; cosine distances


def test_held_out_pairs_are_not_inherited(base, data, first, tmp_path):
    settings = {"replay__selection": "uniform", "replay__init_from": first / "lm"}
    settings |= {"validation__size": 0.5, "replay__score": "lm"}

    def read(recipe):
        pairs, memory = recipe._prepared.dataset.pairs, recipe._memory.replay.memory
        held_out = {text_of(pairs[i]) for i in recipe._pairs.held_out}
        slots = (memory.example_ids < 0).nonzero().flatten().tolist()
        stored = {text_of(Pair(0, *cut)) for cut in memory.segments(slots)}
        return held_out, stored

    cfg = config(base, data, tmp_path, **settings)
    held_out, stored = at_start(cfg, 1, read)
    known = {text_of(pair) for pair in open_memory(first / "lm").pairs}
    assert held_out & known and stored == known - held_out


def test_a_memory_without_addresses_is_resumed_or_gets_them(
    base, first, other_data, tmp_path
):
    settings = {"replay__selection": "uniform", "replay__init_from": first / "lm"}
    settings["replay__init_scores"] = "recomputed"
    kept = config(base, other_data, tmp_path / "kept", **settings, stop__steps=1)
    train(kept)
    assert not open_memory(tmp_path / "kept").has_addresses
    settings["resume_from_checkpoint"] = True
    train(config(base, other_data, tmp_path / "kept", **settings, stop__steps=2))
    settings["resume_from_checkpoint"] = False
    settings["replay__init_addresses"] = "recomputed"
    train(config(base, other_data, tmp_path / "new", **settings, stop__steps=1))
    assert open_memory(tmp_path / "new").has_addresses


def test_addresses_that_are_not_stored_take_no_pass(
    base, first, other_data, tmp_path, monkeypatch
):
    passes = []
    monkeypatch.setattr(Passes, "measure", lambda *args: passes.append(args))
    settings = {**CONTINUAL, "replay__init_addresses": "recomputed"}
    settings["continue_from"] = first / "lm"
    cfg = config(base, other_data, tmp_path, **settings)
    found = at_start(cfg, 1, lambda recipe: (len(recipe._memory.replay), len(passes)))
    assert found == (24, 0)


def test_a_file_that_is_written_anew_is_another_dataset(base, data, first, tmp_path):
    cfg = config(base, data, tmp_path / "second", continue_from=first / "lm", **LM)
    train(cfg)
    cfg = config(
        base, data, tmp_path / "third", continue_from=tmp_path / "second", **LM
    )
    (said,) = at_start(cfg, 1, lambda recipe: inherited_summary(recipe._memory, 8)[:1])
    assert said == f"24 of {data} (1), 24 of {data} (2) in memory"


def test_a_first_run_takes_the_passes_of_sft(base, data, tmp_path, monkeypatch):
    seen = watch_forwards(monkeypatch)
    cfg = config(base, data, tmp_path, **CONTINUAL, log_example_errors=True)
    ((seen, slots),) = train(cfg, 1, lambda recipe: (seen, len(recipe._memory.replay)))
    assert [batch.num_pairs for batch in seen] == [8, 8, 8] and slots == 24


@pytest.mark.slow
def test_a_resumed_run_knows_what_its_reservoir_was_offered(base, data, tmp_path):
    settings = {**LM, "replay__capacity": 10, "replay__retention": "reservoir"}
    settings |= {"epochs": 3, "max_steps_per_epoch": 3, "stop__steps": 8}
    settings |= {"save_every_n_steps": 2}

    def read(recipe):
        memory = recipe._memory.replay.memory
        return memory.state.seen[0], memory.example_ids.tolist()

    whole = train(config(base, data, tmp_path / "whole", **settings), 1, read)
    part = tmp_path / "part"
    train_and_kill(
        config(base, data, part, **settings | {"batch_size": 4}), 2, kill_at_step(7)
    )
    resumed = config(base, data, part, resume_from_checkpoint=True, **settings)
    assert train(resumed, 1, read) == whole
    visits = 8 * 8
    assert whole[0][0] <= 44 < visits


def test_a_reservoir_was_not_offered_what_came_before_it(base, data, tmp_path):
    """A run that is resumed once more after it turned replay on is as if it had not stopped."""
    settings = {**LM, "replay__capacity": 10, "replay__retention": "reservoir"}
    settings |= {"epochs": 3, "max_steps_per_epoch": 3}
    whole, part = tmp_path / "whole", tmp_path / "part"
    train(config(base, data, whole, **settings, replay__weight=0, stop__steps=2))
    shutil.copytree(whole, part)
    again = {**settings, "resume_from_checkpoint": True}
    turned_on = {**again, "resume_changes": "[replay.weight]"}

    def read(recipe):
        memory = recipe._memory.replay.memory
        return memory.state.seen[0], memory.example_ids.tolist()

    expected = train(config(base, data, whole, **turned_on, stop__steps=8), 1, read)
    train(config(base, data, part, **turned_on, stop__steps=5))
    assert train(config(base, data, part, **again, stop__steps=8), 1, read) == expected
