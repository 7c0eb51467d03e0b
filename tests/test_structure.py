"""Data flows one way: each part imports only what comes before it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

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
    "models": {"tasks", "utils"},
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
    "memory": {
        *("checkpoints", "configs", "datasets", "evaluation", "objective", "packing"),
        *("replay", *TRAINING, "utils"),
    },
    "doctor": {
        *("checkpoints", "configs", "datasets", "objective", "packing", "replay"),
        *(*TRAINING, "utils"),
    },
    # Studies of the method.
    "studies": {"utils"},
    "studies.statistics": set(),
    "studies.report": {"studies", "studies.statistics", "tasks", "utils"},
    "studies.grid": {"checkpoints", "configs", "studies", "training.run", "utils"},
    "bundle": {"configs", "datasets", "utils"},
    # Each is imported by no other; they import what they call, most of it when called.
    "commands": {
        *("bundle", "checkpoints", "configs", "doctor", "evaluation", "memory"),
        *(
            "models",
            "packing",
            "studies",
            "studies.grid",
            "studies.report",
            "tasks",
            "utils",
        ),
    },
    "__main__": {"commands", "utils"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def part_of(module):
    """The part of the project that a module belongs to; studies and training have parts of their own."""
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


def test_datasets_find_the_builders_of_tasks_when_asked():
    """Tasks import datasets; the names that configs know are resolved the other way."""
    code = """
import sys
import erjepa.datasets
assert not any(name.startswith("erjepa.tasks") for name in sys.modules)
from erjepa.tasks.gsm8k.dataset import gsm8k_dataset
assert erjepa.datasets.gsm8k_dataset is gsm8k_dataset
for name in erjepa.datasets.__all__:
    assert hasattr(erjepa.datasets, name), name
assert not hasattr(erjepa.datasets, "mnist_dataset")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_scoring_needs_no_torch():
    code = """
import sys
from erjepa.tasks.score import load_task, task_names
tasks = [load_task(name) for name in task_names()]
assert [task.name for task in tasks] == task_names()
assert len(tasks) == 5
assert not {"torch", "torchtune", "datasets"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_folder_is_packaged():
    tomllib = pytest.importorskip("tomllib")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = settings["tool"]["setuptools"]["packages"]
    folders = {path.parent for path in (ROOT / "erjepa").rglob("*.py")}
    dotted = {".".join(path.relative_to(ROOT).parts) for path in folders}
    assert dotted <= set(listed), dotted - set(listed)


def test_replay_imports_only_torch():
    for path in (ROOT / "erjepa" / "replay").glob("*.py"):
        for module in imports(path):
            top = module.split(".")[0]
            assert top in {"erjepa", "torch", *sys.stdlib_module_names}, path
