"""Tokens per pair of the real datasets, alone and in trees, with Llama 3's tokenizer."""

import random

import pytest

from tests.harness.data import DATASETS, REAL_DATA, tokenizer_file, tokens_per_pair

pytestmark = pytest.mark.skipif(
    not tokenizer_file().is_file() or not REAL_DATA.is_dir(),
    reason="needs Llama 3's tokenizer and the real datasets",
)

# Pairs of a tree: tokens of a pair for SFT, with views.
EXPECTED = {
    "NL-RX-SYNTH": {1: (51.2, 68.6), 16: (32.5, 46.2), 64: (30.1, 42.4)},
    "NL-RX-TURK": {1: (49.7, 67.1), 16: (32.1, 45.8), 64: (30.3, 42.6)},
    "NQ-Open": {1: (35.8, 44.3), 16: (20.9, 26.8), 64: (19.6, 25.2)},
    "Spider": {1: (75.8, 110.6), 16: (56.9, 87.6), 64: (55.0, 84.8)},
    "GSM8K": {1: (181.6, 285.9), 16: (163, 263), 64: (162, 261)},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_tokens_of_a_pair(llama3, name):
    build, folder, arguments = DATASETS[name]
    dataset = build(llama3, source=str(REAL_DATA / folder), **arguments)
    pairs = [dataset[i] for i in range(len(dataset))]
    random.Random(0).shuffle(pairs)
    for size, expected in EXPECTED[name].items():
        found = [tokens_per_pair(pairs, views, size) for views in ("none", "shared")]
        assert found == pytest.approx(expected, rel=0.02)
