"""Imports follow the direction of the data: a part imports only earlier parts."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import erjepa.datasets
import erjepa.tasks

ROOT = Path(__file__).parents[1]

TRAINING = ("training.model", "training.step", "training.run")

# Part of the package -> parts of the project that it may import.
MAY_IMPORT = {
    "utils": set(),
    "replay": set(),
    "configs": {"replay", "utils"},
    "datasets": {"configs", "utils"},
    "packing": {"configs", "datasets"},
    "objective": {"packing"},
    "tasks": {"datasets", "utils"},
    "models": {"checkpoints", "datasets", "packing", "utils"},
    "checkpoints": {"configs", "datasets", "replay", "utils"},
    "training": set(),  # the schedule of the learning rate alone
    "training.model": {"configs", "objective", "packing", "utils"},
    "training.step": {"objective", "packing", "training.model"},
    "training.run": {
        *("checkpoints", "configs", "datasets", "objective", "packing", "replay"),
        *("training.model", "training.step", "utils"),
    },
    "evaluation": {
        *("checkpoints", "configs", "datasets", "packing", "objective"),
        *("tasks", *TRAINING, "utils"),
    },
    "commands.memory": {
        *("checkpoints", "configs", "datasets", "evaluation", "objective", "packing"),
        *("replay", *TRAINING, "utils"),
    },
    "commands.doctor": {
        *("checkpoints", "configs", "datasets", "objective", "packing", "replay"),
        *("tasks", *TRAINING, "utils"),
    },
    # Studies of the method.
    "studies": {"utils"},
    "studies.statistics": set(),
    "studies.report": {"studies", "studies.statistics", "tasks", "utils"},
    "studies.grid": {
        *("checkpoints", "configs", "datasets", "studies", "training.run", "utils"),
    },
    # Each is imported by no other; they import what they call, most of it when called.
    "commands": {
        *("checkpoints", "configs", "datasets", "evaluation", "models", "packing"),
        *("studies", "studies.grid", "studies.report", "tasks"),
        *("training.run", "utils"),
    },
    "__main__": {"commands"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def part_of(module):
    """The part of the project that a module belongs to; commands, studies and training have their own."""
    top, *names = module.split(".")
    assert top == "erjepa" and names, module
    inside = ".".join(names[:2])
    return inside if inside in MAY_IMPORT else names[0]


def test_every_part_imports_only_earlier_ones():
    parts = set()
    for path in (ROOT / "erjepa").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if module == "erjepa.__init__":
            continue
        part = part_of(module)
        parts.add(part)
        for imported in imports(path):
            top = imported.partition(".")[0]
            assert top not in ("erjepa_recipe", "erjepa_eval", "tests"), path
            if top == "erjepa":
                assert part_of(imported) in MAY_IMPORT[part] | {part}, (
                    f"{path} imports {imported}"
                )
    assert parts == set(MAY_IMPORT)


@pytest.fixture
def tasks(tmp_path):
    """A folder with a task of its own."""
    folder = tmp_path / "sums"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "dataset.py").write_text("def sums_dataset(): pass")
    (folder / "scorer.py").write_text(
        "from erjepa.tasks import Task\n"
        "TASK = Task(name='sums', primary='number', extract=str.strip, score=list)"
    )
    return tmp_path


def test_a_folder_is_a_task_whose_scorer_needs_no_torch(tasks):
    code = f"""
import sys
import erjepa.tasks
from erjepa.tasks.score import load_task
erjepa.tasks.__path__.append({str(tasks)!r})
names = erjepa.tasks.task_names()
assert "sums" in names and "gsm8k" in names
assert [load_task(name).name for name in names] == names
assert not {{"torch", "torchtune", "datasets"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_folder_is_a_task_whose_builder_is_a_dataset(tasks, monkeypatch):
    monkeypatch.setattr(erjepa.tasks, "__path__", [*erjepa.tasks.__path__, str(tasks)])
    assert erjepa.datasets.synthetic_nl_rx_dataset
    for name in ("sums", "gsm8k"):
        builder = getattr(erjepa.datasets, f"{name}_dataset")
        assert builder.__module__ == f"erjepa.tasks.{name}.dataset"
    for name in erjepa.datasets.__all__:
        assert hasattr(erjepa.datasets, name), name
    assert not hasattr(erjepa.datasets, "mnist_dataset")


def test_replay_imports_only_torch():
    for path in (ROOT / "erjepa" / "replay").glob("*.py"):
        for module in imports(path):
            top = module.split(".")[0]
            assert top in {"erjepa", "pydantic", "torch", *sys.stdlib_module_names}, (
                path
            )


HELPERS = {"benchmarks", "campaign", "harness", "reference"}


def test_no_module_imports_a_test():
    """And helpers import only the harness, references and their own folder."""
    for path in (ROOT / "tests").rglob("*.py"):
        folder = path.relative_to(ROOT / "tests").parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                if not name.startswith("tests."):
                    continue
                wrong = f"{path} imports {name}"
                assert ".test_" not in name and ".conftest." not in name, wrong
                if folder in HELPERS:
                    assert name.split(".")[1] in {"harness", "reference", folder}, wrong
