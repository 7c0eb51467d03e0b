"""The examples and the primary metric of an evaluation are determined before generation."""

from types import SimpleNamespace

import pytest

from erjepa.configs import load
from erjepa.evaluation import jobs
from erjepa.evaluation.examples import read_examples, scoring_task
from erjepa.tasks.summary import seen_in
from tests.harness.data import write_jsonl


@pytest.fixture
def cfg(tmp_path):
    rows = [
        {"question": "how many", "answer": "9"},
        {"question": "who", "answer": "Paul"},
    ]
    file = write_jsonl(tmp_path / "test.jsonl", rows)

    def cfg(*overrides):
        return load("llama3_2_1b_nq_open", [f"eval_dataset.source={file}", *overrides])

    return cfg


def test_the_metric_that_is_the_accuracy(cfg, tokenizer):
    examples = read_examples(cfg(), tokenizer)
    assert examples.task.primary == "llm_jepa"  # of the paper
    assert seen_in([("who ", "Paul"), ("a", "9")], examples.texts) == ({1}, {0, 1})
    examples = read_examples(cfg("primary=null"), tokenizer)
    assert examples.task.primary == "exact_match"
    with pytest.raises(
        ValueError, match="primary=f1: task=nq_open has exact_match, squad_match, llm"
    ):
        read_examples(cfg("primary=f1"), tokenizer)


@pytest.fixture
def one_rank(monkeypatch):
    for name in ("on_each_rank", "on_rank_zero"):
        monkeypatch.setattr(jobs, name, lambda call, *given: call(*given))


@pytest.fixture
def warned(tokenizer, one_rank, caplog):
    """Return the warnings of an evaluation of the base model."""
    jobs.log.propagate = True

    def find(overrides):
        cfg = load("tiny_synth", [*overrides, "task=null"])
        jobs.JobFinder(cfg, tokenizer).find([None])
        return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]

    return find


@pytest.mark.parametrize(
    ("labels", "options", "said"),
    [
        ("abc", "null", "Options: a, b, c ...', and dataset 'Which"),
        ("ab", "null", None),
        ("abc", "[a, b]", None),
    ],
)
def test_a_prompt_that_training_does_not_have_is_said(
    labels, options, said, tmp_path, warned
):
    """By default the options are those of the file."""
    overrides = []
    for key, found in (("dataset", "ab"), ("eval_dataset", labels)):
        rows = [{"text": "a text", "label": label} for label in found]
        file = write_jsonl(tmp_path / f"{key}.jsonl", rows)
        component = "erjepa.datasets.classification_dataset"
        overrides += [f"{key}={component}", f"{key}.source={file}"]
        overrides += [f"{key}.options={options}"]
    lines = warned(overrides)
    assert [said in line for line in lines] == ([] if said is None else [True])
    # The training pairs of an earlier run, which may have had that prompt, are not read.
    assert all("unless an earlier run was trained" in line for line in lines)


@pytest.mark.parametrize("is_set", [False, True])
def test_a_system_prompt_of_training_alone_is_said(is_set, tmp_path, warned):
    file = write_jsonl(tmp_path / "pairs.jsonl", [{"input": "a", "output": "b"}])
    keys = ("dataset", "eval_dataset")
    overrides = [f"{key}=erjepa.datasets.paired_dataset" for key in keys]
    overrides += [f"{key}.source={file}" for key in keys]
    overrides += [f"{key}.new_system_prompt=Be brief." for key in keys[: 1 + is_set]]
    lines = warned(overrides)
    assert len(lines) == (not is_set)
    assert all("and dataset 'Be brief. ..." in line for line in lines)


@pytest.mark.parametrize("row", [{"input": "a", "output": "b"}, {"input": "a"}])
def test_scores_do_not_need_the_pairs_of_training(
    row, cfg, tmp_path, tokenizer, one_rank
):
    """Whose file may have been overwritten since: with fewer pairs, or with none."""
    file = write_jsonl(tmp_path / "train.jsonl", [row])
    keys = ["dataset=erjepa.datasets.paired_dataset", f"dataset.source={file}"]
    finder = jobs.JobFinder(cfg(*keys, "validation.size=1"), tokenizer)
    (job,) = finder.find([None])
    assert job.seen is None and len(job.examples.ids) == 2


def test_targets_are_looked_at_before_anything_is_generated():
    targets = ("a\n#### 1", "2", "#### 3")
    dataset = SimpleNamespace(
        names=["file"],
        starts=[0],
        scoring_fields=lambda i: {},
        target_text=targets.__getitem__,
        where=lambda i: f"file:{i + 1}",
    )

    def check(task, ids):
        cfg = SimpleNamespace(task=task, databases=None, primary=None)
        return scoring_task(cfg, dataset, ids)

    assert check("gsm8k", [0, 2]).name == "gsm8k"
    check("exact_match", range(3))
    with pytest.raises(ValueError, match=r"file:2: gsm8k needs .* with '2'; set"):
        check("gsm8k", range(3))
    with pytest.raises(ValueError, match="task=spider needs db_id, which file does"):
        check("spider", range(3))
