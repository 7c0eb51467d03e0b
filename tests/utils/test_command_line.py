"""User errors are one message; all others keep their traceback."""

import json
import os
import subprocess
import sys
import time
from unittest import mock

import pytest
import torch
from torchtune.modules import MultiHeadAttention
from torchtune.training import metric_logging

from erjepa.replay import EpisodicMemory, ReplaySettings
from erjepa.utils.command_line import CommandLine, is_users


def open_absent():
    open("/absent/file")


def of_torchtune():
    projections = dict.fromkeys(("q_proj", "k_proj", "v_proj", "output_proj"))
    MultiHeadAttention(
        embed_dim=8, num_heads=3, num_kv_heads=2, head_dim=4, **projections
    )


def without_wandb():
    logger("wandb", metric_logging.WandBLogger)


def without_tensorboard():
    logger("tensorboard", metric_logging.TensorBoardLogger, log_dir="/absent")


def logger(package, build, **arguments):
    with mock.patch.dict(sys.modules, {package: None}):
        sys.modules.pop("torch.utils.tensorboard", None)
        build(**arguments)


def without_gguf():
    raise ModuleNotFoundError("No module named 'gguf'", name="gguf")


def slip_in_our_code():
    # A ValueError that float() raises in a line of the project.
    EpisodicMemory(1, None, device="no device")


def of_this_module():
    raise ValueError("what a component of the user's own says")


@pytest.mark.parametrize(
    ("function", "is_the_users"),
    [
        (lambda: ReplaySettings(weight_min=5), True),
        (of_torchtune, True),
        (lambda: torch.optim.AdamW([torch.zeros(1)], lr=-1.0), True),
        (open_absent, True),
        (without_gguf, True),
        (without_wandb, True),
        (without_tensorboard, True),
        (slip_in_our_code, False),
        (of_this_module, False),
        (lambda: torch.zeros(2) @ torch.zeros(3), False),
        (lambda: torch.optim.AdamW([]), True),
        (lambda: __import__("absent_module"), False),
        (lambda: {}["key"], False),
        (lambda: int("x"), False),
    ],
)
def test_whose_error_it_is(function, is_the_users):
    with pytest.raises(Exception) as raised:
        function()
    assert is_users(raised.value) == is_the_users


def test_an_error_that_was_never_raised_is_a_fault():
    assert not is_users(ValueError("x"))


def interrupt():
    raise KeyboardInterrupt


def attempt(*arguments, function=lambda: ReplaySettings(weight_min=5)):
    parser = CommandLine(prog="program")
    with parser.errors(parser.parse_args(arguments)):
        function()


def test_ctrl_c_ends_a_command_without_a_traceback(capsys):
    with pytest.raises(SystemExit) as end:
        attempt(function=interrupt)
    assert end.value.code == 130
    assert capsys.readouterr() == ("", "")
    with pytest.raises(KeyboardInterrupt):
        attempt("--traceback", function=interrupt)


def test_one_message_and_exit_code_2(capsys):
    with pytest.raises(SystemExit) as exit:
        attempt()
    assert exit.value.code == 2
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1
    assert said.err.startswith("program: error: replay.weight_min must be at most")


def test_faults_and_traceback_raise():
    with pytest.raises(ValueError, match=r"replay.weight_min must"):
        attempt("--traceback")
    with pytest.raises(ValueError, match="of the user's own"):
        attempt(function=of_this_module)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (without_gguf, "No module named 'gguf': pip install 'erjepa[smollm2]'"),
        (without_tensorboard, ": pip install 'erjepa[loggers]'"),
        (without_wandb, "``wandb`` package not found. Please install wandb using"),
    ],
)
def test_a_missing_package_is_said_in_one_line(capsys, function, message):
    with pytest.raises(SystemExit):
        attempt(function=function)
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1


def test_under_a_launcher_its_table_has_the_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit) as exit:
        attempt("--absent")
    assert exit.value.code == 2 and capsys.readouterr().err == ""
    message = json.loads((tmp_path / "error.json").read_text())["message"]
    text = message["extraInfo"]["py_callstack"]
    assert text.endswith("program: error: unrecognized arguments: --absent")
    assert abs(int(message["extraInfo"]["timestamp"]) - time.time()) < 60


RANK_ONE = """
import sys
import erjepa.utils.command_line
erjepa.utils.command_line._PATIENCE = float(sys.argv[1])
parser = erjepa.utils.command_line.CommandLine(prog="program")
print("ready", flush=True)
with parser.errors(parser.parse_args([])):
    open("/absent/file")
"""


@pytest.mark.parametrize("patience", ["0", "60"])
def test_other_ranks_speak_only_if_nothing_ends_them(patience):
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK_ONE, patience],
        env={**os.environ, "RANK": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rank.stdout.readline()
    if patience == "60":
        time.sleep(0.2)
        rank.terminate()
    said = rank.communicate(timeout=30)[1]
    if patience == "0":
        assert rank.returncode == 2
        assert (
            said.startswith("program: error: /absent/file: No such file")
            and said.count("\n") == 1
        )
    else:
        assert (rank.returncode, said) == (0, "")


def test_overrides_are_optional(capsys):
    parser = CommandLine(prog="here")
    parser.add_argument("config")
    parser.add_overrides()
    assert parser.parse_intermixed_args(["a"]).overrides == []
    assert parser.parse_intermixed_args(["a", "b=1", "c=2"]).overrides == ["b=1", "c=2"]
    with pytest.raises(SystemExit):
        parser.parse_intermixed_args([])
    assert capsys.readouterr().err.endswith("are required: config\n")
