"""The report of every packaged experiment has all its sections."""

import csv
import json
import re
import shutil
from dataclasses import asdict
from html import escape
from pathlib import Path

import pytest

import erjepa.configs
from erjepa.studies.grid.config import load_experiment
from erjepa.studies.report.accuracy import settings
from erjepa.studies.report.build import build_report
from erjepa.studies.report.figures import Figure
from erjepa.studies.report.sections import SECTIONS
from tests.harness.cases import some_of
from tests.harness.fake_output import write_output

PACKAGED = erjepa.configs.config_names("experiments")
DOCS = Path(__file__).parents[3] / "docs"
RESULTS = DOCS / "results"
# A folder in that of a study, such as standard_cl_small/order_2, has runs of the same grid.
STUDIES = sorted(
    str(path.parent.relative_to(RESULTS)) for path in RESULTS.rglob("experiment.json")
)


def task_of(dataset):
    """The task of a packaged dataset, whose builder is named for it."""
    return dataset.name.removesuffix("_dataset").removeprefix("synthetic_")


QUICK = "main", "stop_token", "continual"


@pytest.mark.parametrize("name", some_of(PACKAGED, QUICK))
def test_every_section_is_made(name, tmp_path, monkeypatch):
    """On made-up results of the experiment's own methods and datasets, of two seeds."""
    monkeypatch.setattr(Figure, "saved", lambda *a: b"")  # test_build draws them
    experiment = load_experiment(name)
    config = asdict(experiment)
    tasks = {
        name: task_of(erjepa.configs.load(experiment.dataset(name)["config"]).dataset)
        for name in experiment.datasets
    }
    settings = {**config, "seeds": (82, 23)}
    output = write_output(tmp_path / "out", examples=24, tasks=tasks, **settings)
    text = build_report(output).read_text()
    left_out = text.partition("Sections that these results do not allow")[2]
    assert not left_out, left_out[:2000]
    asked = [
        {"section": one} if isinstance(one, str) else one for one in config["report"]
    ]
    titles = [one.get("title", SECTIONS[one["section"]].title) for one in asked]
    assert re.findall("<h2>(.*?)</h2>", text)[1:-3] == list(map(escape, titles))


@pytest.mark.parametrize("name", STUDIES)
def test_the_committed_studies(name, tmp_path, monkeypatch):
    """Their tables are those of their results, and their methods those of the packaged grids."""
    monkeypatch.setattr(Figure, "saved", lambda *a: b"")  # not compared
    for plot in ("barplot", "stripplot", "lineplot", "heatmap"):
        monkeypatch.setattr(
            f"erjepa.studies.report.figures.sns.{plot}", lambda *a, **k: 0
        )
    study = shutil.copytree(RESULTS / name, tmp_path / name)
    if (study / "predictions.tar.gz").exists():
        shutil.unpack_archive(study / "predictions.tar.gz", study)
    page = build_report(study)
    assert "Sections that these results do not allow" not in page.read_text()
    tables = page.parent / "tables"
    made = {path.name: path for path in tables.iterdir() if path.suffix != ".tex"}
    committed = {path.name: path for path in (study / "tables").iterdir()}
    # Of this study the predictions that further tables need are not committed.
    assert made.keys() == committed.keys() or name == "tiny_matched_compute"
    for file, path in made.items():
        assert path.read_text() == committed[file].read_text(), file
    methods = json.loads((study / "experiment.json").read_text())["config"]["methods"]
    packaged = asdict(load_experiment(Path(name).parts[0]))["methods"]
    assert methods == {method: packaged[method] for method in methods}


@pytest.mark.parametrize(
    ("trials", "grids"),
    [
        ("tune_objectives", ["tuned_objectives"]),
        ("tune_controls", ["tiny_mechanism", "tiny_controls"]),
        ("tune_replay", ["tiny_mechanism"]),
    ],
)
def test_test_pairs_are_met_with_the_settings_that_were_chosen(trials, grids):
    """By the averaged weights on validation pairs."""
    table = RESULTS / trials / "tables" / "chosen_synth.csv"
    with table.open() as lines:
        chosen = {row["Method"]: row["Overrides"] for row in csv.DictReader(lines)}
    tuned = {}
    for grid in map(load_experiment, grids):
        shared = asdict(grid)["overrides"]
        tuning = {
            k: shared[k] for k in ("loss.jepa_weight", "optimizer.lr") if k in shared
        }
        for name, keys in asdict(grid)["methods"].items():
            own = {key: value for key, value in tuning.items() if key not in keys}
            tuned[name] = settings({**keys, **own})
    assert {name: tuned[name] for name in chosen} == chosen
