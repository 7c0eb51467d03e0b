"""``erjepa generate`` answers a prompt as evaluation does."""

import json
import shutil

import pytest
from torchtune.data import InputOutputToMessages

from erjepa.commands.generate import main
from erjepa.datasets import PairedDataset, Record
from erjepa.evaluation.chat import read_prompts, system_note
from erjepa.evaluation.run import find_run
from erjepa.models.transformers import TransformersTokenizer
from tests.harness.data import write_jsonl
from tests.harness.runs import evaluate, paired, predictions, small_config, train
from tests.harness.transformers_models import STRICT, TEMPLATE, write_folder

NEWEST = "epoch_0_step_4"


@pytest.fixture(scope="module")
def run(deep_base, data, tmp_path_factory):
    """Output folder of a run, whose newest checkpoint evaluation scored."""
    folder = tmp_path_factory.mktemp("run")
    settings = {"epochs": 1, "stop__steps": 4, "max_new_tokens": 5, "batch_size": 8}
    settings["eval_batch_size"] = 44
    settings |= {"save_every_n_steps": 2, "ema_decay": 0.9, "checkpoint": "both"}
    settings |= {"optimizer__lr": 0.001, **paired("eval_dataset", data)}
    cfg = small_config(deep_base, data, folder, **settings)
    train(cfg)
    evaluate(cfg)
    return folder


def test_a_file_is_answered_as_evaluation_does(run, tmp_path, capsys):
    expected = predictions(run, NEWEST)
    file, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    write_jsonl(file, ({"prompt": p["prompt"]} for p in expected))
    main([str(run), "--file", str(file), "--output", str(output)])
    found = [json.loads(line) for line in output.read_text().splitlines()]
    keys = ("prompt", "output", "tokens", "finished")
    assert found == [{key: p[key] for key in keys} for p in expected]
    assert len({answer["output"] for answer in found}) > 4
    assert f"Wrote 44 answers of {run / 'epoch_0_step_4'} to" in capsys.readouterr().out


def test_a_prompt_is_answered_on_the_screen(run, capsys):
    first = predictions(run, NEWEST)[0]
    main([str(run), first["prompt"]])
    cut = "" if first["finished"] else "  [cut at 5 tokens]"
    assert capsys.readouterr().out == f"{first['output']}{cut}\n"

    averaged = predictions(run, f"{NEWEST}_ema")
    own = next(p for p in averaged if p not in predictions(run, NEWEST))
    cut = "" if own["finished"] else "  [cut at 5 tokens]"
    ema = run / NEWEST / "ema"
    for path, which in ((run, "ema"), (ema, "last"), (ema, "ema")):
        main([str(path), own["prompt"], "--set", f"checkpoint={which}"])
        assert capsys.readouterr().out == f"{own['output']}{cut}\n"


def test_no_data_is_needed(run, data, tmp_path, capsys):
    """The run has the system message of its pairs, wherever it is now."""
    first = predictions(run, NEWEST)[0]
    shutil.copytree(run, moved := tmp_path / "moved")
    data.rename(aside := data.with_name("aside.jsonl"))
    try:
        main([str(moved), first["prompt"]])
    finally:
        aside.rename(data)
    assert capsys.readouterr().out.startswith(first["output"])


def test_an_older_checkpoint_answers_with_other_settings(run, capsys):
    older = run / "epoch_0_step_2"
    main([str(older), "--set", "max_new_tokens=1", "1", "2", "--set", "merged=True"])
    lines = capsys.readouterr().out.split("  [cut at 1 tokens]\n")
    assert [line[:2] for line in lines] == ["1\n", "2\n", ""]


def test_an_answer_may_be_cut_where_the_model_has_no_more_positions(
    run, monkeypatch, capsys
):
    cut = {"output": "An", "tokens": 3, "finished": False}
    monkeypatch.setattr("erjepa.evaluation.chat.generate_texts", lambda *_: [cut])
    main([str(run), "one", "--set", "max_new_tokens=9"])
    assert capsys.readouterr().out == "An  [cut at 3 tokens]\n"


def test_the_system_message_is_that_of_the_pairs_or_what_is_said(run, monkeypatch):
    seen = []

    def generate(model, prompts, **options):
        seen.append(bytes(t for t in prompts[0] if t < 256).decode())
        return [[] for _ in prompts]

    monkeypatch.setattr("erjepa.evaluation.answers.generate_greedy", generate)
    for more in ([], ["--system", "Hm."], ["--system", ""]):
        main([str(run), "one", *more])
    asked = "user\n\noneassistant\n\n"
    assert seen == [f"system\n\nConvert.{asked}", f"system\n\nHm.{asked}", asked]


