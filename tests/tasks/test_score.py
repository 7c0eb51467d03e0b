"""``erjepa score``, from a file to its results."""

import dataclasses
import json
import re
import subprocess
import sys
import types

import numpy as np
import pytest

from erjepa.commands.score import main
from erjepa.tasks.score import load_task
from erjepa.tasks.task import Task

PREDICTIONS = [
    {"id": 7, "target": "a\n#### 18", "output": "b\n#### 18"},
    {"id": 8, "target": "a\n#### 1,000", "output": "b\n#### 1000"},
    {"id": 9, "target": "a\n#### 5", "output": "b"},
    {"id": 10, "target": "a\n#### 6", "output": "b\n#### 7"},
]


def write(path, *lines):
    text = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{line}\n" for line in text))
    return str(path)


def test_a_file_is_scored_without_torch(tmp_path):
    file = write(tmp_path / "out.jsonl", *PREDICTIONS)
    folder = tmp_path / "new" / "results"
    code = (
        "import sys; from erjepa.commands import main; main(['score', *sys.argv[2:]])\n"
        "assert not {'torch', 'torchtune', 'datasets'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, "-", "gsm8k", file]
    result = subprocess.run(
        [*command, "--output", str(folder)], capture_output=True, text=True
    )
    assert result.returncode == 0 and result.stderr == "", result.stderr

    summary = json.loads(result.stdout)
    assert (summary["task"], summary["primary"]) == ("gsm8k", "exact_match")
    assert summary["accuracy"] == summary["exact_match"]["share"] == 0.25
    assert summary["number_match"]["right"] == 2
    assert json.loads((folder / "summary.json").read_text()) == summary

    lines = (folder / "predictions.jsonl").read_text().splitlines()
    verdicts = [(True, True, True), (False, True, False), *[(False,) * 3] * 2]
    assert list(map(json.loads, lines)) == [
        {
            **prediction,
            "extracted": extracted,
            "exact_match": exact,
            "number_match": number,
            "llm_jepa": theirs,
        }
        for prediction, extracted, (exact, number, theirs) in zip(
            PREDICTIONS, ("18", "1000", "", "7"), verdicts, strict=True
        )
    ]


def test_results_can_be_scored_again_and_blank_lines_are_none(tmp_path):
    file = write(tmp_path / "predictions.jsonl", PREDICTIONS[0], "", PREDICTIONS[1])
    main(["gsm8k", file, "--output", str(tmp_path)])
    once = (tmp_path / "predictions.jsonl").read_text()
    main(["gsm8k", file, "--output", str(tmp_path)])
    assert (tmp_path / "predictions.jsonl").read_text() == once
    assert once.count("\n") == 2


def test_scores_of_a_checkpoint_stay(tmp_path, capsys):
    file = write(tmp_path / "out.jsonl", PREDICTIONS[0])
    main(["gsm8k", file, "--output", str(tmp_path)])
    summary = json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps({"checkpoint": "a", **summary}))
    capsys.readouterr()
    fails(["gsm8k", file, "--output", str(tmp_path)], "scores of a checkpoint", capsys)


def test_a_folder_that_is_a_file_is_refused_before_scoring(tmp_path, capsys):
    file = write(tmp_path / "out.jsonl", PREDICTIONS[0])
    unscored = [f"{__name__}.UNSCORED", file, "--output", file]
    fails(unscored, "out.jsonl is a file; choose a folder", capsys)


GOOD = {"target": "a\n#### 1", "output": "b"}


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([GOOD, {"output": "b"}], r"out.jsonl:2: no field 'target'; .*\['output'\]"),
        ([GOOD, {"target": "a"}], r"out.jsonl:2: no field 'output'"),
        ([{"target": "a", "output": None}], "out.jsonl:1: output must be a text"),
        ([GOOD, "", "{'target'"], r"out.jsonl:3: not JSON \(Expecting"),
        (
            [GOOD, {"target": "so it is 4", "output": "4"}],
            "out.jsonl:2: gsm8k needs a target with its answer after '####', but this one "
            "ends with 'so it is 4'; set task=exact_match",
        ),
        ([GOOD, '"text"'], "out.jsonl:2: expected a JSON object, got str"),
        ([], "out.jsonl: no predictions"),
        ([""], "out.jsonl: no predictions"),
    ],
)
def test_a_bad_file_is_named_with_its_line(lines, error, tmp_path, capsys):
    fails(["gsm8k", write(tmp_path / "out.jsonl", *lines)], error, capsys)


def test_other_errors(tmp_path, capsys):
    file = write(tmp_path / "out.jsonl", GOOD)
    fails(
        ["gsm", file],
        "task=gsm: expected one of classification, exact_match, gsm8k, nl_",
        capsys,
    )
    fails(["gsm8k", str(tmp_path / "no.jsonl")], "no.jsonl", capsys)
    fails(["gsm8k", file, "--databases", "d"], "databases=d: gsm8k has none", capsys)
    fails(["gsm8k", file, "--output", file], "out.jsonl", capsys)
    (tmp_path / "latin.jsonl").write_bytes(b'{}\n{"target": "\xe9"}\n')
    fails(["gsm8k", str(tmp_path / "latin.jsonl")], "latin.jsonl:1: no field", capsys)
    (tmp_path / "latin.jsonl").write_bytes(b'{"target": "\xe9"}\n')
    fails(["gsm8k", str(tmp_path / "latin.jsonl")], "latin.jsonl:1: not UTF-8", capsys)


