"""Data flows one way: each part imports only what comes before it."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Part of the package -> parts of the project that it may import.
MAY_IMPORT = {
    "replay": set(),
    "config": set(),
    "generation": set(),
    "training": set(),
    "datasets": set(),
    "stats": {"datasets", "packing", "config"},
    "packing": {"datasets"},
    "flops": {"packing"},
    "attention": set(),
    "forward": {"attention", "packing"},
    "loss": {"packing", "forward"},
    "alignment": {"datasets", "packing", "forward", "loss"},
    "answers": {"datasets", "generation"},
    "models": {"datasets"},
    "tasks": set(),
    "validation": {
        *("datasets", "packing", "forward", "loss"),
        *("generation", "answers", "tasks", "training"),
    },
    "predictions": set(),
    "model_card": set(),
    "analysis": {"tasks"},
    "report": {"analysis"},
    "demo": {"analysis"},
    "experiment": {"config", "predictions", "training", "report"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def part_of(path):
    parts = path.relative_to(ROOT / "erjepa").with_suffix("").parts
    # A command about a config, beside the datasets it measures.
    return "stats" if parts == ("datasets", "stats") else parts[0]


def test_every_part_imports_only_earlier_ones():
    parts = set()
    for path in (ROOT / "erjepa").rglob("*.py"):
        part = part_of(path)
        if part == "__init__":
            continue
        parts.add(part)
        for module in imports(path):
            top, *rest = module.split(".")
            assert top not in ("erjepa_recipe", "erjepa_eval", "tests"), path
            if top == "erjepa":
                assert rest and rest[0] in MAY_IMPORT[part] | {part}, (
                    f"{path} imports {module}"
                )
    assert parts == set(MAY_IMPORT)


def test_replay_imports_only_torch():
    import sys

    for path in (ROOT / "erjepa" / "replay").glob("*.py"):
        for module in imports(path):
            top = module.split(".")[0]
            assert top in {"erjepa", "torch", *sys.stdlib_module_names}, path


def test_files_are_of_one_idea():
    for path in (ROOT / "erjepa").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 260, path
