"""A memory that is made from a dataset, without a run."""

import pytest
from torchtune import config

from erjepa.checkpoints.stored_memory import open_memory
from erjepa.configs import complete, load
from erjepa.datasets import build_dataset
from erjepa.memory.__main__ import main
from erjepa.memory.reading import read_slots
from tests.conftest import write_records


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    return [write_records(folder / f"{i}.jsonl", 20, seed=i) for i in range(2)]


def one(source):
    return ["dataset=erjepa.datasets.paired_dataset", f"dataset.source={source}"]


def create(out, overrides, *options):
    main(["create", str(out), "--config", "tiny_synth", *overrides, *options])
    return open_memory(out)


def segments(stored):
    return [[list(s) for s in pair.segments] for pair in stored.pairs]


def test_pairs_are_drawn_by_the_seed(tmp_path, sources, capsys):
    stored = create(tmp_path / "a", one(sources[0]), "--number", "5")
    assert "5 of 20 pairs are in" in capsys.readouterr().out
    assert stored.about.origins == [str(sources[0])] and stored.about.inherited == 0
    slots = read_slots(stored)
    assert len({slot.example for slot in slots}) == 5 and slots[0].score == 1
    cfg = complete(load("tiny_synth", one(sources[0])))
    dataset = build_dataset(cfg.dataset, config.instantiate(cfg.tokenizer))
    for slot, found in zip(slots, segments(stored), strict=True):
        assert found == [list(part) for part in dataset[slot.example].segments]
        assert slot.source == dataset.source_text(slot.example)
        assert slot.where == dataset.where(slot.example)
    again = create(tmp_path / "b", one(sources[0]), "--share", "0.25")
    assert segments(again) == segments(stored)
    seeded = create(tmp_path / "c", [*one(sources[0]), "seed=5"], "--number", "5")
    assert segments(seeded) != segments(stored)


def test_pairs_of_several_datasets_keep_their_origin(tmp_path, sources):
    parts = ", ".join(
        f"{{_component_: erjepa.datasets.paired_dataset, source: '{source}'}}"
        for source in sources
    )
    stored = create(tmp_path / "a", [f"dataset=[{parts}]"])
    assert stored.about.origins == list(map(str, sources)) and len(stored) == 40
    for slot in read_slots(stored):
        assert slot.where.startswith(slot.origin)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--number", "21"], "--number 21: must be at least 1 and at most 20"),
        (["--number", "0"], "--number 0: must be at least 1"),
        (["--share", "1.5"], "--share 1.5: must be above 0 and at most 1"),
        (["--number", "2", "--share", "0.5"], "not allowed with argument --number"),
    ],
)
def test_errors_are_one_line(tmp_path, sources, options, message, capsys):
    with pytest.raises(SystemExit):
        create(tmp_path / "a", one(sources[0]), *options)
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "a").exists()


def test_nothing_is_written_over(tmp_path, sources, capsys):
    with pytest.raises(SystemExit):
        create(tmp_path, one(sources[0]))
    assert f"{tmp_path} exists; choose another" in capsys.readouterr().err
