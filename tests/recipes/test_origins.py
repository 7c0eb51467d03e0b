"""Training, validation and evaluation on a list of datasets report each dataset separately.

The logged numbers of each dataset equal those of its pairs in the log of example errors, any number
of ranks equals one, and a killed and resumed run equals an uninterrupted one.
"""

import functools
from collections import Counter
from dataclasses import replace

import pytest

from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS, read_visits
from erjepa.configs import Component
from erjepa.datasets import build_dataset, hold_out
from erjepa.replay.retention import ORIGIN_BITS
from tests.harness.data import write_jsonl, write_records
from tests.harness.runs import (
    INVARIANT,
    assert_close_logs,
    assert_same,
    evaluate,
    kill_at_step,
    read_metrics,
    read_untimed,
    small_config,
    state,
    train,
    train_and_kill,
)
from tests.harness.runs import predictions as read_predictions

LOSSES = ("lm_loss", "jepa_loss")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """6 short pairs, and 22 others."""
    folder = tmp_path_factory.mktemp("sources")
    few, many = folder / "few.jsonl", folder / "many.jsonl"
    rows = [{"input": f"{i} dogs", "output": "d" * (i + 1)} for i in range(6)]
    write_jsonl(few, rows)
    return few, write_records(many, 22, seed=4)


@pytest.fixture(scope="module")
def earlier(base, data, tmp_path_factory):
    """A run on other data, whose memory has 20 slots."""
    output_dir = tmp_path_factory.mktemp("earlier")
    settings = {"replay__capacity": 20, "replay__selection": "uniform", "epochs": 1}
    train(small_config(base, data, output_dir, batch_size=8, **settings))
    return output_dir


def listed(sources, weights=None):
    parts = [
        {"_component_": "erjepa.datasets.paired_dataset", "source": str(source)}
        for source in sources
    ]
    for part, weight in zip(parts, weights or (), strict=bool(weights)):
        part["weight"] = weight
    return parts


def config(base, sources, output_dir, weights=None, **overrides):
    settings = {
        "replay__selection": "uniform",
        "replay__budget": 6,
        "replay__capacity": 40,
        "batch_size": 8,
        "epochs": 2,
        "max_new_tokens": 6,
        **overrides,
    }
    return small_config(base, listed(sources, weights), output_dir, **settings)


def test_numbers_of_each_dataset_are_those_of_its_pairs(
    base, sources, earlier, tmp_path
):
    settings = {"replay__init_from": earlier, "log_example_errors": True}

    def num_labels(recipe):
        segments = [recipe._prepared.dataset[i].segments for i in range(28)]
        return [len(cut[2]) for cut in segments]

    cfg = config(base, sources, tmp_path, weights=[1, 1], **settings)
    (labels,) = train(cfg, 1, num_labels)
    visits = list(read_visits(tmp_path / EXAMPLE_ERRORS).itertuples())
    metrics = read_metrics(tmp_path)
    assert len(metrics) == 8  # 28 pairs, 8 a step
    dealt = Counter(v.example >> ORIGIN_BITS for v in visits if not v.replayed)
    assert dealt == {0: 28, 1: 28}
    for step, logged in enumerate(metrics, start=1):
        mine = [v for v in visits if v.step == step]
        for origin, label in enumerate(("few", "many")):
            own = [
                v for v in mine if not v.replayed and v.example >> ORIGIN_BITS == origin
            ]
            assert own
            counts = [labels[v.example & 0xFFFFFFFF] for v in own]
            total = sum(v.lm_loss * n for v, n in zip(own, counts, strict=True))
            assert logged[f"lm_loss_{label}"] == pytest.approx(
                total / sum(counts), rel=1e-4
            )
            assert logged[f"jepa_loss_{label}"] == pytest.approx(
                sum(v.jepa_loss for v in own) / len(own), rel=1e-4
            )
        replayed = Counter(v.example >> ORIGIN_BITS for v in mine if v.replayed)
        for origin, label in {0: "few", 1: "many", -1: "train"}.items():
            assert logged[f"replayed_{label}"] == replayed[origin]
    assert sum(logged["replayed_train"] for logged in metrics) > 0
    assert all(
        logged["replayed"]
        == sum(logged[f"replayed_{label}"] for label in ("few", "many", "train"))
        for logged in metrics
    )


