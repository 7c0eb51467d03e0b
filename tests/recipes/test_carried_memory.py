"""A run on new data inherits the memory of an earlier run."""

import functools
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS, read_visits
from erjepa.checkpoints.stored_memory import open_memory
from erjepa.commands.memory import main as forget
from erjepa.commands.memory.create import create
from erjepa_recipe.lora_finetune_distributed_erjepa import (
    FinetuneRecipeERJEPA as Recipe,
)
from tests.harness.runs import (
    assert_close_logs,
    assert_resumes,
    at_start,
    flip,
    kill_at_step,
    read_metrics,
    slots_of,
    small_config,
    train,
    train_and_kill,
)

NEW = {
    "replay__selection": "mixed",
    "replay__budget": 6,
    "replay__capacity": 40,
    "replay__retention": "balanced",
    "replay__reserve": 0.6,
    "epochs": 1,
    "save_every_n_steps": 2,
}


@pytest.fixture(scope="module")
def earlier(base, data, tmp_path_factory):
    """A run on the first data: 36 slots."""
    output_dir = tmp_path_factory.mktemp("earlier")
    settings = {"replay__capacity": 36, "replay__selection": "uniform", "epochs": 1}
    train(small_config(base, data, output_dir, batch_size=8, **settings))
    return output_dir


def carry_on(base, data, output_dir, **overrides):
    settings = {**NEW, "batch_size": 8, **overrides}
    return small_config(base, data, output_dir, **settings)


def read(recipe):
    slots = slots_of(recipe)
    where = [recipe._memory.where(i) for i in slots["example_ids"].tolist()]
    return {**slots, "where": where}


def test_the_memory_is_carried_on_whole(base, data, earlier, other_data, tmp_path):
    cfg = carry_on(base, other_data, tmp_path, replay__init_from=earlier)
    seen = {}
    with pytest.MonkeyPatch.context() as patch:
        step = Recipe._train_step

        def first(self, *args):
            seen.setdefault("start", slots_of(self))
            return step(self, *args)

        patch.setattr(Recipe, "_train_step", first)
        ((start, end),) = train(cfg, 1, lambda recipe: (seen["start"], read(recipe)))
    stored = open_memory(earlier)
    ids, scores, counts, tokens = (
        stored.tensors[name]
        for name in ("example_ids", "scores", "replay_counts", "tokens")
    )
    assert torch.equal(start["scores"], scores) and len(ids) == 36
    assert torch.equal(start["replay_counts"], counts) and counts.sum() > 0
    assert torch.equal(start["tokens"], tokens)
    assert torch.equal(start["example_ids"] & 0xFFFFFFFF, ids)
    # No new example is one of them, and 0.6 of 40 slots keep being theirs.
    assert bool((start["example_ids"] < 0).all())
    inherited = [i for i in end["example_ids"].tolist() if i < 0]
    assert len(inherited) == 24 and len(end["example_ids"]) == 40
    about = open_memory(tmp_path).about
    assert about.inherited == 1 and len(about.origins) == 2
    texts = [
        json.loads(line)
        for line in (tmp_path / "epoch_0" / "memory" / "texts.jsonl").open()
    ]
    assert [row["where"] for row in texts] == end["where"]
    files_and_lines = {*stored.places().values()}
    assert sum(row["where"] in files_and_lines for row in texts) == 24
    assert f"{data}:" in min(files_and_lines)
    assert all(row["source"].split()[0].isdigit() and row["target"] for row in texts)


def test_a_carried_memory_selects_as_its_run_would_have(
    base, data, earlier, other_data, tmp_path
):
    """Same state, same generator: whatever the seed and the capacity of the new run."""

    def draws(recipe):
        replay, drawn = recipe._memory.replay, []
        generator = torch.Generator().manual_seed(0)
        ids = torch.arange(10**6, 10**6 + 8)
        for _ in range(4):
            embeddings = torch.randn(8, replay.memory.address_table.projection.shape[1])
            addresses = replay.encode(
                torch.randn(embeddings.shape, generator=generator)
            )
            drawn.append(replay.draw(ids, [((1,),)] * 8, addresses).segments)
        return drawn

    cfg = small_config(
        base,
        data,
        earlier,
        batch_size=8,
        replay__capacity=36,
        replay__selection="uniform",
        epochs=1,
        resume_from_checkpoint=True,
    )
    expected = at_start(cfg, 1, draws)
    settings = {"replay__selection": "uniform", "replay__budget": 8, "seed": 5}
    new = carry_on(base, other_data, tmp_path, replay__init_from=earlier, **settings)
    mine = at_start(new, 1, draws)
    assert mine == expected and all(len(drawn) == 8 for drawn in mine)


