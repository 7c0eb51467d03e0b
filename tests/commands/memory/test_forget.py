"""No file of a run's memories contains deleted pairs, even after an interrupted deletion."""

import hashlib
import json
import os
import re
import shutil
from array import array

import pytest
import torch

from erjepa.checkpoints.checkpoint import require_intact
from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS
from erjepa.checkpoints.lock import FolderLock
from erjepa.checkpoints.manifest import damage, write_manifest
from erjepa.checkpoints.memory_file import write_memory
from erjepa.checkpoints.stored_memory import open_memory
from erjepa.commands.memory import main
from erjepa.commands.memory.reading import read_slots
from erjepa.replay import EpisodicReplay, ReplaySettings
from tests.harness.data import write_jsonl

OLD = -1 << 32  # the origin of an earlier run
EXAMPLES = [OLD + 3, 0, 1, 2, 3]
CHECKPOINTS = ["best_step_2", "epoch_0", "epoch_1"]
ABOUT = {"tokenizer": "x", "origins": ["old", "new"], "inherited": 1, "replay": {}}


def text(example):
    of = {OLD + 3: "of Ann", 2: "of Ann", 1: "of Jose\u0301"}  # decomposed, as on macOS
    return f"ask {example % (1 << 32)} {of.get(example, '')}"


def tokens(example):
    return [70_000 + example % 97, 80_000 + example % 97]


def new_replay(address="sparse"):
    settings = ReplaySettings(capacity=9, address=address, selection="uniform")
    return EpisodicReplay(settings, embed_dim=4, seed=0)


def write_checkpoint(folder, examples, address="sparse"):
    replay = new_replay(address)
    addresses = replay.encode(torch.eye(5, 4)[: len(examples)])
    scores = torch.arange(1.0, len(examples) + 1)
    segments = [(tokens(example),) * 5 for example in examples]
    replay.write(torch.tensor(examples), segments, addresses, scores)
    (folder / "memory").mkdir(parents=True)
    write_memory(folder / "memory", replay, ABOUT)
    rows = [
        {"slot": i, "where": f"f:{i}", "source": text(example), "target": "a"}
        for i, example in enumerate(examples)
    ]
    write_jsonl(folder / "memory" / "texts.jsonl", rows)
    (folder / "weights").write_text("w")
    write_manifest(folder)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    for name in CHECKPOINTS:
        # The first was written before the last pair came.
        write_checkpoint(folder / name, EXAMPLES[: 4 if name < "c" else 5])
    (folder / "best").symlink_to("best_step_2")
    visits = [f"1,{example},0,0.5,0.1\n" for example in [*EXAMPLES, 4]]
    (folder / EXAMPLE_ERRORS).write_text(
        "step,example,replayed,lm_loss,jepa_loss\n" + "".join(visits)
    )
    shutil.copytree(folder / "epoch_1", folder / ".partial" / "epoch_1")
    return folder


def contents(run):
    files = [path for path in run.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in files
        if path.name not in (".lock", "forgotten.jsonl")
    }


def forget(run, *options):
    main(["forget", str(run), *map(str, options)])


@pytest.mark.parametrize("address", ["none", "dense", "sparse"])
@pytest.mark.parametrize(
    "options, gone",
    [
        (["--match", "of Ann"], [OLD + 3, 2]),
        (["--ids", 1, OLD + 3, 4], [1, OLD + 3, 4]),
        (["--source", "old"], [OLD + 3]),
        (["--match", "ask"], EXAMPLES),
        (["--match", "of Jos\u00e9"], [1]),
        (["--match", "of Jose"], [1]),
    ],
)
def test_nothing_of_a_pair_is_left(run, options, gone, address):
    for name in CHECKPOINTS:
        shutil.rmtree(run / name)
        write_checkpoint(run / name, EXAMPLES, address)
    forget(run, *options)
    kept = [example for example in EXAMPLES if example not in gone]
    for content in contents(run).values():
        for example in set(gone) & set(EXAMPLES):
            assert text(example).encode() not in content
            assert array("i", tokens(example)).tobytes() not in content
    for name in CHECKPOINTS:
        assert damage(run / name) is None
        stored, replay = open_memory(run / name), new_replay(address)
        replay.restore(stored.about.state, stored.tensors)
        assert replay.memory.example_ids.tolist() == kept
        assert replay.memory.scores.tolist() == [EXAMPLES.index(i) + 1 for i in kept]
        pairs = [list(pair[0]) for pair in replay.memory.segments(range(len(kept)))]
        assert pairs == [tokens(example) for example in kept]
        assert [*read_slots(stored).source] == [text(example) for example in kept]
    texts = (run / "epoch_1" / "memory" / "texts.jsonl").read_text().splitlines()
    assert [json.loads(line)["slot"] for line in texts] == list(range(len(kept)))
    visits = (run / EXAMPLE_ERRORS).read_text().splitlines()[1:]
    left = [int(line.split(",")[1]) for line in visits]
    assert left == [example for example in [*EXAMPLES, 4] if example not in gone]


