"""Every ``erjepa`` command prints its help quickly, and an error as one message."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import erjepa.commands
from erjepa.commands import COMMANDS, main

HEAVY = {"torch", "torchtune", "datasets", "omegaconf", "pandas", "matplotlib"}


def run(*words):
    command = [sys.executable, "-m", "erjepa", *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_each_command_is_a_module_or_a_folder():
    (folder,) = erjepa.commands.__path__
    files = Path(folder).glob("[!_]*.py")
    folders = (path.parent for path in Path(folder).glob("*/__init__.py"))
    assert {path.stem for path in [*files, *folders]} == {*COMMANDS}


def test_help_has_a_line_for_each_command():
    said = run("--help")
    assert said.returncode == 0 and said.stderr == ""
    for name, what in COMMANDS.items():
        assert f"\n  {name:<12}{what}\n" in said.stdout
    assert max(map(len, said.stdout.splitlines())) <= 80


def test_whoever_reads_the_output_may_stop():
    """As ``head`` does; nothing is written after it has ended."""
    code = """
import sys, types
from erjepa.commands import main
def print_much(words): print("more than a pipe holds " * 10_000)
sys.modules["erjepa.commands.stats"] = types.SimpleNamespace(main=print_much)
main(["stats"])
"""
    command = f"{sys.executable} -c {shlex.quote(code)} | true"
    said = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert said.stderr == ""


def test_help_imports_nothing_that_takes_long():
    code = f"""
import sys
from erjepa.commands import COMMANDS, main
for words in [["--help"]] + [[name, "--help"] for name in COMMANDS]:
    try:
        main(words)
    except SystemExit as exit:
        assert exit.code == 0, words
assert not {HEAVY} & set(sys.modules), {HEAVY} & set(sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


def test_an_unknown_command_is_told_the_known_ones():
    said = run("genrate", "first")
    assert said.returncode == 2 and said.stdout == ""
    last = said.stderr.splitlines()[-1]
    assert last.startswith("erjepa: error: ") and "genrate" in last
    assert all(name in last for name in COMMANDS)
    assert run().returncode == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_arguments_are_checked(name, capsys):
    with pytest.raises(SystemExit) as exit:
        main([name, "--absent-option"])
    assert exit.value.code == 2
    said = capsys.readouterr().err
    assert "[--traceback]" in said
    assert said.splitlines()[-1].startswith(f"erjepa {name}: error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["configs", "validate", "tiny_synth", "epochs=0"], "epochs: input should"),
        (["experiment", "run", "absent"], "no packaged config"),
        (
            ["experiment", "show", "tiny_matched_compute", "report=[accurcy]"],
            "tiny_matched_compute: report: section 'accurcy' is none of accuracy, ",
        ),
        (["experiment", "status", "."], "is not the output of an experiment"),
        (["report", "absent"], "no packaged config"),
        (["smollm2", "--output-dir=x", "--gguf-file=absent"], "no such file"),
        (["stats", "tiny_synth", "dataset.size=x"], "dataset.size"),
        (["score", "gsm8k", "absent.jsonl"], "absent.jsonl"),
        (["generate", "absent", "prompt"], "absent: no such folder"),
        (["memory", "absent"], "absent does not exist"),
        (["curve", "absent", "curve.png"], "absent"),
        (["doctor", "--config", "absent"], "no packaged config"),
        (["prompts", "absent", "--output", "x.jsonl"], "no packaged config"),
    ],
)
def test_errors_are_one_message(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and message in said
    with pytest.raises((ValueError, OSError), match=message):
        main([*arguments, "--traceback"])
