"""The documentation is correct: its commands work, its links resolve, its figures are measured.

Every fence has a language; ``bash`` fences hold commands. Commands that take seconds are run, page
by page from top to bottom, in a folder with the files that the page shows (fences with a file name,
such as ``json pairs.jsonl``):

    Python files of the page; erjepa COMMAND --help or --sections, experiment show, configs, stats,
    score, and memory or generate on a run of the page; and tune run with a config of the embedded
    model and a stop.steps, or that scores the output of such a run

The other commands are only checked: their recipe, config, keys, targets and extras exist.
``python`` fences run last.
"""

import ast
import importlib.util
import inspect
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from erjepa.commands import COMMANDS, main
from erjepa.configs import load
from erjepa.objective.loss import JEPALoss
from erjepa.replay.registry import SELECTIONS
from erjepa.studies.grid.config import load_experiment
from erjepa.studies.report.build import SECTIONS
from erjepa.tasks import task_names
from erjepa.tasks.score import load_task
from erjepa.utils.files import CONFIG

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
STUDY = sorted(set(ROOT.glob("docs/**/README.md")) - set(PAGES))
LANGUAGES = {"bash", "json", "python", "sh", "text", "yaml"}
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
QUICK = ("configs", "generate", "memory", "score", "stats")


def fences(page):
    """Language, file name or None, and content of each fence, in order."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)[ ]?([^\n]*)\n(.*?)^```$", text, re.M | re.S)
    return [(language, name or None, content) for language, name, content in found]


def commands(page):
    """Commands as lists of words: no comments, lines joined at a backslash."""
    for language, _, content in fences(page):
        if language == "bash":
            for line in content.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    yield words


def tune_run(words):
    """Recipe, config and overrides of a ``tune run``."""
    rest = words[2:]
    at = next(
        i for i, word in enumerate(rest) if word in ("erjepa_recipe", "erjepa_eval")
    )
    assert rest[at + 1] == "--config", words
    return rest[at], rest[at + 2], rest[at + 3 :]


def without_variables(words):
    """The words after ``NAME=value`` ones."""
    return words[next(i for i, word in enumerate(words) if "=" not in word) :]


def is_quick(words):
    words = without_variables(words)
    if words[:2] == ["tune", "run"]:
        recipe, config, overrides = tune_run(words)
        bound = "stop.steps=" if recipe == "erjepa_recipe" else "output_dir="
        is_small = config in ("tiny_synth", "tiny_continual") or config.endswith(
            ".yaml"
        )
        is_bounded = any(override.startswith(bound) for override in overrides)
        is_own = recipe == "erjepa_eval" and config.endswith(".yaml")
        return is_own or (is_small and is_bounded)
    if words[0] == "python" and words[1].endswith(".py"):
        return True
    if words[0] != "erjepa":
        return False
    return (
        (words[1] in QUICK and not words[2].startswith("/tmp"))
        or words[1:3] == ["experiment", "show"]
        or bool({"--help", "--sections"} & set(words))
    )


def check(words, folder):
    """Raise if a command cannot mean anything; ``folder`` has the page's files."""
    words = without_variables(words)
    if words[0] == "...":  # further overrides of the paper's setting
        load("llama3_2_1b_synth", words[1:])
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), words
    elif words[0] == "pip":
        for extra in re.findall(r"^\.\[(.*)\]$", words[-1]):
            text = (ROOT / "pyproject.toml").read_text()
            assert re.search(rf"^{extra} = \[", text, re.M), words
    elif words[:2] == ["tune", "download"]:
        paths = {
            cfg.checkpointer.get("checkpoint_dir"): cfg.base_model for cfg in packaged()
        }
        assert paths[words[words.index("--output-dir") + 1]] == words[2], words
    elif words[:2] == ["tune", "run"]:
        recipe, config, overrides = tune_run(words)
        assert importlib.util.find_spec(recipe), words
        cfg = load(at(config, folder), overrides)
        if recipe == "erjepa_recipe" and not Path(cfg.output_dir).is_absolute():
            run = folder / cfg.output_dir  # a later command may name it as its config
            run.mkdir(exist_ok=True)
            written = OmegaConf.create(cfg.as_written())
            OmegaConf.save(written, run / CONFIG)
    elif words[0] == "erjepa":
        assert words[1] in COMMANDS, words
        if words[1] == "experiment" and words[2] in ("run", "show"):
            load_experiment(at(words[3], folder), words[4:])
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]), words
    elif words[0] == "python":
        assert (folder / words[1]).is_file(), words
    else:
        assert words[0] in ("pytest", "git", "bash"), f"what is {shlex.join(words)}?"


def at(config, folder):
    is_here = config.endswith(".yaml") or (folder / config).is_dir()
    return str(folder / config) if is_here else config


