"""``erjepa configs init`` writes a config for the user's own data."""

import json
import shlex

import pytest
from omegaconf import OmegaConf

from erjepa.commands import main
from erjepa.configs import load
from tests.harness.data import remote_calls


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(file, *words):
    main(["configs", "init", file, "--from", "tiny_synth", *words])


CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("record", "columns", "said"),
    [
        (
            {"question": "a", "answer": "b", "id": 7},
            {"input": "question", "output": "answer"},
            "id",
        ),
        ({"dialogue": CHAT, "messages": CHAT}, {"messages": "messages"}, "dialogue"),
        (
            {"instruction": "a", "output": "b"},
            {"instruction": "instruction", "output": "output"},
            "nothing",
        ),
    ],
)
def test_the_first_record_tells_the_columns(here, capsys, record, columns, said):
    (here / "data.jsonl").write_text(json.dumps(record) + "\n")
    init("my.yaml", "--data", "data.jsonl", "--set", "epochs=3")
    cfg = load("my.yaml")
    assert cfg.dataset.path == "erjepa.datasets.paired_dataset"
    assert cfg.dataset.get("source") == str(here / "data.jsonl")
    assert cfg.dataset.get("column_map") == columns
    assert (cfg.output_dir, cfg.epochs, cfg.eval_dataset) == ("my", 3, None)
    assert (cfg.validation.size, cfg.eval_split) == (0.1, "validation")
    assert OmegaConf.load("my.yaml").defaults == "tiny_synth"
    printed = capsys.readouterr().out
    assert (
        f"not read: {said}. Train with\n  tune run erjepa_recipe --config my.yaml"
        in printed
    )


@pytest.mark.parametrize(
    ("data", "file", "output_dir"),
    [("x", "x.yaml", "x_run"), ("a.jsonl", "cfg/a.jsonl.yaml", "a.jsonl_run")],
)
def test_a_run_is_not_written_into_its_data(here, data, file, output_dir):
    for folder in ("x", "cfg"):
        (here / folder).mkdir()
    for path in (here / "x/train.jsonl", here / "a.jsonl"):
        path.write_text('{"prompt": "a", "completion": "b"}\n')
    init(file, "--data", data)
    assert load(file).output_dir == output_dir