def test_spider_gets_its_databases_and_needs_their_names(tmp_path, monkeypatch, capsys):
    """By a stand-in for the scorer, which has tests of its own."""
    seen = []

    def spider_task(databases):
        seen.append(databases)

        def score(predictions):
            return [{"right": True}] * len(predictions)

        fields = ("target", "output", "db_id")
        return Task(
            *("spider", "right", str.upper, score, fields), with_databases=spider_task
        )

    module = types.ModuleType("erjepa.tasks.spider.scorer")
    module.TASK = spider_task(None)
    monkeypatch.setitem(sys.modules, "erjepa.tasks.spider.scorer", module)
    file = write(tmp_path / "out.jsonl", GOOD)
    fails(["spider", file], "out.jsonl:1: no field 'db_id'", capsys)
    file = write(tmp_path / "out.jsonl", {**GOOD, "db_id": "pets"})
    main(["spider", file, "--databases", str(tmp_path)])
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1
    load_task("spider", str(tmp_path))
    assert seen == [None, tmp_path, tmp_path]


def score_shouting(predictions):
    return [{"loud": p["output"] == p["target"].upper()} for p in predictions]


SHOUTING = Task("shouting", "loud", str.strip, score_shouting)


def score_as_accuracy(predictions):
    return [{"accuracy": True} for _ in predictions]


ACCURATE = Task("accurate", "accuracy", str.strip, score_as_accuracy)
FINISHED = Task(
    "finished", "finished", str.strip, lambda predictions: [{"finished": True}]
)
UNSCORED = Task("unscored", "none", str.strip, lambda predictions: 1 / 0)
OF_A_FOLDER = dataclasses.replace(
    SHOUTING, with_databases=lambda d: dataclasses.replace(SHOUTING, name=f"of {d}")
)
CALLED = []


def call(databases):
    CALLED.append(databases)


def test_a_task_of_the_users_own(tmp_path, capsys):
    assert load_task(f"{__name__}.SHOUTING") is SHOUTING
    assert load_task(f"{__name__}.OF_A_FOLDER", "d").name == "of d"
    assert load_task(f"{__name__}.OF_A_FOLDER") is OF_A_FOLDER
    file = write(tmp_path / "out.jsonl", {"target": "ab", "output": "AB"}, GOOD)
    main([f"{__name__}.SHOUTING", file])
    summary = json.loads(capsys.readouterr().out)
    assert (summary["task"], summary["accuracy"]) == ("shouting", 0.5)
    for path, error in (
        ("no_such_module.TASK", "cannot be imported .No module named"),
        (f"{__name__}.WHISPERING", "cannot be imported .*no attribute"),
        (f"{__name__}.GOOD", "is a dict; expected an erjepa.tasks.Task"),
        (f"{__name__}.call", "is a function; expected an erjepa.tasks.Task"),
        (".TASK", "expected one of classification, .* or the dotted path"),
        ("", "expected one of classification"),
    ):
        fails([path, file], f"task={path}:? ?{error}", capsys)
    fails(
        [f"{__name__}.SHOUTING", file, "--databases", "d"], "SHOUTING has none", capsys
    )
    assert not CALLED


def score_extracted(predictions):
    return [{"same": np.bool_(p["extracted"] == p["target"])} for p in predictions]


EXTRACTED = Task("extracted", "same", str.lower, score_extracted)


def test_a_scorer_gets_what_is_extracted_and_may_use_numpy(tmp_path, capsys):
    lines = [{"target": "ab", "output": "AB"}, {"target": "ab", "output": "c"}]
    file = write(tmp_path / "out.jsonl", *lines)
    main([f"{__name__}.EXTRACTED", file, "--output", str(tmp_path)])
    assert json.loads(capsys.readouterr().out)["accuracy"] == 0.5
    scored = (tmp_path / "predictions.jsonl").read_text().splitlines()
    assert json.loads(scored[0]) == {**lines[0], "extracted": "ab", "same": True}


def test_a_metric_needs_a_name_of_its_own(tmp_path, capsys):
    file = write(tmp_path / "out.jsonl", {"target": "ab", "output": "AB"})
    for task, name in (("ACCURATE", "accuracy"), ("FINISHED", "finished")):
        error = f"its metric cannot be called {name}, which is a field of summary.json"
        fails([f"{__name__}.{task}", file], error, capsys)


@pytest.mark.parametrize(
    ("output", "right"),
    [("a b", True), (" a b\n", True), ("a  b", False), ("A b", False), ("", False)],
)
def test_exact_match(output, right):
    task = load_task("exact_match")
    assert task.score([{"target": "a b ", "output": output}]) == [
        {"exact_match": right}
    ]
    assert task.extract(f"{output} ") == output.strip()
    assert task.score([{"target": "", "output": ""}]) == [{"exact_match": False}]


@pytest.mark.parametrize("name", ["exact_match", "classification"])
def test_composed_and_decomposed_characters_are_equal(name):
    """Qwen's tokenizers write é as one character, however the target does."""
    forms = ("caf\u00e9", "cafe\u0301")
    texts = [{"target": a, "output": b} for a in forms for b in (*forms, "cafe")]
    verdicts = [v["exact_match"] for v in load_task(name).score(texts)]
    assert verdicts == [True, True, False] * 2


def test_another_metric_is_the_accuracy(tmp_path, capsys):
    answers = [
        {"target": "9; nine", "output": "nin"},
        {"target": "Paul", "output": "x"},
    ]
    file = write(tmp_path / "answers.jsonl", *answers)
    for primary, accuracy in (("llm_jepa", 0.5), ("exact_match", 0)):
        main(["nq_open", file, "--primary", primary])
        summary = json.loads(capsys.readouterr().out)
        assert (summary["primary"], summary["accuracy"]) == (primary, accuracy)
    fails(["nq_open", file, "--primary", "best"], "primary=best is not among", capsys)


def fails(arguments, error, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    message = captured.err.split("erjepa score: error: ")[1]
    assert re.search(error, message), message
