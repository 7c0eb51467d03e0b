"""The commands of ``erjepa configs``, and configs on the command line of the recipes."""

import sys

import pytest
import yaml

import erjepa.configs
from erjepa.commands.configs import main
from erjepa.configs import load


def test_ls_names_every_config(capsys):
    main(["ls"])
    lines = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in lines] == erjepa.configs.config_names()
    assert all(" fine-tuning of " in row for row in lines)


def test_show_cp_validate(tmp_path, capsys):
    main(["show", "tiny_synth", "epochs=3"])
    text = capsys.readouterr().out
    assert "\n# With epochs=3\n" in text
    file = tmp_path / "mine.yaml"
    main(["cp", "tiny_synth", str(file), "epochs=3"])
    assert file.read_text() == text
    assert load(str(file)) == load("tiny_synth", ["epochs=3"])
    main(["validate", str(file), "batch_size=2"])
    assert f"{file}: every key is known" in capsys.readouterr().out


def test_errors_are_one_line(tmp_path, capsys):
    taken = tmp_path / "taken.yaml"
    taken.write_text("mine")
    for arguments, message in (
        (
            [*("validate", "tiny_synth"), "loss.jepa_weight=0", "loss.sigreg_weight=1"],
            "error: loss.jepa_weight is 0, so",
        ),
        (["cp", "tiny_synth", str(taken)], "taken.yaml"),
    ):
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        said = capsys.readouterr()
        assert exit.value.code == 2 and not said.out
        assert message in said.err.splitlines()[-1]
    assert taken.read_text() == "mine"


@pytest.fixture
def run(monkeypatch):
    """Calls a recipe's main function with a command line; the config that it is given."""

    def run(*arguments):
        given = []
        monkeypatch.setattr(sys, "argv", ["recipe", *arguments])
        with pytest.raises(SystemExit) as exit:
            erjepa.configs.parse(lambda cfg: given.append(cfg))()
        return exit.value.code, given

    return run


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config", "tiny_synth", "epochs=3", "~eval_dataset.grammar_seed"],
        ["--config=tiny_synth", "epochs=3", "~eval_dataset.grammar_seed"],
        ["epochs=3", "--config", "tiny_synth", "~eval_dataset.grammar_seed"],
    ],
)
def test_a_recipe_is_given_every_key(run, arguments):
    code, (cfg,) = run(*arguments)
    overrides = ["epochs=3", "~eval_dataset.grammar_seed"]
    assert code is None and cfg == load("tiny_synth", overrides)


def test_a_recipe_is_not_run_with_a_config_that_makes_no_sense(run, capsys):
    code, given = run("--config", "tiny_synth", "epochs=0")
    said = "recipe: error: epochs: input should be greater than or equal to 1, got 0\n"
    assert code == 2 and capsys.readouterr().err == said
    assert not given
    code, given = run("--config", "tiny_synth", "--epochs", "0")
    assert code == 2 and not given


OWN = ["dataset=erjepa.datasets.paired_dataset", "dataset.source=own.jsonl"]
FILE = "dataset: {_component_: erjepa.datasets.paired_dataset, source: own.jsonl}"


@pytest.mark.parametrize(
    ("name", "overrides", "warns"),
    [
        ("tiny_synth", OWN, True),
        ("llama3_2_1b_gsm8k", ["dataset.source=own.jsonl"], True),
        ("llama3_2_1b_synth", ["dataset.subset=turk"], True),
        ("FILE", [], True),
        ("FILE", ["epochs=2"], True),
        ("FILE", ["eval_dataset=null"], False),
        ("tiny_synth", [*OWN, "eval_dataset=null"], False),
        ("tiny_synth", [*OWN, "eval_split=validation", "validation.size=1"], False),
        ("tiny_synth", [*OWN, *(f"eval_{key}" for key in OWN)], False),
        ("smollm2_135m_continual", ["dataset.source=own.jsonl"], False),
        ("tiny_continual", ["dataset.constructs=[or]", "dataset.size=8"], False),
        *((name, [], False) for name in erjepa.configs.config_names()),
    ],
)
def test_an_inherited_eval_dataset_is_said(
    name, overrides, warns, run, tmp_path, caplog
):
    if name == "FILE":
        name = str(tmp_path / "own.yaml")
        (tmp_path / "own.yaml").write_text(f"defaults: tiny_synth\n{FILE}\n")
    code, (cfg,) = run("--config", name, *overrides)
    said = [record.getMessage() for record in caplog.records]
    expected = (
        "dataset was changed but eval_dataset was not: evaluation scores other "
        "data than the run trains on; set eval_dataset, or eval_dataset=null"
    )
    assert said == [expected] * warns


@pytest.mark.parametrize(
    ("overrides", "warns"),
    [
        ([], True),
        (["eval_split=test"], False),
        (["eval_split=validation"], False),
        (["eval_dataset=null"], False),
    ],
)
def test_an_eval_dataset_that_is_not_scored_is_said(
    overrides, warns, run, tmp_path, caplog
):
    own = {"defaults": "tiny_synth", "eval_dataset": None, "eval_split": "validation"}
    (tmp_path / "own.yaml").write_text(
        yaml.safe_dump({**own, "validation": {"size": 0.1}})
    )
    eval_dataset = [f"eval_{key}" for key in OWN]
    code, (cfg,) = run(
        "--config", str(tmp_path / "own.yaml"), *eval_dataset, *overrides
    )
    said = [record.getMessage() for record in caplog.records]
    expected = (
        "eval_dataset was set but eval_split is validation: evaluation scores held-out "
        "pairs of dataset; set eval_split=test"
    )
    assert code is None and said == [expected] * warns


def test_an_unknown_config_lists_the_packaged_ones(run, capsys):
    code, given = run("--config", "llama3_2_1b_sinth")
    said = capsys.readouterr().err
    assert code == 2 and not given and "no packaged config of that name" in said
    assert said.endswith("Did you mean llama3_2_1b_synth?\n")
    run("--config", "quite_another")
    said = capsys.readouterr().err
    assert all(name in said for name in erjepa.configs.config_names())


def test_arguments_of_the_launcher_belong_before_the_recipe(run, capsys):
    code, given = run("--config", "tiny_synth", "--nproc_per_node", "2")
    assert code == 2 and not given
    assert (
        "belongs before the recipe: tune run --nproc_per_node ..."
        in capsys.readouterr().err
    )