def packaged():
    return [load(path.stem) for path in sorted((ROOT / "configs").glob("*.yaml"))]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Writes the files that a page shows; its modules can be imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(page):
        for _, name, content in fences(page):
            if name is not None:
                (tmp_path / name).write_text(content)
        return tmp_path

    return write


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_mean_something(page, folder, monkeypatch):
    here = folder(page)
    for words in commands(page):
        if words[:3] == ["erjepa", "configs", "init"]:
            with monkeypatch.context() as patch:
                patch.chdir(here)
                main(words[1:])
        if words[:3] == ["erjepa", "configs", "cp"]:
            cfg = load(words[3])
            (here / words[4]).write_text(
                OmegaConf.to_yaml(OmegaConf.create(cfg.as_written()))
            )
        check(words, here)


WITH_QUICK = [p for p in PAGES if any(map(is_quick, commands(p)))]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_QUICK, ids=lambda page: page.stem)
def test_quick_commands_run(page, folder):
    here = folder(page)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PATH": path}
    scripts = [shlex.join(words) for words in commands(page) if is_quick(words)]
    codes = [
        c for language, name, c in fences(page) if (language, name) == ("python", None)
    ]
    runs = [["bash", "-c", s] for s in scripts] + [
        [sys.executable, "-c", c] for c in codes
    ]
    for run in runs:
        result = subprocess.run(
            run, cwd=here, env=environment, text=True, capture_output=True, timeout=300
        )
        assert result.returncode == 0, f"{run[2]}\n{result.stdout}\n{result.stderr}"


def test_a_renamed_key_is_noticed(tmp_path):
    check(
        "tune run erjepa_recipe --config tiny_synth replay.weight=0".split(), tmp_path
    )
    for wrong in (
        "tune run erjepa_recipe --config tiny_synth replay.wieght=0",
        "tune run erjepa_recipe --config tiny_sinth",
        "... replay.wieght=0",
        "make domo",
        "pip install .[demmo]",
        "erjepa stat tiny_synth",
        "erjepa experiment run mane",
        "erjepa experiment run main overrides.replay.wieght=0",
        "tune download Qwen/Qwen2 --output-dir /tmp/Llama-3.2-1B-Instruct",
    ):
        with pytest.raises((AssertionError, ValueError, OSError)):
            check(wrong.split(), tmp_path)


@pytest.mark.parametrize("page", PAGES + STUDY, ids=str)
def test_form(page):
    """Lines are short, fences have a language, links lead somewhere."""
    text = page.read_text(encoding="utf-8")
    is_made = page.name == "keys.md"  # whose rows are made from a config
    long = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > 120 and not (is_made and line.startswith("| `"))
    ]
    assert not long, f"{page}: lines {long} have more than 120 characters"
    if page in PAGES:
        assert {language for language, *_ in fences(page)} <= LANGUAGES
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path) if path else page
        assert linked.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page}: {target}"


def anchors(page):
    """Names that the headings of a page have, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_that_are_named_exist(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    here = r"`((?:erjepa|recipes|configs|tests|docs)/[\w./]*\w/?)`"
    for path in re.findall(here, prose):
        assert (ROOT / path).exists(), f"{page}: {path}"


def rows(text):
    """The cells of every row of the tables in a text."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_the_page_of_keys_is_made_from_the_config():
    """The comments of the config are the one place that says what a key means; all have one."""
    keys = runpy.run_path(str(ROOT / "scripts" / "keys.py"))
    text = keys["PAGE"].read_text()
    made = keys["page"](text, keys["CONFIG"].read_text())
    assert made == text, "docs/keys.md is out of date; run `make docs`"
    listed = {cells[0].strip("`") for cells in rows(text)}
    for key, value in load("llama3_2_1b_synth").as_written().items():
        has_keys = isinstance(value, dict) and "_component_" not in value
        inside = {f"{key}.{name}" for name in value} if has_keys else {key}
        assert inside <= listed, f"a comment is missing: {inside - listed}"


def test_the_embedded_model_has_one_name():
    """Everywhere but in the README and in the pages of results."""
    another = re.compile(
        r"\b(?:demo's|tiny|embedded (?:base|tiny)|model of the demo)\s+(?:model|llama)",
        re.IGNORECASE,
    )
    folders = (ROOT / name for name in ("configs", "erjepa", "recipes", "scripts"))
    files = [path for folder in folders for path in folder.rglob("*.*")]
    texts = [path for path in files if path.suffix in (".py", ".md", ".yaml", ".sh")]
    for path in [*PAGES[1:], *texts]:
        found = another.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found[0]!r} is `the embedded model`"


def first_cells(page, heading):
    """The first cells of the table below a heading, without its own heading."""
    text = (ROOT / "docs" / page).read_text().partition(f"## {heading}\n")[2]
    _, rule, *below = rows(text.partition("\n## ")[0])
    assert set(rule[0]) == {"-"}
    return [name for cells in below for name in re.findall(r"`([\w.]+)`", cells[0])]