def test_commands_quote_names_with_spaces(here, capsys):
    (here / "a.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    init("my run.yaml", "--data", "a.jsonl")
    assert capsys.readouterr().out.endswith("--config 'my run.yaml'\n")
    assert "erjepa_eval --config 'my run.yaml'\n" in (here / "my run.yaml").read_text()


def test_columns_of_other_names_are_named_by_the_user(here, capsys):
    (here / "rules.csv").write_text("id,description,regex\n1,a vowel,[aeiou]\n")
    with pytest.raises(SystemExit):
        init("rules.yaml", "--data", "rules.csv")
    assert "the columns ['id', 'description', 'regex']" in capsys.readouterr().err
    assert not (here / "rules.yaml").exists()
    column_map = "{input: description, output: regex}"
    others = "{input: question, output: answer}"
    evaluated = "{_component_: erjepa.datasets.paired_dataset, source: rules.csv, "
    given = [f"dataset.column_map={column_map}"]
    given += [f"eval_dataset={evaluated}column_map: {others}}}"]
    init("rules.yaml", "--data", "rules.csv", *(f"--set={one}" for one in given))
    assert load("rules.yaml").eval_split == "test"
    written = (here / "rules.yaml").read_text()
    assert written.count(": description as source, regex as target.\n") == 1


def test_a_column_map_that_is_no_mapping(here, capsys):
    (here / "pairs.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(SystemExit):
        init("my.yaml", "--data", "pairs.jsonl", "dataset.column_map=prompt")
    assert "dataset.column_map: input should be an object" in capsys.readouterr().err


def test_a_dataset_of_other_records_is_copied_instead(here, capsys):
    component = "erjepa.datasets.classification_dataset"
    (here / "reviews.jsonl").write_text('{"text": "a", "label": "b"}\n')
    with pytest.raises(SystemExit):
        init("my.yaml", "--data", "reviews.jsonl", f"dataset={component}")
    main(shlex.split(capsys.readouterr().err.rpartition("dataset: erjepa ")[2]))
    section = load("my.yaml", []).as_dict()["dataset"]
    assert section == {"_component_": component, "source": "reviews.jsonl"}


def test_records_that_cannot_be_trained_on_get_no_config(here, capsys):
    (here / "pairs.jsonl").write_text('{"prompt": "a", "completion": ["b"]}\n')
    with pytest.raises(SystemExit):
        init("my.yaml", "--data", "pairs.jsonl")
    said = "pairs.jsonl:1: column 'completion' holds ['b'] (list); expected a text"
    assert said in capsys.readouterr().err and not (here / "my.yaml").exists()


def test_nested_fields_have_dotted_names(here, capsys):
    record = {"input": {"text": "a"}, "output": {"best": {"text": "b"}, "id": 7}}
    (here / "pairs.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(SystemExit):
        init("my.yaml", "--data", "pairs.jsonl")
    said = "the columns ['input.text', 'output.best.text', 'output.id']; none"
    assert said in capsys.readouterr().err
    names = {"input": "input.text", "output": "output.best.text"}
    given = (f"--set=dataset.column_map.{key}={names[key]}" for key in names)
    init("my.yaml", "--data", "pairs.jsonl", *given)
    assert load("my.yaml").dataset.get("column_map") == names
    said = "input.text as source, output.best.text as target; not read: output.id."
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("given", ["validation=null", "~eval_dataset"])
def test_nothing_held_out_is_not_scored(here, given):
    (here / "pairs.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    init("my.yaml", "--data", "pairs.jsonl", f"--set={given}")
    assert load("my.yaml").eval_split == "test"


def test_a_dataset_of_the_hub_is_read_as_it_will_be(here, monkeypatch):
    rows = [{"prompt": "a", "completion": "b"}]
    calls = remote_calls(monkeypatch, here / "file", rows)
    given = ("dataset.name=main", "dataset.split=dev", "dataset.max_examples=9")
    init("my.yaml", "--data", "owner/data", *(f"--set={one}" for one in given))
    ((args, kwargs),) = calls
    assert args == ("owner/data",)
    assert (kwargs["name"], kwargs["split"], "max_examples" in kwargs) == (
        *("main", "dev", False),
    )
    assert load("my.yaml").dataset.get("name") == "main"


def test_keys_stand_anywhere_after_the_file(here, capsys):
    (here / "pairs.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    words = "epochs=3 --data pairs.jsonl seed=4 --set batch_size=5 ~validation".split()
    init("my.yaml", *words)
    cfg = load("my.yaml")
    assert (cfg.epochs, cfg.seed, cfg.batch_size) == (3, 4, 5)
    assert cfg.eval_split == "test"
    for word, error in (
        ("--sed=4", "unrecognized arguments: --sed=4"),
        ("seed", "seed: expected key=value"),
    ):
        with pytest.raises(SystemExit):
            init("other.yaml", "--data", "pairs.jsonl", word)
        assert error in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["configs", "ls", "seed=4"])
    assert "unrecognized arguments: seed=4" in capsys.readouterr().err


def test_it_writes_over_nothing_and_nothing_wrong(here, capsys):
    (here / "pairs.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(SystemExit):
        init("my.yaml", "--data", "pairs.jsonl", "--set=epohcs=3")
    assert "Did you mean epochs?" in capsys.readouterr().err
    (here / "my.yaml").write_text("epochs: 1\n")
    with pytest.raises(SystemExit):
        init("my.yaml", "--data", "pairs.jsonl")
    assert "my.yaml exists; choose another name" in capsys.readouterr().err
    assert (here / "my.yaml").read_text() == "epochs: 1\n"


def test_it_may_have_the_name_of_the_config_that_it_inherits_from(here):
    (here / "pairs.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    init("tiny_synth.yaml", "--data", "pairs.jsonl")
    assert load("tiny_synth.yaml").batch_size == load("tiny_synth").batch_size


def test_it_does_not_start_where_the_run_that_it_inherits_from_did(here):
    (here / "pairs.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    for folder, start in {"one": "continue_from", "two": "init_from"}.items():
        (here / folder).mkdir()
        (here / folder / "torchtune_config.yaml").write_text(
            f"{{defaults: tiny_synth, {start}: old, replay: {{init_from: old}}}}"
        )
        for name, word in (("new", "seed=1"), ("next", f"continue_from={folder}")):
            words = "--data", "pairs.jsonl", "--from", folder, word
            main(["configs", "init", f"{folder}_{name}.yaml", *words])
        cfg = load(f"{folder}_new.yaml")
        starts = cfg.continue_from, cfg.init_from, cfg.replay.start_from
        assert starts == (None, None, [])
        cfg = load(f"{folder}_next.yaml")
        assert (cfg.init_from, cfg.replay.start_from) == (folder, [folder])


def test_what_it_inherits_from_is_what_was_named(here, capsys):
    (here / "pairs.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (here / "base.yaml").write_text("{defaults: tiny_synth, batch_size: 3}")
    for folder in ("new", "other"):
        (here / folder).mkdir()
    (here / "other" / "base.yaml").write_text("defaults: llama3_2_1b_synth")
    for folder in ("new", "other"):
        words = "--data", "pairs.jsonl", "--from", "base.yaml"
        main(["configs", "init", f"{folder}/my.yaml", *words])
        assert load(f"{folder}/my.yaml").batch_size == 3
    (here / "run").mkdir()  # whose config has what was set on the command line, too
    (here / "run" / "torchtune_config.yaml").write_text(
        "{defaults: tiny_synth, seed: 7}"
    )
    (here / "run.yaml").write_text("defaults: tiny_synth")
    main(["configs", "init", "next.yaml", "--data", "pairs.jsonl", "--from", "run"])
    assert load("next.yaml").seed == 7
    assert "or, with what run learned, add continue_from=run" in capsys.readouterr().out
    (here / "tiny_synth.yaml").write_text("defaults: llama3_2_1b_synth")
    with pytest.raises(SystemExit):
        init("my.yaml", "--data", "pairs.jsonl")
    said = "my.yaml would inherit from tiny_synth.yaml instead of the packaged"
    assert said in capsys.readouterr().err and not (here / "my.yaml").exists()
