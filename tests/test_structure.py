"""Data flows one way: each part imports only what comes before it."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Part of the package -> parts of the project that it may import.
MAY_IMPORT = {
    "replay": set(),
    "configs": {"replay"},
    "training": {"datasets", "packing", "objective"},
    "datasets": set(),
    "stats": {"datasets", "packing", "configs"},
    "packing": {"datasets"},
    "objective": {"packing"},
    "models": {"datasets"},
    "tasks": set(),
    "evaluation": {"datasets", "packing", "objective", "tasks", "training"},
    "analysis": {"tasks"},
    "report": {"analysis"},
    "demo": {"analysis"},
    "experiment": {"configs", "evaluation", "training", "report"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def test_every_part_imports_only_earlier_ones():
    parts = set()
    for path in (ROOT / "erjepa").rglob("*.py"):
        part = path.relative_to(ROOT / "erjepa").with_suffix("").parts[0]
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
