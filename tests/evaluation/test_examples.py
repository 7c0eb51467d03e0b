"""The examples and the primary metric of an evaluation are determined before generation."""

import json

import pytest

from erjepa.configs import load
from erjepa.evaluation.examples import read_examples


@pytest.fixture
def cfg(tmp_path):
    file = tmp_path / "test.jsonl"
    rows = [
        {"question": "how many", "answer": "9"},
        {"question": "who", "answer": "Paul"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def cfg(*overrides):
        return load("llama3_2_1b_nq_open", [f"eval_dataset.source={file}", *overrides])

    return cfg


def test_the_metric_that_is_the_accuracy(cfg, tokenizer):
    examples = read_examples(cfg(), tokenizer, lambda: [("who ", "Paul"), ("a", "9")])
    assert examples.task.primary == "llm_jepa"  # of the paper
    assert examples.seen == ({1}, {0, 1})
    examples = read_examples(cfg("primary=null"), tokenizer, lambda: None)
    assert (examples.task.primary, examples.seen) == ("exact_match", None)
    with pytest.raises(
        ValueError, match="primary=f1: task=nq_open has exact_match, squad_match, llm"
    ):
        read_examples(cfg("primary=f1"), tokenizer, lambda: None)
