"""The grid with a stand-in for ``tune``: which runs start, in which order, and their output."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from erjepa.checkpoints.lock import FolderLock
from erjepa.commands import main as erjepa
from erjepa.commands.experiment import main
from erjepa.studies.grid.local import environments
from erjepa.utils.folders import MARK
from tests.harness.grids import (
    EXPECTED,
    Grid,
    calls,
    experiment,
    results,
    run,
    summary,
    use_fake_tune,
    wait_for,
    write_experiment,
)

SLUGS = {"ER-JEPA": "er-jepa", "LLM-JEPA": "llm-jepa", "Matched": "matched"}


FEW = "methods={SFT: {}, ER-JEPA: {}}", "seeds=[1]", "budgets=null"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of an experiment of two cells that were run."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        use_fake_tune(patch)
        patch.setenv("FAKE_CALLS", str(folder / "calls.txt"))
        write_experiment(folder)
        assert run(folder, *FEW) == 0
        yield folder


def test_every_cell_once(fake, capsys):
    assert run(fake) == 0
    assert summary(fake) == EXPECTED
    order = [c.split() for c in calls(fake) if not c.startswith("step")]
    assert [(recipe, name) for recipe, name, *_ in order] == [
        (recipe, f"{method}/seed_{seed}")
        for seed in (1, 2)
        for method in ("llm-jepa", "er-jepa", "matched")
        for recipe in ("erjepa_recipe", "erjepa_eval")
    ]
    printed = capsys.readouterr().out
    assert "6 cells, 0 finished" in printed
    assert "[1/6] synth/llm-jepa/seed_1: training" in printed
    assert "[1/6] synth/llm-jepa/seed_1: scoring flops_0, flops_1" in printed
    assert "accuracy 8.1% at the end" in printed and "5 cells left, about" in printed

    before, told = (fake / "out" / "results.jsonl").read_text(), len(calls(fake))
    assert run(fake) == 0
    assert (fake / "out" / "results.jsonl").read_text() == before
    assert len(calls(fake)) == told, "finished cells run nothing"


@pytest.mark.slow
def test_a_lost_line_is_restored(fake, capsys):
    """From the file of its cell; a cell whose file is lost too is run again."""
    run(fake)
    out = fake / "out"
    path, before = out / "results.jsonl", calls(fake)
    lines = path.read_text()
    for lost, finished in ("matched/seed_2", 6), ("llm-jepa/seed_2", 5):
        kept = [line for line in lines.splitlines(keepends=True) if lost not in line]
        path.write_text("".join(kept))
        if finished == 5:
            (out / "cells" / "synth" / lost / "results.jsonl").unlink()
        capsys.readouterr()
        assert run(fake) == 0
        assert f"6 cells, {finished} finished" in capsys.readouterr().out
        assert path.read_text() == lines
    started = [call for call in calls(fake)[len(before) :] if "seed" in call]
    assert len(started) == 2 and all(lost in call for call in started)


def test_a_folder_of_an_earlier_version_goes_on(fake, capsys):
    """Its cells have lines in results.jsonl alone, in the order in which they ended."""
    run(fake, "seeds=[1]")
    out, told = fake / "out", calls(fake)
    lines = (out / "results.jsonl").read_text()
    older = lines.replace('"weights": "last"', '"weights": "last", "of": 2')
    backwards = reversed(older.splitlines(keepends=True))
    (out / "results.jsonl").write_text("".join(backwards))
    for path in out.glob("cells/*/*/*/results.jsonl"):
        path.unlink()
    assert main(["status", str(out)]) == 0
    assert capsys.readouterr().out.count("done, accuracy") == 3
    assert run(fake) == 0
    assert summary(fake) == EXPECTED
    assert not any("seed_1" in call for call in calls(fake)[len(told) :])
    cells = [line["cell"] for line in results(fake)]
    assert cells == sorted(cells, key=lambda cell: cell.rpartition("_")[2])


@pytest.mark.slow
def test_a_cell_that_another_process_runs_is_not_run(fake, capsys):
    held = FolderLock(fake / "out/locks/synth/er-jepa/seed_1", "process")
    assert run(fake, "seeds=[1]") == 1
    said = "synth/er-jepa/seed_1: failed: another process is running on "
    assert said in capsys.readouterr().out
    assert not any("er-jepa" in call for call in calls(fake))
    held.release()
    assert run(fake) == 0
    assert summary(fake) == EXPECTED


def test_a_line_of_results(fake):
    run(fake)
    matched = next(line for line in results(fake) if line["method"] == "Matched")
    folder = "cells/synth/matched/seed_1"
    assert matched == {
        **{"cell": "synth/matched/seed_1", "dataset": "synth", "method": "Matched"},
        "seed": 1,
        "overrides": {"epochs": 12, "replay.weight": 0, "stop.tokens": 84},
        **{"checkpoint": "flops_0", "budget": 45, "steps": 5, "total_flops": 50},
        **{"total_tokens": 55, "epoch": 0.5, "task": "nl_rx", "accuracy": 0.051},
        "split": "test",
        "primary": "exact_match",
        "readings": {"exact_match": 0.051, "dfa_equal": 1.0},
        "examples": 50,
        "predictions": f"{folder}/evaluation/flops_0/predictions.jsonl",
        "log": f"{folder}/logs/metrics.txt",
        **{"train_seconds": 1.5, "eval_seconds": 2.0, "weights": "last"},
        **{"stage": None, "target_loss": 0.5, "metrics": {}},
    }
    for name in (matched["predictions"], matched["log"]):
        assert (fake / "out" / name).is_file()
    left = sorted(p.name for p in (fake / "out" / folder).iterdir() if p.is_dir())
    assert left == ["evaluation", "flops_0", "flops_1", "logs"]


def test_lines_say_what_was_scored(fake):
    run(fake, "score_on=validation", "overrides.validation.size=8", "seeds=[1]")
    assert {line["split"] for line in results(fake)} == {"validation"}
    for line in results(fake):
        assert line["predictions"].endswith("_validation/predictions.jsonl")
        assert (fake / "out" / line["predictions"]).is_file()


def test_what_was_run_is_recorded(fake):
    run(fake)
    record = json.loads((fake / "out" / "experiment.json").read_text())
    assert record["config"]["methods"]["LLM-JEPA"] == {"replay.weight": 0}
    assert record["config"]["devices"] is None  # every key, given or not
    assert record["versions"].keys() == {
        *("python", "torch", "torchtune", "torchao", "erjepa"),
    }
    assert record["hardware"]["cores"] == os.cpu_count()
    assert record["hardware"]["cpu"] and record["hardware"]["gpus"] == []
    assert record["revision"] is None or len(record["revision"]) == 40


def test_an_experiment_may_grow_and_not_change(fake, capsys):
    run(fake, "seeds=[1]")
    told = len(calls(fake))
    assert run(fake, "report=[cost]", "devices=[0]") == 0  # adds seed 2
    assert summary(fake) == EXPECTED
    assert not [call for call in calls(fake)[told:] if "seed_1" in call]
    record = json.loads((fake / "out" / "experiment.json").read_text())
    assert record["config"]["seeds"] == [1, 2]
    config = fake / "fake.yaml"
    text = config.read_text()
    config.write_text(
        text.replace("  ER-JEPA: {}\n", "").replace(
            "methods:\n", "methods:\n  ER-JEPA: {}\n"
        )
    )
    assert run(fake, "report=[cost]", "devices=[0]") == 0
    record = json.loads((fake / "out" / "experiment.json").read_text())
    assert [*record["config"]["methods"]] == ["ER-JEPA", "Matched", "LLM-JEPA"]
    config.write_text(text)
    for change, said in {
        "seeds=[1]": "seeds=[1, 2], not [1].",
        "overrides.epochs=13": "overrides.epochs=12, not 13.",
        "overrides.ema_decay=null": "overrides.ema_decay=(unset), not null.",
        "budgets=[40,80]": "budgets=[45.0, 80.0], not [40.0",
        "methods={LLM-JEPA: {replay.weight: 0}}": "methods.ER-JEPA={}, not (unset).",
        "methods={Matched: {}, LLM-JEPA: {}, ER-JEPA: {}}": "methods.Matched.replay.weight=0",
    }.items():
        with pytest.raises(SystemExit):
            run(fake, change)
        assert f"was started with {said}" in capsys.readouterr().err
    assert summary(fake) == EXPECTED


@pytest.mark.slow
def test_what_no_cell_has_begun_may_change(fake, capsys, monkeypatch):
    """All keys if no cell has begun, then datasets, methods and seeds of failed cells alone."""
    sft = "LLM-JEPA: {replay.weight: 0}"
    wrong = "datasets={synth: {config: tiny_synth, dataset.size: 9}}"
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_recipe llm-jepa/seed_2")
    assert (
        run(fake, f"methods={{{sft}}}", "seeds=[2]", wrong, "overrides.epochs=7") == 1
    )
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_recipe er-jepa/seed_1")
    assert run(fake, f"methods={{{sft}, ER-JEPA: {{epochs: 9}}}}", "seeds=[1]") == 1
    assert run(fake, f"methods={{{sft}, ER-JEPA: {{epochs: 8}}}}", "seeds=[1]") == 1
    assert run(fake, f"methods={{{sft}}}", "seeds=[1]") == 0
    assert run(fake) == 1
    monkeypatch.delenv("FAKE_FAILURE")
    assert run(fake) == 0
    assert summary(fake) == EXPECTED
    with pytest.raises(SystemExit):
        run(fake, wrong)
    said = 'was started with datasets.synth="tiny_synth", not {"config"'
    assert said in capsys.readouterr().err


def test_a_cell_that_runs_has_begun(fake, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_recipe llm-jepa/seed_1")
    only = "methods={LLM-JEPA: {replay.weight: 0}}", "seeds=[1]"
    assert run(fake, *only) == 1
    lock = FolderLock(fake / "out" / "locks" / "synth/llm-jepa/seed_1", "process")
    with pytest.raises(SystemExit):
        run(fake, *only, "overrides.epochs=13")
    assert "was started with overrides.epochs=12, not 13" in capsys.readouterr().err
    lock.release()
    monkeypatch.delenv("FAKE_FAILURE")
    assert run(fake, *only, "overrides.epochs=13") == 0


def test_a_checkpoint_of_a_failed_cell_keeps_its_entries(fake, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_eval er-jepa/seed_1")
    only = "methods={ER-JEPA: {}}"
    assert run(fake, only, "seeds=[1]") == 1
    with pytest.raises(SystemExit):
        run(fake, only, "seeds=[1]", "overrides.epochs=13")
    said = capsys.readouterr().err
    assert "was started with overrides.epochs=12" in said
    with pytest.raises(SystemExit):
        run(fake, only, "seeds=[2]")
    assert "was started with seeds=[1], not []" in capsys.readouterr().err
    # As the message says.
    (cells,) = re.findall(r"delete the folders of its cells in (\S+);", said)
    shutil.rmtree(Path(cells) / "synth" / "er-jepa")
    monkeypatch.delenv("FAKE_FAILURE")
    assert run(fake, only, "seeds=[1]", "overrides.epochs=13") == 0


def test_databases_are_looked_for_before_the_first_run(fake, capsys):
    spider = "{config: tiny_synth, databases: /nowhere}"
    with pytest.raises(SystemExit):
        run(fake, f"datasets={{synth: tiny_synth, spider: {spider}}}")
    said = "databases=/nowhere, of dataset spider: no such folder"
    assert said in capsys.readouterr().err
    assert not calls(fake) and not (fake / "out" / "experiment.json").exists()


@pytest.mark.parametrize(
    ("key", "section", "message"),
    [
        ("dataset", "source: no.jsonl", "synth: no.jsonl: no such file or folder"),
        ("eval_dataset", "source: no.csv", "synth: no.csv: no such file or folder"),
        ("dataset", "source: HERE, size: 9", "synth: dataset.size: a file or folder"),
        ("eval_dataset", "source: HERE, size: 9", "synth: eval_dataset.size: a file"),
    ],
)
def test_data_is_looked_for_before_the_first_run(fake, capsys, key, section, message):
    section = section.replace("HERE", str(fake / "fake.yaml"))
    section = f"{{_component_: erjepa.datasets.paired_dataset, {section}}}"
    with pytest.raises(SystemExit):
        run(fake, f"datasets={{synth: {{config: tiny_synth, {key}: {section}}}}}")
    assert f"experiment: error: datasets: {message}" in capsys.readouterr().err
    assert not calls(fake) and not (fake / "out" / "experiment.json").exists()


def test_data_that_no_run_reads_is_not_looked_for(fake):
    """And of a hub or a URL only its name is known."""
    absent = "{_component_: erjepa.datasets.paired_dataset, source: no.jsonl}"
    hub = (
        "{_component_: erjepa.datasets.paired_dataset, source: owner/name, revision: x}"
    )
    url = "{_component_: erjepa.datasets.gsm8k_dataset, source: 'https://a.b/c'}"
    own = "size: 5", f"dataset: [{hub}, {url}]", f"eval_dataset: {absent}"
    validation = "{" + f"config: tiny_synth, validation.{', '.join(own)}" + "}"
    datasets = f"datasets={{synth: {validation}}}"
    assert run(fake, datasets, "score_on=validation", "seeds=[1]") == 0


def test_a_config_of_the_recipe_may_not_change(fake, capsys):
    own = fake / "own.yaml"
    own.write_text("defaults: tiny_synth\nbatch_size: 8\n")
    datasets = f"datasets={{synth: {own}}}"
    assert run(fake, datasets, "seeds=[1]") == 0
    own.write_text("defaults: tiny_synth\nbatch_size: 4\n")
    with pytest.raises(SystemExit):
        run(fake, datasets)
    said = f"was started with batch_size=8 in the config {own}, which now has 4"
    assert said in capsys.readouterr().err
    own.write_text("batch_size: 8\ndefaults: tiny_synth\n")
    assert run(fake, datasets) == 0
    assert summary(fake) == EXPECTED


@pytest.mark.parametrize("key", ["dataset", "eval_dataset"])
@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train.jsonl", None),
        ("data", "train"),
        ("data", "train[:50%]"),
        ("data", "test+train"),
        ("", "data"),  # as of save_to_disk, with a folder for the split
    ],
)
def test_a_file_of_a_dataset_may_not_change(fake, capsys, key, name, split):
    file = fake / "data" / "train.jsonl"
    file.parent.mkdir()
    file.write_text("{}\n")
    own = fake / "own.yaml"
    source = f"{fake / name}, split: '{split or 'train'}'"
    section = f"{{_component_: erjepa.datasets.paired_dataset, source: {source}}}"
    own.write_text(f"defaults: tiny_synth\n{key}: {section}\n")
    assert run(fake, f"datasets={{synth: {own}}}", "seeds=[1]") == 0
    (file.parent / "another.jsonl").write_text("{}\n")
    assert run(fake, f"datasets={{synth: {own}}}", "seeds=[1]") == 0
    file.rename(fake / "gone")  # finished runs do not need it
    assert run(fake, f"datasets={{synth: {own}}}", "seeds=[1]") == 0
    file.write_text("{}\n{}\n")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run(fake, f"datasets={{synth: {own}}}")
    assert f"was started with another {file} (3 bytes" in capsys.readouterr().err


def test_a_file_that_no_cell_has_used_may_change(fake, monkeypatch):
    file = fake / "train.jsonl"
    file.write_text("{}\n")
    section = f"{{_component_: erjepa.datasets.paired_dataset, source: {file}}}"
    datasets = (
        f"datasets={{a: tiny_synth, b: {{config: tiny_synth, dataset: {section}}}}}"
    )
    only = "methods={ER-JEPA: {}}", "seeds=[1]"
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_recipe er-jepa/seed_1")
    assert run(fake, *only, datasets) == 1
    file.write_text("{}\n{}\n")
    monkeypatch.delenv("FAKE_FAILURE")
    assert run(fake, *only, datasets) == 0
    record = json.loads((fake / "out" / "experiment.json").read_text())
    assert record["data_files"][str(file)].startswith("6 bytes")


def test_a_record_of_earlier_versions_keeps_its_machine(fake):
    run(fake, "seeds=[1]")
    path = fake / "out" / "experiment.json"
    record = json.loads(path.read_text())
    record["hardware"]["cpu"] = "of before"
    record["recipe_configs"] = {}
    path.write_text(json.dumps(record))
    assert run(fake, "seeds=[1]", "report=[accuracy]") == 0
    now = json.loads(path.read_text())
    assert now["recipe_configs"] and now["hardware"]["cpu"] == "of before"
    assert now["config"]["report"] == ["accuracy"]


def test_what_a_config_of_the_recipe_scores_is_set_by_the_grid(fake):
    """But for merged weights, which count."""
    own = fake / "own.yaml"
    own.write_text(
        "defaults: tiny_synth\neval_split: validation\nvalidation: {size: 5}\n"
        "merged: True\ncheckpoint: ema\nema_decay: 0.9\n"
    )
    assert run(fake, f"datasets={{synth: {own}}}") == 0
    assert summary(fake) == EXPECTED
    assert {line["split"] for line in results(fake)} == {"test"}
    assert all("_merged/" in line["predictions"] for line in results(fake))


def test_an_experiment_that_was_begun_before_there_was_a_key_goes_on(fake, capsys):
    run(fake, "seeds=[1]")
    path = fake / "out" / "experiment.json"
    record = json.loads(path.read_text())
    for key in ("launcher", "score_on", "nproc_per_node"):
        del record["config"][key]
    for values in record["recipe_configs"].values():
        del values["orthogonal_weight"], values["replay"]["on_revisit"]
    path.write_text(json.dumps(record))
    assert run(fake) == 0
    assert summary(fake) == EXPECTED
    with pytest.raises(SystemExit):
        run(fake, "nproc_per_node=2")
    assert "was started with nproc_per_node=1" in capsys.readouterr().err


def test_a_failed_cell_is_reported_and_tried_again(fake, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_recipe er-jepa/seed_1")
    assert run(fake) == 1
    printed = capsys.readouterr().out
    assert "synth/er-jepa/seed_1: failed: exit code 3: loss is not" in printed
    assert "run.log ends with\n" in printed
    assert "    loss is not?[31m finite?\n" in printed
    needs = "synth/matched/seed_1: failed: it needs the tokens of synth/er-jepa/seed_1"
    assert needs in printed and "2 cells failed" in printed
    failed = ("er-jepa/seed_1", "matched/seed_1")
    others = [x for x in EXPECTED if f"{SLUGS[x[0]]}/seed_{x[1]}" not in failed]
    assert summary(fake) == others
    assert sum("er-jepa/seed_1" in call for call in calls(fake)) == 1, "not retried"

    monkeypatch.delenv("FAKE_FAILURE")
    assert run(fake) == 0
    assert summary(fake) == EXPECTED


def test_a_failed_evaluation_resumes(fake, monkeypatch):
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_eval er-jepa/seed_1")
    assert run(fake) == 1
    monkeypatch.delenv("FAKE_FAILURE")
    assert run(fake) == 0
    assert summary(fake) == EXPECTED
    steps = [call for call in calls(fake) if call == "step 4 of er-jepa"]
    assert len(steps) == 2, "one for each seed: training is not repeated"


def test_a_run_killed_before_there_was_anything_to_resume_starts_anew(fake):
    left = fake / "out" / "cells" / "synth" / "llm-jepa" / "seed_1" / "flops_0"
    left.mkdir(parents=True)
    (left.parent / MARK).touch()
    assert run(fake) == 0
    assert summary(fake) == EXPECTED


def cell_without_mark(cells, outside):
    (cells / "synth" / "er-jepa").mkdir(parents=True)
    outside.rename(cells / "synth" / "er-jepa" / "seed_1")
    return "was not made by this program", cells / "synth" / "er-jepa" / "seed_1"


def linked_cell(cells, outside):
    (cells / "synth" / "er-jepa").mkdir(parents=True)
    (cells / "synth" / "er-jepa" / "seed_1").symlink_to(outside)
    return "a symbolic link leads out of", outside


def file_for_a_cell(cells, outside):
    (cells / "synth" / "er-jepa").mkdir(parents=True)
    (cells / "synth" / "er-jepa" / "seed_1").write_text("mine")
    return "File exists", outside


@pytest.mark.parametrize("made", [cell_without_mark, linked_cell, file_for_a_cell])
def test_what_the_grid_did_not_make_is_kept(fake, capsys, made):
    """The cell fails in one line; the others run."""
    outside = fake / "precious" / "seed_1"
    outside.mkdir(parents=True)
    (outside / "thesis.txt").write_text("mine")
    message, kept = made(fake / "out" / "cells", outside)
    methods = "methods={ER-JEPA: {}, SFT: {replay.weight: 0}}"
    assert run(fake, methods) == 1
    printed = capsys.readouterr().out
    assert message in printed
    assert [path.name for path in kept.iterdir()] == ["thesis.txt"]
    finished = {line["cell"] for line in results(fake)}
    assert {"synth/sft/seed_1", "synth/sft/seed_2"} <= finished
    assert "synth/er-jepa/seed_1" not in finished


def test_a_cell_of_an_earlier_version_goes_on_once_it_is_marked(fake, capsys):
    cell = fake / "out" / "cells" / "synth" / "er-jepa" / "seed_1"
    (cell / "flops_0").mkdir(parents=True)
    arguments = "methods={ER-JEPA: {}}", "seeds=[1]"
    assert run(fake, *arguments) == 1
    command = capsys.readouterr().out.partition("may be deleted: ")[2].splitlines()[0]
    subprocess.run(command, shell=True, check=True)
    assert run(fake, *arguments) == 0


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("results.jsonl", {"accuracy": "high"}, 'results.jsonl:1: accuracy: .* "high"'),
        ("experiment.json", {"config": {}}, "experiment.json: config.name: field req"),
        ("experiment.json", {"hardware": {"gpus": 1}}, "json: hardware.gpus: "),
        (
            "cells/synth/sft/seed_1/results.jsonl",
            {"steps": -1},
            "sft/seed_1/results.jsonl:1: steps: ",
        ),
    ],
)
def test_a_damaged_file_is_named_in_one_line(finished, capsys, file, change, message):
    """By every command that reads it."""
    path = finished / "out" / file
    before = path.read_text()
    first, _ = json.JSONDecoder().raw_decode(before)
    path.write_text(json.dumps(first | change) + "\n")
    output = str(finished / "out")
    commands = [["experiment", "status", output]]
    commands += [["experiment", "run", str(finished / "fake.yaml"), *FEW]]
    if not file.startswith("cells"):
        commands += [["report", output]]
    for command in commands:
        with pytest.raises(SystemExit) as left:
            erjepa(command)
        said = capsys.readouterr().err
        assert left.value.code == 2 and re.search(message, said), said
        assert said.count("\n") == 1
    path.write_text(before)


def test_epochs_that_end_before_the_last_budget_are_a_failure(fake, capsys):
    assert run(fake, "overrides.epochs=3", "seeds=[1]") == 1
    printed = capsys.readouterr().out
    assert "its epochs ended at 30 FLOPs, before the last budget of 80" in printed
    assert not (fake / "out" / "results.jsonl").exists()


def test_epochs_that_end_before_the_tokens_to_match_are_a_failure(fake, capsys):
    assert run(fake, "budgets=null", "seeds=[1]") == 1
    said = "matched/seed_1: failed: its epochs ended at 132 tokens, before the 252 that"
    assert said in capsys.readouterr().out
    assert {line["method"] for line in results(fake)} == {"LLM-JEPA", "ER-JEPA"}


def test_side_by_side(fake):
    assert run(fake, "devices=[4,5,6,7,8,9]", "nproc_per_node=2") == 0
    assert summary(fake) == EXPECTED
    started = [call for call in calls(fake) if "seed" in call]
    assert {call.split()[-1] for call in started} == {"4,5", "6,7", "8,9"}
    trained = next(i for i, c in enumerate(started) if "eval er-jepa/seed_1" in c)
    matched = next(i for i, c in enumerate(started) if "recipe matched/seed_1" in c)
    assert trained < matched, "it waits for the tokens of the other"


def test_environments(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    # The machine may have more cores than this process may use.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    (alone,) = environments(experiment())
    assert "CUDA_VISIBLE_DEVICES" not in alone
    shared = environments(experiment(devices=[3, 5, 6, 7], nproc_per_node=2))
    assert [e["CUDA_VISIBLE_DEVICES"] for e in shared] == ["3,5", "6,7"]
    assert alone["OMP_NUM_THREADS"] == "12"
    assert shared[0]["OMP_NUM_THREADS"] == "3"


def test_runs_share_a_device_listed_several_times():
    shared = environments(experiment(devices=[0, 0, 1]))
    assert [e["CUDA_VISIBLE_DEVICES"] for e in shared] == ["0", "0", "1"]


def test_devices_are_places_in_the_visible_ones(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-a7")
    shared = environments(experiment(devices=[0, 2]))
    assert [e["CUDA_VISIBLE_DEVICES"] for e in shared] == ["4", "GPU-a7"]
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES=4,5,GPU-a7 shows 3"):
        environments(experiment(devices=[3]))
    for none in ("", "-1"):  # which the runs inherit
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        hidden = environments(experiment(devices=[0, 2]))
        assert len(hidden) == 2 and not any("CUDA_VISIBLE_DEVICES" in e for e in hidden)


def descendants(folder):
    """Processes of runs whose output is below ``folder``."""
    found = subprocess.run(
        ["pgrep", "-f", f"output_dir={folder}/"], capture_output=True, text=True
    )
    return found.stdout.split()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_processes_of_a_killed_grid_end(tmp_path, number):
    write_experiment(tmp_path)
    grid = Grid(tmp_path, "devices=[0,1]", FAKE_STEP_SECONDS="20")
    wait_for(lambda: len(descendants(tmp_path)) == 2 and len(calls(tmp_path)) == 2)
    grid.signal(number)
    assert grid.wait() != 0
    if number != signal.SIGKILL:  # it saw to it itself
        assert not descendants(tmp_path)
        assert "Stopping 2 runs. Run again to resume.\n" in grid.printed()
    wait_for(lambda: not descendants(tmp_path), seconds=5)


def test_two_grids_on_one_output_are_refused(tmp_path, capsys):
    write_experiment(tmp_path)
    grid = Grid(tmp_path, FAKE_STEP_SECONDS="0.2")
    wait_for(lambda: calls(tmp_path))
    with pytest.raises(SystemExit):
        run(tmp_path)
    assert "another grid is running on" in capsys.readouterr().err
    grid.signal(signal.SIGKILL)
    grid.wait()


@pytest.mark.slow
def test_a_grid_waits_for_what_a_killed_one_has_left(tmp_path):
    """A process that does not heed SIGTERM still writes; nothing may run beside it."""
    write_experiment(tmp_path)
    grid = Grid(tmp_path, FAKE_STUBBORN="1", FAKE_STEP_SECONDS="0.2")
    wait_for(lambda: len(calls(tmp_path)) > 1)
    grid.signal(signal.SIGKILL)
    grid.wait()
    assert len(descendants(tmp_path)) == 1
    again = Grid(tmp_path)
    assert again.wait() == 0, again.printed()
    assert summary(tmp_path) == EXPECTED
    steps = [call for call in calls(tmp_path) if call.startswith("step")]
    assert len(steps) == 2 * (8 + 4 + 8), "no step was taken twice"


@pytest.mark.slow
def test_killed_ten_times(fake, tmp_path):
    """Every field of every line is that of an unbroken run; their order may differ."""
    assert run(fake) == 0
    expected = sorted(results(fake), key=str)
    shutil.rmtree(fake / "out")
    (fake / "calls.txt").unlink()
    rng = random.Random(0)
    for _ in range(10):
        grid, told = Grid(tmp_path, FAKE_STEP_SECONDS="0.05"), len(calls(tmp_path))
        wait_for(lambda t=told, g=grid: len(calls(tmp_path)) > t or g.ended())
        time.sleep(rng.uniform(0, 0.5))
        assert not grid.ended(), "there was nothing left to kill"
        grid.signal(signal.SIGKILL)
        grid.wait()
    last = Grid(tmp_path)
    assert last.wait() == 0, last.printed()
    assert sorted(results(tmp_path), key=str) == expected


def test_show_prints_every_key_and_runs_nothing(tmp_path, capsys):
    path = write_experiment(tmp_path)
    assert main(["show", str(path)]) == 0
    printed = capsys.readouterr().out
    shown, _, commands = printed.partition("# 6 cells; the first of each method:\n")
    assert yaml.safe_load(shown)["budgets"] == [45, 80]
    matched, llm_jepa, er_jepa = (
        shlex.split(line.removeprefix("# ")) for line in commands.splitlines()
    )
    assert matched[:3] == ["tune", "run", "erjepa_recipe"]
    assert matched[-1] == "stop.tokens=TOKENS_OF_synth/er-jepa/seed_1"
    assert "stop.flops=80.0" in llm_jepa and "stop.flops=80.0" in er_jepa
    assert not any(word.startswith("stop.flops") for word in matched)
    assert not (tmp_path / "out").exists()
