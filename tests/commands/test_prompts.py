"""Answers of another engine are scored like those of the evaluation recipe.

Prompts of a config, answered greedily by transformers from the exported model and scored from the
batch output, give the predictions and the summary of ``erjepa_eval``.
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from erjepa.commands.prompts import main
from erjepa.commands.score import main as score
from erjepa.evaluation.batch_requests import CHAT, COMPLETIONS, targets_of
from erjepa.utils.summary import read_summary
from tests.harness.data import write_jsonl
from tests.harness.runs import evaluate, predictions, tiny, train

TOKENS = 12
ASKED = 16


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of the embedded model; its config's arguments, summary, predictions."""
    folder = tmp_path_factory.mktemp("run")
    keys = [f"max_new_tokens={TOKENS}", "dtype=fp32", "stop.steps=4"]
    keys.append(f"eval_dataset.size={ASKED}")
    cfg = tiny(folder, *keys, "task=nl_rx")
    train(cfg)
    # Scored from the merged weights in float32, which are those of the run.
    summary = evaluate(cfg)
    arguments = [f"output_dir={folder}", *keys]
    (name,) = (p.name for p in folder.glob("epoch_0*"))
    return folder / name, cfg, arguments, summary, predictions(folder, name)


def write_prompts(run, folder, *arguments):
    main(["tiny_synth", *run[2], "--output", str(folder / "prompts.jsonl"), *arguments])
    return read(folder / "prompts.jsonl"), read(folder / "prompts.targets.jsonl")


