"""The memory of a run: its updates in a step, its initial content, and its report."""

from array import array
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS, read_visits
from erjepa.checkpoints.manifest import write_manifest
from erjepa.commands.doctor.checks import rank_of
from erjepa.commands.memory.forget import Choice, forget
from erjepa.configs import load
from erjepa.datasets import Pair
from erjepa.packing import PairCollator
from erjepa.replay.retention import EXAMPLE_MASK, marks
from erjepa.training.model import distributed
from erjepa.training.run.inherited import InheritedMemories
from erjepa.training.run.memory import RunMemory
from erjepa.training.run.replay_summary import (
    changed_settings,
    forgetting_warnings,
    inherited_summary,
    replay_summary,
)
from erjepa.training.run.start import find_starts
from erjepa.training.step.passes import PassResult
from tests.harness.data import tokenized_pairs
from tests.harness.memories import write_run

CPU, WIDTH, SIZE = torch.device("cpu"), 8, 12


@pytest.fixture(autouse=True)
def one_rank(monkeypatch):
    monkeypatch.setattr(distributed, "gather_objects", lambda own: [own])
    with rank_of(1):  # without threads, since other tests fork
        yield


class Dataset:
    """Pairs whose tokens are their places."""

    names, starts = ["a.jsonl"], [0]

    def __init__(self):
        parts = [[array("i", [i]) for _ in Pair._fields[1:]] for i in range(SIZE)]
        self.pairs = tokenized_pairs(parts)

    def __len__(self):
        return SIZE

    def __getitem__(self, i):
        return self.pairs[i]

    def where(self, i):
        return f"a.jsonl:{i + 1}"


class TwoDatasets(Dataset):
    """The first five pairs are of one, the others of another."""

    names, starts = ["a.jsonl", "b.jsonl"], [0, 5]


class Labelled(Dataset):
    """Pairs of three targets, eight, three and one."""

    labels = [0] * 8 + [1] * 3 + [2]

    def __init__(self):
        super().__init__()
        ends = [array("i", [9 + label]) for label in self.labels]
        parts = [[*self.pairs[i].segments[:-1], ends[i]] for i in range(SIZE)]
        self.pairs = tokenized_pairs(parts)


class Texts:
    fingerprint = "x"

    def __call__(self, segments):
        return str(segments[0]), str(segments[2])


class Model(torch.nn.Module):
    embed_dim, vocab_size, num_positions = WIDTH, 99, 99


@pytest.fixture
def memory_of(tmp_path):
    """The memory of a run with these keys."""

    def make(dataset=None, resumed=None, **overrides):
        keys = {"selection": "uniform", "address_dim": None, "address_top_k": None}
        keys = {f"replay.{key}": value for key, value in keys.items()}
        keys |= {key.replace("__", "."): value for key, value in overrides.items()}
        written = [f"{k}={'null' if v is None else v}" for k, v in keys.items()]
        cfg = load("tiny_synth", [f"output_dir={tmp_path}", *written])
        run = SimpleNamespace(
            cfg=replace(cfg, batch_size=3),
            dataset=dataset or Dataset(),
            model=Model(),
            slot_settings=cfg.replay,
            collators=SimpleNamespace(new=PairCollator(views="shared")),
            texts=Texts(),
            device=CPU,
            split=None,
        )
        _, starts = find_starts(cfg, resume=resumed is not None)
        earlier = InheritedMemories(cfg, Texts.fingerprint, starts)
        return RunMemory(run, earlier, resumed)

    return make


def start(memory):
    """Start a run with the memory, and return the passes that compute its scores."""
    passes = Rescoring(memory._run.model)
    memory.load(0, offered=None, passes=passes)
    return passes


def saved(memory, folder):
    """A checkpoint with the memory."""
    checkpoint = folder / "epoch_0"
    checkpoint.mkdir()
    memory.write(checkpoint)
    write_manifest(checkpoint)
    return checkpoint


def resume(memory, step, offered):
    offered = torch.arange(offered)
    memory.load(step, lambda _: offered, passes=None)