@pytest.mark.parametrize(
    ("stored", "chosen", "seen"),
    [
        (EXAMPLES, ["--source", "old"], (40, 0)),
        (EXAMPLES, ["--source", "new"], (60, 60)),
        (EXAMPLES, ["--ids", 0, 1], (60 + 20, 60)),
        ([0, 1], ["--ids", 0], (60 + 20, 60)),
    ],
)
def test_deleted_pairs_were_never_offered(tmp_path, stored, chosen, seen):
    """Otherwise a reservoir would keep later pairs with a smaller probability."""
    write_checkpoint(tmp_path / "epoch_0", stored, "none")
    path = tmp_path / "epoch_0" / "memory" / "memory.json"
    about = json.loads(path.read_text())
    about["state"]["memory"]["seen"] = [100, 60]
    path.write_text(json.dumps(about))
    write_manifest(tmp_path / "epoch_0")
    forget(tmp_path, *chosen)
    assert open_memory(tmp_path).about.state.memory.seen == seen


def test_datasets_of_one_name_are_forgotten_separately(tmp_path, capsys, monkeypatch):
    """Such as those of a file that is overwritten for each run."""
    monkeypatch.setitem(ABOUT, "origins", ["f", "f"])
    write_checkpoint(tmp_path / "epoch_0", EXAMPLES, "none")
    before = contents(tmp_path)
    with pytest.raises(SystemExit):
        forget(tmp_path, "--source", "f")
    said = capsys.readouterr().err
    assert "--source f is ambiguous; " in said and "f (1) (1 pair), f (2) (4 " in said
    assert contents(tmp_path) == before
    forget(tmp_path, "--source", "f (1)", "--dry-run")
    shown = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()]
    assert shown[1:] == [f"f (1):0: {text(OLD + 3)} -> a"]
    forget(tmp_path, "--source", "f (1)")
    assert [*read_slots(open_memory(tmp_path)).example] == EXAMPLES[1:]
    forget(tmp_path, "--source", "f (2)")
    assert read_slots(open_memory(tmp_path)).empty


def test_the_log_has_no_text(run, capsys):
    forget(run, "--match", "of Ann")
    forget(run, "--match", "of Ann")  # nothing is left to log
    forget(run, "--source", "new")
    printed = capsys.readouterr().out
    assert "Deleted 2 pairs from" in printed and "Deleted 0 pairs from" in printed
    first, second = map(json.loads, (run / "forgotten.jsonl").open())
    assert first["ids"] == [OLD + 3, 2] and first["pairs"] == 2 and first["when"]
    assert first["by"] == {"match_sha256": hashlib.sha256(b"of Ann").hexdigest()}
    assert second["ids"] == [0, 1, 3, 4] and second["by"] == {"source": "new"}


def test_scored_pairs_are_not_searched(run, capsys):
    folder = run / "evaluation" / "epoch_0"
    folder.mkdir(parents=True)
    (folder / "predictions.jsonl").touch()
    forget(run, "--ids", "0")
    said = (
        f"Not searched: 1 file of scored pairs, with their texts, in {run}/evaluation."
    )
    assert said in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("way", ["", "elsewhere/..", "link"])
def test_the_runs_that_inherited_the_memory_are_named(run, tmp_path, capsys, way):
    """Whichever path leads to the run."""
    (tmp_path / "link").symlink_to(tmp_path)
    starts = {
        "by_name": "run",
        "one_of_many": f"[elsewhere, {run}/epoch_1]",
        "without_a_memory": "run",
        "of_another": "runs/other",
        "of_one_of_its_name": f"{run.parent}/elsewhere/run/epoch_1",
        "of_none": "null",
    }
    (run.parent / "elsewhere" / "run" / "epoch_1").mkdir(parents=True)
    for name, start in starts.items():
        if name != "without_a_memory":
            write_checkpoint(tmp_path / name / "epoch_0", EXAMPLES)
        config = tmp_path / name / "torchtune_config.yaml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(f"output_dir: {name}\nreplay:\n  init_from: {start}\n")
    (tmp_path / "of_none" / "torchtune_config.yaml").write_text("replay: [")
    folder = os.path.normpath(tmp_path / way)
    for options, given in (
        (["--match", "of Ann"], "'--match=of Ann'"),
        (["--match=- of Ann"], "'--match=- of Ann'"),
        (["--source", "new"], "--source=new"),
        (["--ids", "0"], "--match=TEXT"),
    ):
        forget(tmp_path / way / "run", *options, "--dry-run")
        assert "These runs" not in capsys.readouterr().out
        forget(tmp_path / way / "run", *options)
        said = capsys.readouterr().out.splitlines()
        assert said[said.index(next(s for s in said if "These runs" in s)) + 1 :] == [
            f"  erjepa memory forget {folder}/{name} {given}"
            for name in ("by_name", "one_of_many")
        ]