def test_carried_on_by_any_number_of_ranks(base, earlier, other_data, tmp_path):
    memories = []
    for ranks in (1, 2):
        cfg = carry_on(
            base,
            other_data,
            tmp_path / str(ranks),
            batch_size=8 // ranks,
            replay__init_from=earlier,
            replay__init_addresses="recomputed",
        )
        memories.append(train(cfg, ranks, slots_of)[0])
    memory, other = memories
    assert [m["replayed"] for m in read_metrics(tmp_path / "1")] == [6, 6, 6]
    assert_close_logs(tmp_path / "2", tmp_path / "1")
    assert torch.equal(memory["example_ids"], other["example_ids"])
    for name in ("address_values", "address_indices"):
        torch.testing.assert_close(memory[name], other[name], rtol=1e-4, atol=1e-5)


def test_a_run_that_carries_on_resumes_bit_for_bit(base, earlier, other_data, tmp_path):
    settings = {
        "replay__init_from": earlier,
        "replay__retention": "reservoir",
        "log_example_errors": True,
    }
    run = functools.partial(carry_on, base, other_data, **settings)
    assert_resumes(run, tmp_path, kill_at_step(3))
    whole, part = tmp_path / "whole", tmp_path / "part"
    files = ("memory/slots.safetensors", "memory/memory.json", "memory/texts.jsonl")
    for file in files:
        ours, theirs = (out / "epoch_0" / file for out in (part, whole))
        assert ours.read_bytes() == theirs.read_bytes()
    visits = read_visits(part / EXAMPLE_ERRORS)
    assert visits.equals(read_visits(whole / EXAMPLE_ERRORS))
    metrics = read_metrics(whole)
    for replayed, name in ((False, "jepa_loss"), (True, "replay_jepa_loss")):
        for step, logged in enumerate(metrics, start=1):
            own = visits[(visits.step == step) & (visits.replayed == replayed)]
            assert own.jepa_loss.mean() == pytest.approx(logged[name], rel=1e-3)
    assert {*visits.example[visits.replayed == 0]} == set(range(24))
    assert (visits.example < 0).any()


def test_a_run_starts_with_a_memory_that_was_made(base, data, other_data, tmp_path):
    made = tmp_path / "made"
    create(made, small_config(base, data, "none"), number=10)
    settings = {"replay__init_from": made, "replay__init_addresses": "recomputed"}
    cfg = carry_on(base, other_data, tmp_path / "run", **settings)
    (memory,) = train(cfg, 1, slots_of)
    assert int((memory["example_ids"] < 0).sum()) == 10
    assert [m["replayed"] for m in read_metrics(tmp_path / "run")] == [6, 6, 6]
    stored = open_memory(tmp_path / "run")
    assert stored.about.origins == [str(data), str(other_data)]


@pytest.mark.slow
def test_a_run_resumes_without_the_pairs_that_were_deleted(
    base, earlier, other_data, tmp_path
):
    settings = {"replay__init_from": earlier, "log_example_errors": True}
    train_and_kill(carry_on(base, other_data, tmp_path, **settings), 1, kill_at_step(3))
    about = open_memory(tmp_path).about
    forget(["forget", str(tmp_path), "--source", about.origins[0]])
    cfg = carry_on(base, other_data, tmp_path, resume_from_checkpoint=True, **settings)
    (memory,) = train(cfg, 1, slots_of)
    assert sorted(memory["example_ids"].tolist()) == list(range(24))
    assert [metrics["replayed"] for metrics in read_metrics(tmp_path)] == [6, 6, 6]
    assert (read_visits(tmp_path / EXAMPLE_ERRORS).example >= 0).all()


def test_a_run_from_another_s_checkpoint_keeps_none_of_its_files(
    base, earlier, other_data, tmp_path
):
    cfg = carry_on(
        base,
        other_data,
        tmp_path,
        replay__weight=0,
        checkpointer__checkpoint_dir=earlier / "epoch_0",
        checkpointer__checkpoint_files="[model-00001-of-00001.safetensors]",
    )
    train(cfg)
    theirs, ours = earlier / "epoch_0", tmp_path / "epoch_0"
    assert (theirs / "memory").is_dir() and not (ours / "memory").exists()
    weights = "adapter/adapter_model.safetensors"
    assert (ours / weights).read_bytes() != (theirs / weights).read_bytes()
    assert json.loads((ours / "progress.json").read_text())["steps"] == 3


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"replay__address_dim": 64}, "address_dim is 64, but .*recomputed"),
        (
            {"replay__address": "dense"},
            "replay.address is dense, but .* with sparse .* that wrote it, or set .*recomputed",
        ),
        ({"replay__init_from": "nowhere"}, "nowhere does not exist"),
    ],
)
def test_what_cannot_be_carried_on(
    base, earlier, other_data, tmp_path, settings, message
):
    settings = {"replay__init_from": earlier, **settings}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(carry_on(base, other_data, tmp_path, **settings))
    assert not list(tmp_path.glob("epoch*"))


