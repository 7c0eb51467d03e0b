"""The counts and reports of the benchmarks, checked by hand."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from tests.benchmarks.__main__ import markdown, names
from tests.benchmarks.memory import SavedBytes
from tests.benchmarks.timing import Row, Times, half_quartiles, interleave, ratio


def test_functions_take_turns_and_warm_up():
    calls = []
    times = interleave(
        {name: lambda name=name: calls.append(name) for name in "abc"}, repeats=9
    )
    turns = ["".join(calls[i : i + 3]) for i in range(0, 30, 3)]
    assert len(calls) == 30 and {"".join(sorted(turn)) for turn in turns} == {"abc"}
    assert len(set(turns)) > 3  # in another order each time
    assert [len(times[name].seconds) for name in "abc"] == [9, 9, 9]


def test_a_ratio_is_the_median_of_paired_ratios():
    row = ratio("x", Times([2.0, 9.0, 40.0]), Times([1.0, 3.0, 10.0]), target=">= 2")
    assert row == Row("x", 3.0, "", 0.5, ">= 2")
    assert half_quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == 1.0


def test_saved_bytes_count_a_storage_once_and_weights_never():
    model = torch.nn.Linear(4, 4, bias=False)
    x = torch.randn(2, 4)
    with SavedBytes(model) as saved:
        # Saved: x for the weight's gradient, twice; 2 x 4 floats are 32 bytes.
        first, second = model(x), model(x)
        assert saved.peak == 32
        # The output of exp, beside it.
        (first.exp().sum() + second.sum()).backward()
        assert saved.peak == 64
        # All of it was given back: the next pass peaks no higher.
        model(x).exp().sum().backward()
        assert saved.peak == 64


def test_a_table_has_every_figure_and_its_target():
    rows = {"part": [Row("step", 12.345, "ms", 0.5, "<= 20", "a note")]}
    table = markdown(rows, {"cpu": "one"}, "python -m tests.benchmarks")
    assert "| step | 12.35 ± 0.5 | ms | <= 20 | a note |" in table
    assert "- cpu: one" in table and "## part" in table


def test_every_benchmark_is_found():
    found = set(names())
    assert {"llm_jepa", "torchtune_sft", "memory", "utilisation"} <= found
    modules = [import_module(f"tests.benchmarks.{name}") for name in found]
    assert all(hasattr(module, "benchmark") for module in modules)


@pytest.mark.parametrize("set_to", ["", "/nowhere"])
def test_without_llm_jepas_code_its_benchmark_says_what_is_missing(
    monkeypatch, capsys, set_to
):
    from tests.benchmarks import llm_jepa

    for name in ("LLM_JEPA_CHECKOUT", "LLM_JEPA_PYTHON"):
        monkeypatch.setenv(name, set_to)
    assert llm_jepa.benchmark(quick=True) == []
    assert "skipped: LLM_JEPA_CHECKOUT" in capsys.readouterr().out


def check_gpu(part, folder, **variables):
    """``scripts/check_gpu.sh`` on a CPU, at a tiny size."""
    environment = {**os.environ, "DEVICE": "cpu", "SIZE": "tiny", **variables}
    environment |= {"PYTHON": sys.executable, "TORCH_COMPILE_BACKEND": "eager"}
    command = ["bash", Path(__file__).parents[1] / "scripts" / "check_gpu.sh"]
    return subprocess.run(
        [*command, part, folder], env=environment, capture_output=True, text=True
    )


def test_a_part_of_the_checks_that_is_unknown(tmp_path):
    run = check_gpu("4096", tmp_path)
    assert run.returncode == 2 and "2048 8192 memory" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("first", "losses of a resumed run, largest relative difference | 0 |"),
        ("fsdp2", "FSDP2 on one rank, cpu: loss of the last step"),
        ("2048", "graphs compiled, cpu, rows of 2048, compiled"),
        ("ranks", "2 ranks, cpu, and one, largest relative difference"),
    ],
)
def test_parts_of_the_checks_write_a_table(tmp_path, part, expected):
    run = check_gpu(part, tmp_path)
    logs = [log.read_text()[-3000:] for log in tmp_path.glob("*.log")]
    assert run.returncode == 0, (run.stdout, run.stderr, logs)
    table = (tmp_path / part / "RESULTS.md").read_text()
    assert expected in table, table
