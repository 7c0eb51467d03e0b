"""Creating a memory from a dataset, without a run."""

import pytest
import torch

from erjepa.checkpoints.stored_memory import open_memory
from erjepa.commands.memory import main
from erjepa.commands.memory.reading import read_slots
from erjepa.configs import load
from erjepa.datasets import build_dataset
from erjepa.datasets.split import hold_out
from erjepa.evaluation.model import load_model
from erjepa.evaluation.run import find_run
from erjepa.replay import EpisodicReplay
from tests.harness.data import write_records
from tests.harness.runs import make_config, train
from tests.reference.three_forwards import pair_losses


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    return [write_records(folder / f"{i}.jsonl", 20, seed=i) for i in range(2)]


def one(source):
    return ["dataset=erjepa.datasets.paired_dataset", f"dataset.source={source}"]


def as_part(source):
    return f"_component_: erjepa.datasets.paired_dataset, source: '{source}'"


def create(out, overrides, *options):
    main(["create", str(out), "--config", "tiny_synth", *overrides, *options])
    return open_memory(out)


def segments(stored):
    return [[list(s) for s in pair.segments] for pair in stored.pairs]


def test_pairs_are_drawn_by_the_seed(tmp_path, sources, capsys):
    stored = create(tmp_path / "a", one(sources[0]), "--number", "5")
    assert "Wrote 5 of 20 pairs to" in capsys.readouterr().out
    assert stored.about.origins == [str(sources[0])] and stored.about.inherited == 0
    slots = read_slots(stored)
    assert slots.example.nunique() == 5 and slots.score[0] == 1
    # As after a run, so that the next one keeps as many of these.
    assert stored.about.state.memory.seen == (20, 0)
    cfg = load("tiny_synth", one(sources[0]))
    dataset = build_dataset(cfg.dataset, cfg.tokenizer.build())
    for slot, found in zip(slots.itertuples(), segments(stored), strict=True):
        assert found == [list(part) for part in dataset[slot.example].segments]
        assert slot.source == dataset.source_text(slot.example)
        assert slot.where == dataset.where(slot.example)
    held_out = hold_out(dataset.pairs, 5).held_out
    cfg = [*one(sources[0]), "validation.size=5"]
    whole = create(tmp_path / "whole", cfg)
    assert len(whole) == 15 and not {*read_slots(whole).example} & {*held_out}
    again = create(tmp_path / "b", one(sources[0]), "--share", "0.25")
    assert segments(again) == segments(stored)
    seeded = create(tmp_path / "c", [*one(sources[0]), "seed=5"], "--number", "5")
    assert segments(seeded) != segments(stored)


def test_pairs_of_several_datasets_keep_their_origin(tmp_path, sources):
    parts = ", ".join(f"{{{part}}}" for part in map(as_part, sources))
    stored = create(tmp_path / "a", [f"dataset=[{parts}]"])
    assert stored.about.origins == list(map(str, sources)) and len(stored) == 40
    for slot in read_slots(stored).itertuples():
        assert slot.where.startswith(slot.origin)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, sources):
    """A run whose model differs from the base."""
    folder = tmp_path_factory.mktemp("trained")
    overrides = [*one(sources[0]), f"output_dir={folder}", "stop.steps=2"]
    train(make_config(overrides, "tiny_synth"))
    return folder


@pytest.mark.parametrize("is_trained", [False, True])
def test_the_most_surprising_are_those_of_the_largest_loss(
    tmp_path, sources, trained, is_trained
):
    """Each pair in a forward pass of its own."""
    options = ["--checkpoint", str(trained)] if is_trained else []
    parts = ", ".join(f"{{{part}}}" for part in map(as_part, sources))
    overrides = [f"dataset=[{parts}]", "batch_size=7"]
    size = ["--by", "surprise", "--number", "10"]
    stored = create(tmp_path / "a", overrides, *size, *options)
    cfg = make_config(overrides, "tiny_synth")
    path = find_run(trained)[1] if is_trained else None
    model = load_model(cfg, torch.device("cpu"), path)
    pairs = build_dataset(cfg.dataset, cfg.tokenizer.build())
    with torch.no_grad():
        losses = [
            pair_losses(model, pairs[i], views="none", predictor_ids=[])[0]
            .mean()
            .item()
            for i in range(len(pairs))
        ]
    expected = {
        pairs.where(i): losses[i]
        for part in (range(20), range(20, 40))
        for i in sorted(part, key=lambda i: -losses[i])[:5]
    }
    found = read_slots(stored).set_index("where").score
    assert found.to_dict() == pytest.approx(expected, rel=1e-5)
    assert stored.about.replay.score == "lm"