def test_a_damaged_or_foreign_memory_leaves_nothing_behind(
    base, earlier, other_data, tmp_path
):
    copy, out = tmp_path / "copy", tmp_path / "out"
    about = copy / "epoch_0" / "memory" / "memory.json"
    slots = about.with_name("slots.safetensors")

    def refused(message):
        with pytest.raises(ValueError, match=message):
            train(carry_on(base, other_data, out, replay__init_from=copy))
        assert not out.exists()
        shutil.rmtree(copy)

    shutil.copytree(earlier, copy)
    slots.write_bytes(slots.read_bytes()[:-100])
    refused("slots.safetensors cannot be read")
    shutil.copytree(earlier, copy)
    flip(slots)
    refused("slots.safetensors is damaged")
    shutil.copytree(earlier, copy)
    (copy / "epoch_0" / "manifest.json").unlink()
    values = json.loads(about.read_text())
    about.write_text(json.dumps({**values, "tokenizer": "another"}))
    refused("tokens of another tokenizer")


def test_addresses_are_computed_where_replayed_pairs_have_no_views(
    base, data, other_data, tmp_path
):
    settings = {"loss__jepa_weight": 0, "replay__score": "lm", "epochs": 1}
    first = {"batch_size": 8, "replay__selection": "uniform", **settings}
    train(small_config(base, data, tmp_path / "first", **first))
    settings |= {"replay__init_addresses": "recomputed"}
    settings |= {"replay__init_from": tmp_path / "first", "replay__retention": "score"}
    cfg = carry_on(base, other_data, tmp_path / "second", **settings)
    memory = at_start(cfg, 1, slots_of)
    addresses = memory["address_values"]
    assert len(addresses) == len(memory["scores"]) and (addresses != 0).any(1).all()


@pytest.fixture(scope="module")
def with_a_long_pair(base, other_data, tmp_path_factory):
    """A run whose memory has one pair that other runs' rows do not hold."""
    folder = tmp_path_factory.mktemp("long")
    lines = other_data.read_text().splitlines()
    record = json.loads(lines[5])
    record["messages"][1]["content"] = "the dog " * 40
    lines[5] = json.dumps(record)
    source = folder / "long.jsonl"
    source.write_text("\n".join(lines) + "\n")
    settings = {"epochs": 1, "batch_size": 8}
    train(small_config(base, source, folder / "run", **settings))
    return folder / "run"


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"max_seq_len": 200},
            r"1 of 24 pairs do not fit max_seq_len=200; the longest, slot \d+ of "
            r".*memory \(.*long.jsonl:6\), takes \d+ tokens with its views. Raise",
        ),
        (
            {"model__max_seq_len": 200},
            r"slot \d+ of .*memory \(.*long.jsonl:6\) has a sequence of \d+ tokens, "
            "but the model has 200 positions. Set it to 200 and skip_too_long=True",
        ),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_pair_longer_than_the_rows_stops_before_the_first_step(
    base, with_a_long_pair, other_data, tmp_path, settings, message, ranks
):
    settings = {"replay__init_from": with_a_long_pair, "batch_size": 2, **settings}
    with pytest.raises(ValueError, match=message):
        train(carry_on(base, other_data, tmp_path, **settings), ranks)
    assert not (tmp_path / "logs" / "metrics.txt").exists()


def test_longer_pairs_are_skipped_where_new_ones_are(
    base, with_a_long_pair, other_data, tmp_path
):
    settings = {
        "replay__init_from": with_a_long_pair,
        "max_seq_len": 200,
        "skip_too_long": True,
        "replay__retention": "score",
        "replay__reserve": 0.0,
        "stop__steps": 1,
    }
    out = tmp_path / "out"
    memory = at_start(carry_on(base, other_data, out, **settings), 1, slots_of)
    inherited = [i & 0xFFFFFFFF for i in memory["example_ids"].tolist() if i < 0]
    assert sorted(inherited) == [i for i in range(24) if i != 5]
    # Kept, it stops the run that resumes with shorter rows.
    whole = carry_on(
        base, other_data, tmp_path / "whole", **settings | {"max_seq_len": 512}
    )
    train(whole)
    shorter = settings | {"resume_from_checkpoint": True, "stop__steps": 3}
    with pytest.raises(ValueError, match="1 of .* pairs do not fit max_seq_len=200"):
        train(carry_on(base, other_data, tmp_path / "whole", **shorter))


def test_a_token_outside_the_vocabulary_stops_before_the_first_step(
    base, earlier, other_data, tmp_path
):
    copy = shutil.copytree(earlier / "epoch_0" / "memory", tmp_path / "copy")
    tensors = load_file(copy / "slots.safetensors")
    tensors["tokens"][-1] = 10**6
    save_file(tensors, copy / "slots.safetensors")
    cfg = carry_on(base, other_data, tmp_path / "out", replay__init_from=copy)
    with pytest.raises(ValueError, match="slot 35 has the token 1000000; the vocab"):
        train(cfg)
