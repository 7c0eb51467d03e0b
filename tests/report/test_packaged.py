"""Every packaged experiment's report has every section that it asks for."""

import json
import re
import shutil
from html import escape
from pathlib import Path

import pytest

import erjepa.configs
from erjepa.experiment.config import config_of, load_experiment
from erjepa.report.build import build_report
from erjepa.report.sections import SECTIONS
from tests.report.fake_output import write_output
from tests.slow import some_of

PACKAGED = erjepa.configs.config_names("experiments")
STUDY = Path(__file__).parents[2] / "docs" / "tiny_matched_compute"


def task_of(dataset):
    """The task of a packaged dataset, whose builder is named for it."""
    builder = dataset._component_.rpartition(".")[2]
    return builder.removesuffix("_dataset").removeprefix("synthetic_")


QUICK = "main", "matched_compute", "stop_token", "tune_weights"


@pytest.mark.parametrize("name", some_of(PACKAGED, QUICK))
def test_every_section_is_made(name, tmp_path):
    """On made-up results of the experiment's own methods and datasets, of two seeds."""
    config = load_experiment(name).as_dict()
    tasks = {
        dataset: task_of(erjepa.configs.load(config_of(entry)[0]).dataset)
        for dataset, entry in config["datasets"].items()
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


def test_the_committed_study(tmp_path):
    """Its tables are those of its results; the others need the predictions."""
    lines = (STUDY / "results.jsonl").read_text().splitlines()
    budgets = sorted({json.loads(line)["budget"] for line in lines})
    report = ["matched_compute", "significance", "drops", "cost"]
    config = load_experiment("tiny_matched_compute").as_dict()
    config |= {"budgets": budgets, "report": report}
    (tmp_path / "experiment.json").write_text(json.dumps({"config": config}))
    shutil.copy(STUDY / "results.jsonl", tmp_path)
    tables = build_report(tmp_path).parent / "tables"
    made = sorted(path for path in tables.iterdir() if path.suffix != ".tex")
    assert len(made) == 2 * 5
    for path in made:
        assert path.read_text() == (STUDY / "tables" / path.name).read_text(), path.name