def outcome(*ids, jepa=None, labels=2.0):
    """Of a pass over examples: their JEPA errors, and a cross-entropy of twice that."""
    jepa = torch.tensor([0.5] * len(ids) if jepa is None else jepa)
    embeddings = torch.randn(
        len(ids), WIDTH, generator=torch.Generator().manual_seed(sum(ids))
    )
    return PassResult(
        example_ids=torch.tensor(ids),
        loss=torch.tensor(1.0),
        lm=2 * labels * jepa,
        labels=torch.full((len(ids),), labels),
        jepa=jepa,
        source=embeddings,
        predicted=embeddings[None],
        target=embeddings[None],
        terms={},
    )


def step(memory, number, new, errors=()):
    """A step of ``new`` pairs, whose replayed ones come to these errors."""
    entries = memory.entries(new.example_ids, new.source)
    draw = memory.draw(entries)
    drawn = draw.example_ids
    replayed = outcome(*drawn, jepa=[*errors, *[0.5] * len(drawn)][: len(drawn)])
    memory.update(number, entries, new, draw, replayed)
    return draw


def test_without_weight_there_is_none(memory_of, tmp_path):
    memory = memory_of(replay__weight=0)
    assert not memory.is_on and memory.replay is None and memory.share == 0
    assert replay_summary(memory, 8) == "none" and inherited_summary(memory, 8) == []
    memory.write(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    with pytest.raises(ValueError, match="replay.weight=0 has none; set it to False"):
        memory_of(replay__weight=0, log_example_errors=True)


@pytest.mark.parametrize(("score", "times"), [("jepa", 1.0), ("lm", 2.0)])
def test_a_step_stores_new_pairs_and_refreshes_replayed_ones(memory_of, score, times):
    memory = memory_of(replay__score=score, replay__score_update_rate=0.5)
    empty = step(memory, 1, outcome(0, 1, 2, jepa=[0.1, 0.2, 0.4]))
    assert not empty.example_ids
    slots = memory.replay.memory
    assert slots.example_ids.tolist() == [0, 1, 2]
    assert slots.scores.tolist() == pytest.approx(
        [0.1 * times, 0.2 * times, 0.4 * times]
    )
    assert slots.segments([2])[0][2] == array("i", [2])
    # Example 1 is in the step, so that it is not replayed in it.
    draw = step(memory, 2, outcome(1, 3, jepa=[0.3, 0.6]), errors=[0.8, 0.8])
    assert sorted(draw.example_ids) == [0, 2] and draw.checksum != empty.checksum
    assert slots.scores.tolist() == pytest.approx(
        [0.45 * times, 0.3 * times, 0.6 * times, 0.6 * times]
    )
    assert slots.replay_counts.tolist() == [1, 0, 1, 0]


def test_examples_of_several_datasets_have_ids_of_their_own(memory_of):
    memory = memory_of(TwoDatasets())
    assert memory.origins.ids(torch.tensor([4, 5])).tolist() == [4, 1 << 32 | 5]
    assert [memory.where(i) for i in (4, 1 << 32 | 5)] == ["a.jsonl:5", "a.jsonl:6"]
    step(memory, 1, outcome(4, 5))
    assert memory.replay.memory.example_ids.tolist() == [4, 1 << 32 | 5]
    metrics = memory.origins.metrics(
        outcome(3, 7, 8, jepa=[0.1, 0.2, 0.4]), outcome(1 << 32 | 5)
    )
    assert {name: round(float(value), 6) for name, value in metrics.items()} == {
        **{"lm_loss_a": 0.2, "jepa_loss_a": 0.1, "replayed_a": 0},
        **{"lm_loss_b": 0.6, "jepa_loss_b": 0.3, "replayed_b": 1},
    }
    assert memory_of().origins.metrics(outcome(3), outcome(1)) == {}


def test_a_dataset_keeps_its_label_in_later_runs(memory_of):
    """Whatever the names of the datasets of these."""
    earlier = ["jan/a.jsonl", "feb/b.jsonl"]
    for count, labels in ((1, ("a", "a_2")), (2, ("a", "b", "a_2"))):
        memory = memory_of()
        memory.origins.inherited = earlier[:count]
        replayed = outcome(*(origin << 32 for origin in range(-count, 1)), -1 << 32)
        counts = [1] * (count - 1) + [2, 1]
        expected = {f"replayed_{at}": n for at, n in zip(labels, counts, strict=True)}
        assert memory.origins.metrics(outcome(3), replayed) == expected
    memory = memory_of(TwoDatasets())
    memory.origins.inherited = earlier
    metrics = memory.origins.metrics(outcome(3, 7), outcome(3))
    assert metrics["replayed_a_2"] == 1
    assert {"lm_loss_a", "lm_loss_b"} < metrics.keys()  # as in validation


def test_errors_of_new_and_replayed_pairs_are_logged(memory_of, tmp_path):
    memory = memory_of(log_example_errors=True, replay__score="lm")
    memory.load(0, offered=None, passes=None)
    step(memory, 1, outcome(7, jepa=[0.5]))
    step(memory, 2, outcome(8, jepa=[0.25])._replace(jepa=torch.zeros(0)), errors=[1.5])
    memory.write(tmp_path)
    visits = read_visits(tmp_path / EXAMPLE_ERRORS).to_numpy().tolist()
    assert visits[0] == [1, 7, False, 1.0, 0.5] and visits[2] == [2, 7, True, 3.0, 1.5]
    assert visits[1][:4] == [2, 8, False, 0.5] and visits[1][4] != visits[1][4]


@pytest.mark.parametrize(
    ("keys", "share", "can_draw", "summary"),
    [
        ({}, 0, True, "up to 8 pairs a step, by uniform; up to 30 pairs are stored"),
        (
            {"budget": 3},
            0,
            True,
            "up to 3 pairs a step, by uniform; up to 30 pairs are",
        ),
        ({"budget": 1}, 0, True, "up to 1 pair a step, by uniform; up to 30 pairs are"),
        ({"share": 0.25}, 0.25, True, "2 pairs a step, by uniform; up to 30 pairs are"),
        (
            {"share": 0.25, "draw_from": "inherited"},
            *(0, False, "none, as no pair is inherited; up to 30 pairs are"),
        ),
    ],
)
def test_what_a_step_replays(memory_of, keys, share, can_draw, summary):
    keys = {f"replay__{key}": value for key, value in keys.items()}
    memory = memory_of(**keys, replay__capacity=30)
    assert (memory.share, memory.can_draw) == (share, can_draw)
    assert replay_summary(memory, 8).startswith(summary)


def test_a_resumed_run_has_the_memory_of_its_checkpoint(memory_of, tmp_path):
    memory = memory_of(log_example_errors=True)
    memory.load(0, offered=None, passes=None)
    for number in range(1, 5):
        step(memory, number, outcome(number, number + 4), errors=[0.9, 0.8])
    checkpoint = saved(memory, tmp_path)
    step(memory, 5, outcome(9))  # what a killed run did after its checkpoint
    memory._errors.flush()
    resumed = memory_of(resumed=checkpoint, log_example_errors=True)
    resume(resumed, step=4, offered=8)
    draw = step(resumed, 5, outcome(9), errors=[0.7])
    assert draw.example_ids and len(resumed.replay) == 9
    assert memory.replay.memory.example_ids.equal(resumed.replay.memory.example_ids)
    resumed._errors.flush()
    steps = [*read_visits(tmp_path / EXAMPLE_ERRORS).step]
    assert steps.count(5) == 1 + len(draw.example_ids)


class Rescoring:
    """Passes that come to an error of a tenth of each pair's place."""

    def __init__(self, model):
        self.model, self.seen = model, []

    def totals(self, batches):
        return None

    def measure(self, batches, totals):
        assert not self.model.training
        ids = sorted(i for batch in batches for i in batch.example_ids.tolist())
        self.seen.append(ids)
        return outcome(*ids, jepa=[i / 10 for i in ids])


@pytest.mark.parametrize("retention", ["surprise", "score", "reservoir", "stratified"])
def test_recomputed_scores_decide_what_stays(memory_of, tmp_path, retention):
    """But where pairs stay at random, only those that do are scored."""
    earlier = write_run(tmp_path / "earlier", *(f"epoch_{i}" for i in range(5)))
    memory = memory_of(
        replay__init_from=earlier,
        replay__init_scores="recomputed",
        replay__init_addresses="recomputed",
        replay__retention=retention,
        replay__capacity=2,
    )
    passes = start(memory)
    at_random = retention in ("reservoir", "stratified")
    first = [[0, 1]] if at_random else [[0, 1, 2], [3, 4], [0, 1]]
    assert passes.seen == first  # of all five, then the addresses of two
    slots = memory.replay.memory
    kept = (slots.example_ids & EXAMPLE_MASK).tolist()
    if not at_random:
        assert kept == [3, 4]
        assert slots.scores.tolist() == pytest.approx([0.3, 0.4])
    assert len(kept) == 2
    assert inherited_summary(memory, 8)[0] == (
        "2 of a.jsonl in memory, 3 left out by replay.capacity=2"
    )


def test_inherited_targets_are_evened_out(memory_of, tmp_path):
    keys = {"replay__retention": "stratified", "replay__init_addresses": "recomputed"}
    first = memory_of(Labelled(), **keys)
    step(first, 1, outcome(*range(SIZE)))
    checkpoint = saved(first, tmp_path)
    second = memory_of(
        Labelled(), **keys, replay__init_from=checkpoint, replay__capacity=6
    )
    start(second)

    def labels():
        places = second.replay.memory.example_ids & EXAMPLE_MASK
        return sorted(Labelled.labels[place] for place in places.tolist())

    assert labels() in ([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 2])
    step(second, 1, outcome(*range(SIZE)))
    assert labels() == [0, 0, 1, 1, 2, 2]  # one of each dataset
    assert int((second.replay.memory.example_ids < 0).sum()) == 3


def test_where_all_targets_differ_the_pairs_with_the_largest_numbers_are_inherited(
    memory_of, tmp_path
):
    """Those that a stratified memory of this size would have kept."""
    first = memory_of()
    step(first, 1, outcome(*range(SIZE)))
    pairs = first.replay.memory.segments(range(SIZE))
    numbers = marks(pairs, first.replay.generator.initial_seed())[:, 1]
    keys = {"replay__init_from": saved(first, tmp_path), "replay__capacity": 5}
    keys |= {"replay__init_addresses": "recomputed", "replay__retention": "stratified"}
    memory = memory_of(**keys)
    start(memory)
    kept = memory.replay.memory.example_ids & EXAMPLE_MASK
    assert kept.tolist() == sorted(numbers.argsort(descending=True)[:5].tolist())


def test_inherited_pairs_are_kept_apart_and_scored_anew(memory_of, tmp_path):
    earlier = write_run(tmp_path / "earlier", *(f"epoch_{i}" for i in range(5)))
    memory = memory_of(
        replay__init_from=earlier,
        replay__init_scores="recomputed",
        replay__init_addresses="recomputed",
        replay__draw_from="inherited",
        replay__capacity=7,
    )
    passes = start(memory)
    assert passes.seen == [[0, 1, 2], [3, 4]]  # a step's pairs at a time
    assert memory._run.model.training
    slots = memory.replay.memory
    assert slots.scores.tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert slots.capacity == 7 + 5
    assert all(example < 0 for example in slots.example_ids.tolist())
    assert memory.where(slots.example_ids[3].item()) == "a.jsonl:4"
    assert memory.can_draw and inherited_summary(memory, 8) == [
        "5 of a.jsonl in memory",
        "up to 8 replayed per step",
    ]
    draw = step(memory, 1, outcome(*range(8)))
    assert set(draw.example_ids) <= set(slots.example_ids[:5].tolist())
    assert len(memory.replay) == 5 + 7  # the new ones evict each other alone


def test_settings_that_differ_from_the_earlier_runs_are_named(memory_of, tmp_path):
    settings = {"replay__capacity": 60, "replay__retention": "stratified"}
    runs = [tmp_path / "first", tmp_path / "second"]
    for run, more in zip(runs, ({}, {"replay__budget": 3}), strict=True):
        run.mkdir()
        memory = memory_of(**settings, **more)
        assert changed_settings(memory) == ""
        start(memory)
        saved(memory, run)
    keys = {"replay__init_from": runs[0], "replay__init_addresses": "recomputed"}
    assert changed_settings(memory_of(**settings, **keys)) == ""
    assert changed_settings(memory_of(**keys, replay__retention="stratified")) == (
        f"replay.capacity=10000 (60 in {runs[0]})"
    )
    keys["replay__init_from"] = f"[{runs[0]},{runs[1]}]"
    assert changed_settings(memory_of(**keys, replay__capacity=60)) == (
        f"replay.budget=null (3 in {runs[1]}), "
        f"replay.retention=score (stratified in {runs[0]}, stratified in {runs[1]})"
    )
    # A memory that was made without a run has no settings of one.
    keys["replay__init_from"] = write_run(tmp_path / "made", "epoch_0")
    assert changed_settings(memory_of(**keys, replay__capacity=7)) == ""


def test_a_memory_without_addresses_joins_none_that_has_them(memory_of, tmp_path):
    runs = [tmp_path / "with", tmp_path / "without"]
    for run, address in zip(runs, ("sparse", "none"), strict=True):
        run.mkdir()
        saved(memory_of(replay__address=address), run)
    keys = {"replay__init_from": f"[{runs[0]},{runs[1]}]"}
    message = "without.* written with none .* or set replay.init_addresses=recomputed"
    for key in ("replay.init_from", "continue_from"):
        with pytest.raises(ValueError, match=f"^{key}: .*{message}"):
            start(memory_of(**keys, replay__selection="content"))
        keys["continue_from"] = runs[1]


@pytest.mark.parametrize("draw_from", ["inherited", "all"])
def test_an_empty_memory_is_none(memory_of, tmp_path, draw_from):
    """A run that inherits it trains as one without, and so does that run when it is resumed."""
    earlier = write_run(tmp_path / "earlier", "epoch_0")
    forget(earlier, Choice(source="a.jsonl"))
    keys = {"replay__init_from": earlier, "replay__draw_from": draw_from}
    keys |= {"replay__share": 0.25, "replay__score": "lm"}
    memory = memory_of(**keys, replay__init_addresses="recomputed")
    start(memory)
    (warning,) = forgetting_warnings(memory._run.cfg, memory, num_new=8)
    assert warning.startswith(f"{earlier}: the memory is empty")
    share = 0.25 if draw_from == "all" else 0
    assert (memory.share, memory.can_draw) == (share, bool(share))
    assert inherited_summary(memory, 8) == []
    assert replay_summary(memory, 8).startswith(
        "2 pairs" if share else "none, as no pair is"
    )
    resumed = memory_of(**keys, resumed=saved(memory, tmp_path))
    assert (resumed.share, resumed.can_draw) == (share, bool(share))


@pytest.mark.slow
def test_a_resumed_run_goes_on_without_the_inherited_pairs(memory_of, tmp_path):
    """Its steps keep their size, whatever was deleted in between."""
    keys = {"replay__init_from": write_run(tmp_path / "earlier", "epoch_0")}
    keys |= {"replay__draw_from": "inherited", "replay__share": 0.25}
    memory = memory_of(**keys, replay__init_addresses="recomputed")
    start(memory)
    checkpoint = saved(memory, tmp_path)
    forget(tmp_path, Choice(source="a.jsonl (1)"))
    resumed = memory_of(**keys, resumed=checkpoint)
    resume(resumed, step=1, offered=2)
    assert resumed.share == 0.25 and inherited_summary(resumed, 8) == []
    assert replay_summary(resumed, 8) == (
        "none, as all inherited pairs have been deleted; a step has 6 new pairs; up to 10,000 "
        "pairs are stored"
    )