@pytest.mark.slow
def test_any_ranks_train_alike_on_a_list_with_a_carried_memory(
    base, sources, earlier, tokenizer, tmp_path
):
    settings = {
        "replay__init_from": earlier,
        "replay__selection": "mixed",
        "replay__retention": "balanced",
        "replay__reserve": 0.3,
        "validation__size": 5,
        "validation__generate": 5,
        "loss__distance": "infonce",  # held-out pairs are contrasted with all others
    }
    names = {
        *INVARIANT,
        *(f"{name}_{label}" for name in LOSSES for label in ("few", "many")),
        *(f"replayed_{label}" for label in ("few", "many", "train")),
        *("val_loss", "val_accuracy"),
        *(f"val_{name}_{label}" for name in LOSSES for label in ("few", "many")),
        *(f"val_accuracy_{label}" for label in ("few", "many")),
    }
    slots = []
    for ranks, batch_size, accumulation in ((1, 8, 1), (2, 2, 2)):
        cfg = config(
            base,
            sources,
            tmp_path / str(ranks),
            weights=[3, 1],
            batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            **settings,
        )
        held = train(
            cfg, ranks, lambda recipe: recipe._memory.replay.memory.example_ids
        )
        slots.append(held[0].tolist())
    one = read_metrics(tmp_path / "1")
    assert slots[0] == slots[1]
    assert {example >> ORIGIN_BITS for example in slots[0]} == {-1, 0, 1}
    assert_close_logs(tmp_path / "2", tmp_path / "1", names)
    assert names <= {name for metrics in one for name in metrics}
    pairs = build_dataset(cfg.dataset, tokenizer).pairs
    labels, counts = Counter(), Counter()
    for i in hold_out(pairs, 5).held_out:
        labels["few" if i < 6 else "many"] += len(pairs[i].target)
        counts["few" if i < 6 else "many"] += 1
    for name, of in (
        ("val_lm_loss", labels),
        ("val_jepa_loss", counts),
        ("val_accuracy", counts),
    ):
        whole = sum(n * one[-1][f"{name}_{label}"] for label, n in of.items())
        assert one[-1][name] == pytest.approx(whole / of.total(), rel=1e-5)


@pytest.mark.slow
def test_a_weighted_run_resumes_bit_for_bit_and_keeps_its_weights(
    base, sources, earlier, tmp_path
):
    settings = {"replay__init_from": earlier, "save_every_n_steps": 2}
    whole, part = tmp_path / "whole", tmp_path / "part"
    run = functools.partial(config, base, sources, **settings)
    (final,) = train(run(whole, weights=[3, 1]), 1, state)
    train_and_kill(run(part, weights=[3, 1]), 1, kill_at_step(7))
    with pytest.raises(ValueError, match=r"dataset.weight: \[3, 1\] there, None here"):
        train(run(part, resume_from_checkpoint=True))
    (mine,) = train(run(part, weights=[3, 1], resume_from_checkpoint=True), 1, state)
    assert_same(mine, final)
    assert read_untimed(part) == read_untimed(whole)


def test_accuracy_of_each_dataset_where_they_share_a_task(base, sources, tmp_path):
    cfg = config(base, sources, tmp_path, epochs=1, stop__steps=1)
    train(cfg)
    scored = [replace(part, weight=None) for part in cfg.dataset]
    cfg = replace(cfg, eval_dataset=scored, eval_batch_size=3)
    summary = evaluate(cfg, 2)
    answers = read_predictions(tmp_path, "epoch_0_step_1")
    assert [p["origin"] for p in answers] == ["few"] * 6 + ["many"] * 22
    for part in summary.by_origin:
        own = [p for p in answers if p["origin"] == part.origin]
        right = sum(p["exact_match"] for p in own)
        assert (part.examples, part.right) == (len(own), right)
        assert part.share == right / len(own)
    assert [part.origin for part in summary.by_origin] == ["few", "many"]
    grammar = Component("erjepa.datasets.synthetic_nl_rx_dataset", {"size": 3})
    cfg = replace(cfg, eval_dataset=[*scored, grammar], task=None)
    with pytest.raises(ValueError, match="a run of erjepa_eval for each, with that"):
        evaluate(cfg)


def test_prompts_are_put_as_in_the_first_dataset(base, sources, tokenizer, tmp_path):
    cfg = config(base, sources, tmp_path, weights=[1, 2])
    dataset = build_dataset(cfg.dataset, tokenizer)
    source = dataset.source_text(2)
    assert dataset.ask(source) == dataset.prompt(2)
    assert dataset.pair_of(source).segments[:2] == dataset[2].segments[:2]
