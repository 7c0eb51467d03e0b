"""The hidden states that spans and patches compare, by hand and against the released code.

Its loss for patches is 1 - cos(patch, before + after).
"""

from collections import Counter
from random import Random

import pytest
import torch

from erjepa.packing import PairCollator, lay_out
from erjepa.packing.spans import patch_steps, span_steps
from tests.harness.models import random_pairs


def sums(steps, hidden):
    """What predicts, and what is predicted."""
    moves = [hidden[j] - hidden[i] for i, j in steps]
    assert len(moves) == 6
    return sum(moves[:3]), sum(moves[3:])


def test_spans_are_of_three_places_in_order():
    hidden, seen = torch.randn(4, 5, dtype=torch.float64), Counter()
    random = Random(0)
    for _ in range(400):
        steps = span_steps(4, random)
        (s, r), (start, t) = steps[0], steps[3]
        assert 0 <= s < r < t < 4 and start == r
        predicts, predicted = sums(steps, hidden)
        torch.testing.assert_close(predicts, hidden[r] - hidden[s])
        torch.testing.assert_close(predicted, hidden[t] - hidden[r])
        seen[s, r, t] += 1
    assert len(seen) == 4 and min(seen.values()) > 60  # of 100 each


def released(hidden, user, assistant, start, end):
    """before + after and patch, as get_embeddings of LLM-JEPA's stp.py has them; ``user`` and
    ``assistant`` are [start, end), less one each.
    """
    (user_start, user_end), (assistant_start, assistant_end) = user, assistant
    size = user_end - user_start

    def place(offset):
        inside = offset < size
        return user_start + offset if inside else assistant_start + offset - size

    first, last = place(start), place(end)
    h = hidden
    if first >= assistant_start:
        before = h[user_end] - h[user_start] + h[first] - h[assistant_start]
        patch, after = h[last] - h[first], h[assistant_end] - h[last]
    elif last <= user_end:
        before, patch = h[first] - h[user_start], h[last] - h[first]
        after = h[user_end] - h[last] + h[assistant_end] - h[assistant_start]
    else:
        before = h[first] - h[user_start]
        patch = h[user_end] - h[first] + h[last] - h[assistant_start]
        after = h[assistant_end] - h[last]
    return before + after, patch


def test_patches_are_those_of_the_released_code():
    hidden, seen = torch.randn(9, 4, dtype=torch.float64), Counter()
    user, assistant = (0, 3), (5, 8)
    drawn = Random(1)
    for _ in range(900):
        state = drawn.getstate()
        steps = patch_steps(user, assistant, drawn)
        again = Random()
        again.setstate(state)
        start, end = 0, 6
        while end - start == 6:
            start = again.randrange(6)
            end = again.randint(start + 1, 6)
        seen[start, end] += 1
        for mine, theirs in zip(
            sums(steps, hidden),
            released(hidden, user, assistant, start, end),
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs)
    assert len(seen) == 20  # of the 21 patches all but the whole


def test_a_patch_leaves_out_what_is_between_source_and_target():
    (pair,) = random_pairs(1)
    size, bridge = len(pair.source), len(pair.bridge)
    last_content = size + bridge + len(pair.target) - 2
    for seed in range(50):
        path = lay_out(pair, "patches", 0, seed=str(seed))[0]
        taken = {k for i, j in path.steps for k in range(i + 1, j + 1)}
        source, target = range(1, size), range(size + bridge, last_content + 1)
        assert taken == {*source, *target}


@pytest.mark.parametrize("views", ["spans", "patches"])
def test_spans_are_those_of_seed_step_and_example(views):
    pairs = random_pairs(9)

    def steps(seed, step, pairs=pairs, num_batches=1):
        """From token to token of the path, by example."""
        batches = PairCollator(views=views, seed=seed).split(pairs, num_batches, step)
        return {
            example: batch.input_pos.flatten()[of_one].tolist()
            for batch in batches
            for example, of_one in zip(
                batch.example_ids.tolist(), batch.steps, strict=True
            )
        }

    first = steps(0, 0)
    assert first == steps(0, 0, pairs[::-1], 3)
    assert first != steps(0, 1) and first != steps(1, 0)
    assert len({str(s) for s in steps(0, 0, [pairs[0]] * 2).values()}) == 1


@pytest.mark.parametrize("views", ["spans", "patches"])
def test_spans_take_no_token_more_than_plain_training(views):
    pairs = random_pairs(9)
    spans, plain = (PairCollator(views=v)(pairs) for v in (views, "none"))
    assert spans.tokens.tolist() == plain.tokens.tolist()
    assert spans.num_views == 9 and plain.num_views == 0


def test_a_pair_that_has_no_patch_is_refused():
    with pytest.raises(ValueError, match="and a pair has 1"):
        patch_steps((0, 0), (1, 2), Random(0))