def test_the_system_message_is_said_once(run, caplog):
    main([str(run), "one", "two", "--set", "max_new_tokens=1"])
    said = caplog.text
    line = "The system message is that of the first training pair, 'Convert.'; --system sets"
    assert said.count("system message") == said.count(line) == 1
    caplog.clear()
    main([str(run), "one", "--set", "max_new_tokens=1", "--system", "Hm."])
    assert "system message" not in caplog.text


@pytest.mark.parametrize(
    ("template", "given", "note"),
    [
        (TEMPLATE, None, "The system message is the chat template's, 'Be kind.'; "),
        (TEMPLATE, "", "The system message is the chat template's, 'Be kind.'; "),
        (TEMPLATE, "Hm.", None),
        (STRICT, None, None),
    ],
    ids=["default", "none of its own", "given", "no default"],
)
def test_a_templates_default_system_message_is_said(tmp_path, template, given, note):
    tokenizer = TransformersTokenizer(str(write_folder(tmp_path, "llama", template)))
    record = Record("a", {"input": "ask", "output": "answer"})
    pairs = PairedDataset([record], tokenizer, InputOutputToMessages())
    said = system_note(pairs, tokenizer, given)
    assert said is None if note is None else said.startswith(note)
    assert tokenizer.decode(pairs.ask("ask", given)).count("Be kind.") == bool(note)


def test_a_run_is_found_by_its_folder_or_a_checkpoint(run, tmp_path, monkeypatch):
    config = run / "torchtune_config.yaml"
    assert find_run(run) == (config, run / NEWEST)
    assert find_run(run / "epoch_0_step_2") == (config, run / "epoch_0_step_2")
    monkeypatch.chdir(run / "epoch_0_step_2")
    assert find_run(run.__class__(".")) == (run / config, run.__class__("."))
    with pytest.raises(FileNotFoundError, match="is neither the output_dir of a run"):
        find_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent: no such folder"):
        find_run(tmp_path / "absent")
    (tmp_path / "torchtune_config.yaml").write_text("")
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        find_run(tmp_path)


def test_prompts_of_files(tmp_path):
    lines = tmp_path / "a.txt"
    lines.write_text("one\n\ntwo é\n")
    assert read_prompts(lines) == [(f"{lines}:1", "one"), (f"{lines}:3", "two é")]
    lines.write_bytes(b"one\ncaf\xe9\n")
    with pytest.raises(ValueError, match="a.txt:2: not UTF-8"):
        read_prompts(lines)
    rows = tmp_path / "a.JSONL"
    rows.write_text('{"prompt": "one", "id": "a"}\n{"question": "two", "n": 3}\n')
    assert read_prompts(rows) == [(f"{rows}:1", "one"), (f"{rows}:2", "two")]
    for row in ('{"a": "one", "b": "two"}', '{"prompt": 3}', '{"prompt": " "}', "{}"):
        rows.write_text(f'{{"prompt": "one"}}\n{row}\n')
        with pytest.raises(ValueError, match="a.JSONL:2: expected a text in prompt"):
            read_prompts(rows)


def test_a_prompt_that_is_too_long_is_named_before_any_is_answered(
    run, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("erjepa.evaluation.chat.generate_texts", pytest.fail)
    file = tmp_path / "prompts.txt"
    file.write_text(f"one\n\n{'word ' * 3000}\n")
    with pytest.raises(SystemExit):
        main([str(run), "typed", "--file", str(file)])
    assert f"{file}:3: the prompt has 15" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(run), "typed", "word " * 3000])
    assert "prompt 2: the prompt has 15" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a.json", "a.CSV"])
def test_other_formats_of_prompts_are_refused(tmp_path, name):
    (tmp_path / name).write_text('[{"prompt": "one"}]')
    with pytest.raises(ValueError, match=f"{name}: expected a text file with a prompt"):
        read_prompts(tmp_path / name)


def test_a_file_that_is_there_stays(run, tmp_path, capsys):
    file = tmp_path / "prompts.txt"
    file.write_text("mine\n")
    with pytest.raises(SystemExit):
        main([str(run), "--file", str(file), "--output", str(file)])
    assert f"--output {file} exists; choose another name" in capsys.readouterr().err
    assert file.read_text() == "mine\n"


def test_no_prompt(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(run)])
    assert "there is no prompt: type one" in capsys.readouterr().err


def test_the_base_model_answers(run, tmp_path, capsys):
    main([str(run), "--set", "base_only=True", "one", "--output", str(tmp_path / "a")])
    assert "Wrote 1 answer of the base model to" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([str(run), "--set", "checkpoint_dir=x", "one"])
    assert "give the checkpoint as RUN" in capsys.readouterr().err


def test_a_prompt_is_a_line(tmp_path):
    (tmp_path / "prompts.txt").write_bytes("one\u2028two\x0cthree\r\nfour\n\n".encode())
    prompts = [prompt for _, prompt in read_prompts(tmp_path / "prompts.txt")]
    assert prompts == ["one\u2028two\x0cthree", "four"]