def batch_line(request, text, finished, *, chat):
    """What vLLM's run-batch answers."""
    reason = "stop" if finished else "length"
    answer = (
        {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    )
    body = {"choices": [{"index": 0, **answer, "finish_reason": reason}]}
    response = {"status_code": 200, "request_id": "r", "body": body}
    return {
        **{"id": "vllm-1", "custom_id": request["custom_id"], "response": response},
        "error": None,
    }


def answered(run, requests):
    """Text of each answer and whether it stopped, by transformers from the exported model."""
    checkpoint, cfg, *_ = run
    tokenizer = cfg.tokenizer.build()
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    answers = []
    for request in requests:
        body = request["body"]
        assert body["temperature"] == 0 and body["repetition_penalty"] == 1
        new = model.generate(
            torch.tensor([body["prompt"]]),
            max_new_tokens=body["max_tokens"],
            do_sample=False,
            eos_token_id=body["stop_token_ids"],
            pad_token_id=0,
        )[0, len(body["prompt"]) :].tolist()
        finished = new[-1] in body["stop_token_ids"]
        text = tokenizer.decode(new[:-1] if finished else new)
        answers.append((text, finished))
    return answers


def test_round_trip(run, tmp_path, capsys):
    requests, targets = write_prompts(run, tmp_path, "--url", COMPLETIONS)
    assert [r["url"] for r in requests] == [COMPLETIONS] * ASKED
    assert [r["body"]["prompt"] for r in requests] == [
        t["prompt_token_ids"] for t in targets
    ]
    asked = str(tmp_path / "prompts.targets.jsonl")
    answers = answered(run, requests)
    for chat in (False, True):
        lines = [
            batch_line(request, *answer, chat=chat)
            for request, answer in zip(requests, answers, strict=True)
        ]
        file = write_jsonl(tmp_path / "answers.jsonl", lines[::-1])
        folder = tmp_path / f"scored_{chat}"
        score(["nl_rx", file, "--targets", asked, "--output", str(folder)])
        mine, ours = read(folder / "predictions.jsonl"), run[4]
        assert mine == [{k: v for k, v in p.items() if k != "tokens"} for p in ours]
        written = read_summary(folder).model_dump(exclude_none=True)
        summary = run[3].model_dump()
        assert written == {key: summary[key] for key in written}
    assert len({p["output"] for p in ours}) > 5


def test_a_chat_is_that_of_training(run, tmp_path, capsys):
    requests, targets = write_prompts(run, tmp_path, "--model", "merged")
    assert {r["url"] for r in requests} == {CHAT}
    assert {r["body"]["model"] for r in requests} == {"merged"}
    roles = [m["role"] for m in requests[0]["body"]["messages"]]
    assert roles[-1] == "user" and "assistant" not in roles
    assert requests[3]["body"]["messages"][-1]["content"] == targets[3]["prompt"]
    assert f"Wrote {ASKED} prompts to" in capsys.readouterr().out


def test_validation_pairs(run, tmp_path):
    keys = ["eval_split=validation", "validation.size=8", "dataset.size=64"]
    requests, targets = write_prompts(run, tmp_path, *keys)
    assert len(requests) == len(targets) == 8
    ids = [int(r["custom_id"]) for r in requests]
    assert ids == sorted(ids) and ids != list(range(8))


def test_each_of_several_datasets_is_scored(run, tmp_path, capsys):
    parts = []
    for name in ("a", "b"):
        file = tmp_path / f"{name}.jsonl"
        write_jsonl(file, [{"question": f"say {name}", "answer": "a"}])
        parts.append(f"{{_component_: erjepa.datasets.paired_dataset, source: {file}}}")
    keys = [f"eval_dataset=[{','.join(parts)}]", "task=exact_match"]
    prompts = tmp_path / "prompts.jsonl"
    main(["tiny_synth", run[2][0], *keys, "--output", str(prompts)])
    lines = [
        batch_line(request, text, True, chat=True)
        for request, text in zip(read(prompts), ("a", "b"), strict=True)
    ]
    answers = write_jsonl(tmp_path / "answers.jsonl", lines)
    targets, folder = str(tmp_path / "prompts.targets.jsonl"), str(tmp_path / "scored")
    score(["exact_match", answers, "--targets", targets, "--output", folder])
    found = read_summary(tmp_path / "scored").by_origin
    assert [(one.origin, one.share) for one in found] == [("a", 1), ("b", 0)]


def test_a_folder_that_asks_otherwise_is_refused(run, tmp_path, capsys):
    """The demo's export has no chat template; one that differs is shown."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.WordLevel({"[UNK]": 0, "hi": 1}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]")
    for template, expected in (
        (None, "has no chat template"),
        ("hi {{ messages[0]['content'] }}", "gives other tokens than training"),
    ):
        tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path / "other")
        with pytest.raises(SystemExit):
            write_prompts(run, tmp_path, "--check", str(tmp_path / "other"))
        assert expected in capsys.readouterr().err
        assert not (tmp_path / "prompts.jsonl").exists()


def test_batches_have_targets_of_their_own():
    names = [targets_of(Path(name)).name for name in ("a.jsonl", "b.1", "b.2")]
    assert names == ["a.targets.jsonl", "b.1.targets.jsonl", "b.2.targets.jsonl"]


def test_prompts_that_are_there_stay(tmp_path, capsys):
    (tmp_path / "prompts.jsonl").write_text("mine")
    with pytest.raises(SystemExit):
        main(["tiny_synth", "--output", str(tmp_path / "prompts.jsonl")])
    assert "prompts.jsonl exists; choose another name" in capsys.readouterr().err
    assert (tmp_path / "prompts.jsonl").read_text() == "mine"


def test_answers_that_cannot_be_scored(run, tmp_path, capsys):
    requests, _ = write_prompts(run, tmp_path)
    asked = ["--targets", str(tmp_path / "prompts.targets.jsonl")]
    good = [batch_line(r, "x", True, chat=True) for r in requests]
    failed = {**good[2], "response": {"status_code": 400}, "error": "too long"}
    strange = {**good[2], "custom_id": "900"}
    for lines, arguments, expected in (
        (good, [], "is the output of a batch and has no targets"),
        (good[:-2], asked, "2 of 16 prompts have no answer, first custom_id '14'"),
        ([*good[:2], failed], asked, "answers.jsonl:3: the request failed (too long)"),
        ([*good, good[5]], asked, "answers.jsonl:17: custom_id '5' already occurs"),
        ([*good[:2], strange], asked, "answers.jsonl:3: custom_id '900' is not in"),
    ):
        with pytest.raises(SystemExit):
            score(["nl_rx", write_jsonl(tmp_path / "answers.jsonl", lines), *arguments])
        assert expected in capsys.readouterr().err