def test_numbers_of_no_pair_are_named(run, capsys):
    absent = f"No pair in {run} has the number 98, 99 (column example of --csv).\n"
    forget(run, "--ids", 99, 98)
    assert capsys.readouterr().out == f"Deleted 0 pairs from {run}\n{absent}"
    assert len(open_memory(run)) == len(EXAMPLES)
    forget(run, "--ids", 99, 1, 98, "--dry-run")
    assert capsys.readouterr().out.endswith(absent)
    forget(run, "--ids", 99, 1, 98)
    assert capsys.readouterr().out == f"Deleted 1 pair from {run}\n{absent}"


def test_a_dry_run_shows_the_pairs_and_changes_nothing(run, capsys):
    before = contents(run)
    forget(run, "--match", "of Ann", "--dry-run")
    out = capsys.readouterr().out
    assert "Would delete 2 pairs from" in out and out.count("of Ann") == 2
    assert contents(run) == before and not (run / "forgotten.jsonl").exists()


class Killed(BaseException):
    pass


def test_a_killed_deletion_is_finished_by_the_next(run, tmp_path, monkeypatch):
    """Wherever it was killed: at any renaming, the command does the rest when repeated."""
    whole = tmp_path / "whole"
    shutil.copytree(run, whole, symlinks=True)
    forget(whole, "--match", "of Ann")
    calls, last = 0, 10**9

    def counted(function):
        def call(*args):
            nonlocal calls
            calls += 1
            if calls > last:
                raise Killed
            return function(*args)

        return call

    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(os, "rename", counted(os.rename))
    for number in range(100):
        killed = tmp_path / f"killed_{number}"
        shutil.copytree(run, killed, symlinks=True)
        calls, last = 0, number
        try:
            forget(killed, "--match", "of Ann")
        except Killed:
            last = 10**9
            forget(killed, "--match", "of Ann")
            assert contents(killed) == contents(whole), number
        else:
            break
    assert number == 2 + 3 * (1 + 4)  # log, visits; each memory: ready, and its files


def test_a_checkpoint_that_was_moved_and_linked_loses_them_too(run, tmp_path):
    shutil.move(run / "epoch_0", tmp_path / "disk")
    (run / "epoch_0").symlink_to(tmp_path / "disk")
    forget(run, "--match", "of Ann")
    assert (run / "epoch_0").is_symlink() and damage(run / "epoch_0") is None
    assert 2 not in read_slots(open_memory(run / "epoch_0")).example.tolist()
    for path in (tmp_path / "disk").rglob("*"):
        assert path.is_dir() or b"of Ann" not in path.read_bytes()


def test_a_copied_memory_loses_them_too(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run / "epoch_1" / "memory", copy / "memory")
    (copy / "memory" / "texts.jsonl").unlink()
    forget(copy, "--ids", 0)
    assert [*read_slots(open_memory(copy)).example] == [OLD + 3, 1, 2, 3]


@pytest.mark.parametrize(
    "harm, options, message",
    [
        (None, ["--match", ""], "--match '': give the text"),
        (None, ["--source", "x"], "--source x: the datasets are old, new"),
        ("epoch_0/memory/texts.jsonl", ["--ids", 0], "texts.jsonl has 9 bytes, not"),
        ("epoch_0/progress.json", ["--ids", 0], "epoch_0 is one checkpoint; give the"),
        ("memory", ["--ids", 0], "epoch_0/memory is one memory; give"),
        ("none", ["--ids", 0], "none holds no memory"),
        ("textless", ["--match", "x"], "--match: .* has no texts"),
        ("held", ["--ids", 0], "another run is running on .*: process"),
    ],
)
def test_errors_are_one_line_and_change_nothing(run, harm, options, message, capsys):
    folder, lock = run, None
    if harm == "none":
        folder = run / "none"
    elif harm == "memory":
        folder = run / "epoch_0" / "memory"
    elif harm == "textless":
        (run / "epoch_0" / "memory" / "texts.jsonl").unlink()
        write_manifest(run / "epoch_0")
    elif harm == "held":
        lock = FolderLock(run, "run")
    elif harm is not None:
        (run / harm).write_text("harmed...")
        if "progress" in harm:
            folder = run / "epoch_0"
    shutil.rmtree(run / ".partial")
    before = contents(run)
    with pytest.raises(SystemExit):
        forget(folder, *options)
    *_, said = capsys.readouterr().err.splitlines()
    assert re.search(message, said)
    assert contents(run) == before
    if lock is not None:
        lock.release()


def test_reading_a_half_forgotten_checkpoint_says_how_to_finish(run, tmp_path):
    killed = tmp_path / "killed"
    shutil.copytree(run, killed, symlinks=True)
    checkpoint = next(path.parent for path in killed.glob("*/manifest.json"))
    assert damage(checkpoint) is None
    (checkpoint / ".forgotten").mkdir()
    # A memory of its own, or of a run; or a checkpoint that lies elsewhere than its run.
    for run, folder in ((checkpoint, checkpoint), (killed, killed), ("RUN", None)):
        if folder is not None:
            (folder / "forgotten.jsonl").touch()
        assert f"command, erjepa memory forget {run} " in damage(checkpoint)
        with pytest.raises(ValueError, match="interrupted; finish it .* the pairs$"):
            require_intact(checkpoint, ["*"])
        if folder is not None:
            (folder / "forgotten.jsonl").unlink()