def test_rules_and_tasks_are_all_described():
    rules = first_cells("loss_and_replay.md", "Selection rules")
    assert set(rules) == set(SELECTIONS.names(lambda rule: True))
    weights = first_cells("objectives.md", "Against collapse")
    keys = {f"loss.{name}" for name in inspect.signature(JEPALoss).parameters}
    others = {"loss.lm_weight", "loss.jepa_weight"}
    assert set(weights) == {key for key in keys if key.endswith("_weight")} - others
    text = (ROOT / "docs" / "scores.md").read_text().partition("## Metrics")[2]
    below = rows(text.partition("\n## ")[0])[2:]
    for name, metrics in ((cells[0].strip("`"), cells[1]) for cells in below):
        target = {"spider": "SELECT 1", "gsm8k": "1 #### 1"}.get(name, "a")
        prediction = {"target": target, "output": target, "db_id": "none"}
        (verdicts,) = load_task(name).score([prediction])
        assert re.findall(r"`(\w+)`", metrics) == list(verdicts), name
    assert {cells[0].strip("`") for cells in below} == set(task_names())


def test_experiments_are_all_described():
    text = (ROOT / "docs" / "experiments.md").read_text()
    described = {cells[0].strip("`") for cells in rows(text)} - {"experiment", "---"}
    assert described == {
        p.stem for p in (ROOT / "configs" / "experiments").glob("*.yaml")
    }
    named = re.findall(r"\*\* \((.*?)\)", text, re.S)
    assert set(re.findall(r"`(\w+)`", " ".join(named))) <= set(SECTIONS)


# First cell of the README's table of speed -> benchmark, name of what it measured, and for the
# comparison with LLM-JEPA's code the pairs of a step.
FIGURES = {
    "time of LLM-JEPA's code, 4 pairs padded to 512 as by default, over ours": (
        "llm_jepa",
        "LLM-JEPA padded to 512, its default: its time over ours",
        "4 pairs",
    ),
    "the same, padded to 128": (
        "llm_jepa",
        "LLM-JEPA padded to 128: its time over ours",
        "4 pairs",
    ),
    "the same, padded to 128, with its additive mask": (
        "llm_jepa",
        "LLM-JEPA additive mask, padded to 128: its time over ours",
        "4 pairs",
    ),
    "the same, 16 pairs padded to 128": (
        "llm_jepa",
        "LLM-JEPA padded to 128: its time over ours",
        "16 pairs",
    ),
    "time of torchtune's LoRA SFT, padded, its loss in one chunk, over our SFT": (
        "torchtune_sft",
        "torchtune, one chunk over SFT",
    ),
    "time of ER-JEPA over SFT, one replayed pair per new pair": (
        "torchtune_sft",
        "ER-JEPA over SFT",
    ),
    "replay overhead, 64 pairs, a million slots, at most": (
        "replay",
        "replay, content, sources alike, 10^6",
    ),
    "a million slots of 100 tokens": (
        "replay",
        "replay, a million slots of 100 tokens",
    ),
}


def test_speed_is_what_was_measured():
    """Two digits of each figure in the README are those of the benchmarks' results."""
    section = (
        (ROOT / "README.md").read_text().partition("## Speed")[2].partition("## ")[0]
    )
    written = {cells[0]: cells[1:] for cells in rows(section) if cells[0].strip("-")}
    measured = {
        text: [*(figure(folder, *of) for folder in ("", "h100")), f"`{of[0]}`"]
        for text, of in FIGURES.items()
    }
    assert written == measured
    seconds = {
        pairs: two_digits(pairs / row["value"])
        for pairs in (4, 16)
        for row in benchmarks("h100")["llm_jepa"]
        if row["name"] == "pairs per second, ours" and f", {pairs} pairs" in row["note"]
    }
    assert seconds[4] == seconds[16]
    assert f"takes {seconds[4]} s with 4 pairs and with 16" in section


def figure(folder, benchmark, name, pairs=""):
    """What was measured, "" if nothing was."""
    rows = [
        f"{two_digits(row['value'])} {row['unit']}".strip()
        for row in benchmarks(folder).get(benchmark, ())
        if row["name"] == name and (not pairs or f", {pairs} a step" in row["note"])
    ]
    assert len(rows) <= 1
    return "".join(rows)


def benchmarks(folder):
    """Results of all benchmarks in a folder of ``tests/benchmarks``."""
    path = ROOT / "tests" / "benchmarks" / folder / "results.json"
    return json.loads(path.read_text())["results"]


def two_digits(value):
    return f"{float(f'{value:.2g}'):g}"


def test_python_fences_are_python():
    for page in PAGES:
        for language, _, content in fences(page):
            if language == "python":
                ast.parse(content)