@pytest.mark.parametrize("rule", ["random", "surprise"])
def test_pairs_are_stored_in_parts(tmp_path, sources, monkeypatch, rule):
    """The memory is the one that all at once would make."""
    options = [one(sources[0]), "--number", "5", "--by", rule]
    whole = create(tmp_path / "whole", *options)
    sizes, write = [], EpisodicReplay.write

    def noted(self, example_ids, *args):
        sizes.append(len(example_ids))
        write(self, example_ids, *args)

    monkeypatch.setattr(EpisodicReplay, "write", noted)
    monkeypatch.setattr("erjepa.commands.memory.create._AT_ONCE", 8)
    parts = create(tmp_path / "parts", *options)
    assert sizes == [8, 8, 4] and parts.about == whole.about
    assert segments(parts) == segments(whole)
    assert all(t.equal(whole.tensors[name]) for name, t in parts.tensors.items())


@pytest.mark.parametrize(
    "options, message",
    [
        (["--number", "21"], "--number 21: must be at least 1 and at most 20"),
        (["--number", "0"], "--number 0: must be at least 1"),
        (["--share", "1.5"], "--share 1.5: must be above 0 and at most 1"),
        (["--number", "2", "--share", "0.5"], "not allowed with argument --number"),
        (["--by", "chance"], "--by: invalid choice: 'chance'"),
        (["--checkpoint", "a"], "--checkpoint needs --by surprise"),
        (["--by", "surprise", "--checkpoint", "no"], "no: no such folder"),
        (["--by", "surprise", "max_seq_len=40"], "do not fit max_seq_len=40"),
    ],
)
def test_errors_are_one_line(tmp_path, sources, options, message, capsys):
    with pytest.raises(SystemExit):
        create(tmp_path / "a", one(sources[0]), *options)
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("rule", ["random", "surprise"])
def test_a_missing_base_model_is_named_with_its_download(
    tmp_path, sources, rule, capsys
):
    missing = ["checkpointer.checkpoint_dir=no", "tokenizer.path=no/tokenizer.model"]
    with pytest.raises(SystemExit):
        create(tmp_path / "a", [*one(sources[0]), *missing], "--by", rule)
    said = capsys.readouterr().err
    assert "no does not exist. Get the base model with\n  tune download" in said


def test_nothing_is_written_over(tmp_path, sources, capsys):
    with pytest.raises(SystemExit):
        create(tmp_path, one(sources[0]))
    assert f"{tmp_path} exists; choose another" in capsys.readouterr().err


GRAMMAR = "_component_: erjepa.datasets.synthetic_nl_rx_dataset, size: 2"
FOLDER = "_component_: erjepa.datasets.nl_rx_dataset, source: '{folder}'"


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        (
            [f"{GRAMMAR}, constructs: [and, not]", f"{GRAMMAR}, constructs: [or]"],
            [
                f"synthetic_nl_rx_dataset(size=2, constructs={names})"
                for names in ("and+not", "or")
            ],
        ),
        (
            [f"{FOLDER}, subset: synth", f"{FOLDER}, subset: turk"],
            ["{folder}(subset=synth)", "{folder}(subset=turk)"],
        ),
    ],
    ids=["builder", "folder"],
)
def test_a_dataset_has_one_name_alone_and_in_a_list(tmp_path, parts, names):
    """And two datasets of one builder or folder have two."""
    for subset in ("synth", "turk"):
        write_records(tmp_path / f"{subset}_train.jsonl", 2)
    parts, names = (
        [text.replace("{folder}", str(tmp_path)) for text in texts]
        for texts in (parts, names)
    )
    alone = [
        create(tmp_path / str(i), [f"dataset={{{part}}}"]).about.origins
        for i, part in enumerate(parts)
    ]
    listed = ", ".join(f"{{{part}}}" for part in parts)
    both = create(tmp_path / "both", [f"dataset=[{listed}]"]).about.origins
    assert alone == [[name] for name in names] and both == names


def test_a_pair_that_is_too_long_is_refused_or_skipped(tmp_path, sources, capsys):
    overrides = [*one(sources[0]), "max_seq_len=40", "row_length=null"]
    with pytest.raises(SystemExit):
        create(tmp_path / "a", overrides)
    assert "max_seq_len" in capsys.readouterr().err
    stored = create(tmp_path / "b", [*overrides, "skip_too_long=True"])
    assert 0 < len(stored) < 20


def test_a_hidden_folder_of_that_name_stays(tmp_path, sources):
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "kept").touch()
    create(tmp_path / "venv", one(sources[0]), "--number", "5")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".venv", "venv"]
    assert (tmp_path / ".venv" / "kept").exists()


def test_what_a_killed_command_left_is_removed(tmp_path, sources, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *_, **__: None)  # as after SIGKILL
        patch.setattr("os.rename", stop)
        with pytest.raises(SystemExit):
            create(tmp_path / "a", one(sources[0]))
    assert len([*tmp_path.iterdir()]) == 1
    assert len(create(tmp_path / "a", one(sources[0]))) == 20
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
