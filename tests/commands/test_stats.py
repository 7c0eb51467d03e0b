"""Length statistics of pairs, checked by hand and from ``erjepa stats``."""

import random

import pytest

from erjepa.commands.stats import main, pair_lengths, table, token_statistics
from erjepa.configs import load
from erjepa.packing import PairCollator
from tests.harness.models import PREDICTOR_IDS, random_pairs


def test_statistics_worked_by_hand():
    lengths = [*range(1, 999), 500, 1000]  # 1000 lengths; 999 does not occur
    random.Random(0).shuffle(lengths)
    assert token_statistics(lengths) == {
        "pairs": 1000,
        "mean": (998 * 999 / 2 + 1500) / 1000,
        "median": 500,
        "p95": 949,
        "p99": 989,
        "max": 1000,
        "fits": {128: 0.128, 256: 0.256, 512: 0.513, 1024: 1.0},
        "row_length": {"99.9%": 1024, "100%": 1024},
    }


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([128] * 999 + [129], {"99.9%": 128, "100%": 256}),
        ([128] * 998 + [129] * 2, {"99.9%": 256, "100%": 256}),
        ([1] * 2000 + [3000], {"99.9%": 128, "100%": 3072}),
        ([7], {"99.9%": 128, "100%": 128}),
    ],
)
def test_row_lengths_are_the_smallest_that_hold_so_many(lengths, expected):
    assert token_statistics(lengths)["row_length"] == expected


def test_lengths_are_those_of_rows():
    pairs = random_pairs(40)
    for views in ("shared", "standalone", "none"):
        collator = PairCollator(views=views, predictor_ids=PREDICTOR_IDS)
        packed = [collator([pair]).num_tokens for pair in pairs]
        assert [collator.length(pair) for pair in pairs] == packed


def test_a_percentile_holds_at_least_so_many():
    statistics = token_statistics([3, 1, 2])
    assert (statistics["median"], statistics["p95"], statistics["p99"]) == (2, 3, 3)


def test_no_pairs():
    with pytest.raises(ValueError, match="no pairs"):
        token_statistics([])


def measured(*overrides):
    cfg = load("tiny_synth", ["dataset.size=30", *overrides])
    return token_statistics(pair_lengths(cfg))


def test_overrides_change_what_is_measured():
    shared = measured()
    assert shared["pairs"] == 30
    two = measured("num_predictor_tokens=3")
    assert two["mean"] == pytest.approx(shared["mean"] + 2)
    plain = measured("replay.weight=0", "loss.jepa_weight=0")
    assert plain["mean"] < shared["mean"]


def test_the_command_prints_the_table(capsys):
    main(["tiny_synth", "dataset.size=30"])
    printed = capsys.readouterr().out
    assert printed == table(measured())
    assert [line.rsplit(maxsplit=1) for line in printed.splitlines()][-2:] == [
        ["row_length for 99.9%", "128"],
        ["row_length for 100%", "128"],
    ]


def test_errors_of_the_command_are_one_line(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["tiny"])
    assert exit.value.code == 2
    assert "error: config tiny: no such file" in capsys.readouterr().err
