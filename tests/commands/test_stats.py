"""Length statistics of pairs, checked by hand and from ``erjepa stats``."""

import random

import pytest

from erjepa.commands.stats import main, pair_lengths, token_statistics
from erjepa.configs import load


def test_statistics_worked_by_hand():
    lengths = [*range(1, 999), 500, 1000]  # 1000 lengths; 999 does not occur
    random.Random(0).shuffle(lengths)
    assert token_statistics(lengths) == {
        "pairs": "1000",
        "mean": "500.0",
        "median": "500",
        "p95": "949",
        "p99": "989",
        "max": "1000",
        "fit 128": "12.80%",
        "fit 256": "25.60%",
        "fit 512": "51.30%",
        "fit 1024": "100.00%",
        "row_length for 99.9%": "1024",
        "row_length for 100%": "1024",
    }


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([128] * 999 + [129], ("128", "256")),
        ([128] * 998 + [129] * 2, ("256", "256")),
        ([1] * 2000 + [3000], ("128", "3072")),
        ([7], ("128", "128")),
    ],
)
def test_row_lengths_are_the_smallest_that_hold_so_many(lengths, expected):
    statistics = token_statistics(lengths)
    names = "row_length for 99.9%", "row_length for 100%"
    assert tuple(statistics[name] for name in names) == expected


def test_a_percentile_holds_at_least_so_many():
    statistics = token_statistics([3, 1, 2])
    found = [statistics[name] for name in ("median", "p95", "p99")]
    assert found == ["2", "3", "3"]


def measured(*overrides):
    cfg = load("tiny_synth", ["dataset.size=30", *overrides])
    return token_statistics(pair_lengths(cfg))


def test_overrides_change_what_is_measured():
    shared = measured()
    assert shared["pairs"] == "30"
    two = measured("num_predictor_tokens=3")
    mean = float(shared["mean"])
    assert float(two["mean"]) == pytest.approx(mean + 2)
    plain = measured("replay.weight=0", "loss.jepa_weight=0")
    assert float(plain["mean"]) < mean


def test_the_command_prints_the_table(capsys):
    main(["tiny_synth", "dataset.size=30"])
    printed = capsys.readouterr().out
    rows = [line.rsplit(maxsplit=1) for line in printed.splitlines()]
    assert rows == [list(row) for row in measured().items()]


def test_a_missing_tokenizer_is_named(tmp_path):
    paths = [
        f"checkpointer.checkpoint_dir={tmp_path}",
        f"tokenizer.path={tmp_path}/none",
    ]
    with pytest.raises(
        FileNotFoundError, match="tokenizer.path=.*/none does not exist"
    ):
        pair_lengths(load("smollm2_135m_synth", paths))
