"""A batch of prompts of different lengths generates what each prompt does alone without a cache."""

from itertools import combinations
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import erjepa.evaluation.generation
from erjepa.evaluation.answers import generate_texts
from erjepa.evaluation.generation import (
    _grouped_attention,
    batches_of_like_length,
    generate_greedy,
)
from tests.harness.models import small_decoder

PAD = 0  # what prompts are padded with

NEW = 12  # tokens to generate


def talkative_decoder(**kwargs):
    """A decoder whose next token hangs on all tokens before it: with embeddings that are
    small beside what layers add, tied ones do not just repeat the last token.
    """
    model = small_decoder(seed=1, **kwargs).eval()
    weight = model.tok_embeddings.weight.data.mul_(0.03)
    weight[PAD] *= -100.0
    return model


def alone(model, prompt, max_new_tokens, stop_tokens):
    tokens = list(prompt)
    for _ in range(max_new_tokens):
        with torch.inference_mode():
            token = model(torch.tensor([tokens]))[0, -1].argmax().item()
        if token in stop_tokens:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def random_tokens(*lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 90, (n,), generator=generator).tolist() for n in lengths]


def varied_stops(model, prompts):
    """Two tokens at which texts end after as many different lengths as they can."""
    free = [alone(model, prompt, NEW, []) for prompt in prompts]
    tokens = sorted({token for text in free for token in text})

    def lengths(stops):
        return {min([*map(text.index, {*text} & {*stops}), NEW]) for text in free}

    stops = max(combinations(tokens, 2), key=lambda stops: len(lengths(stops)))
    assert len(lengths(stops)) >= 5
    return stops


def ragged():
    return random_tokens(2, 9, 5, 1, 7, 7, 3)


def with_a_shared_prefix():
    prefix, *rest = random_tokens(6, 4, 2, 3, 8, 2, 5)
    return [prefix + tokens for tokens in rest] + [prefix + rest[0][:2]]


def one_begins_all():
    start, *rest = random_tokens(5, 3, 1, 4, 2)
    return [start, start] + [start + tokens for tokens in rest]


@pytest.mark.parametrize("batch_size", [1, 3, 7])
@pytest.mark.parametrize("make", [ragged, with_a_shared_prefix, one_begins_all])
def test_batched_equals_alone(make, batch_size):
    model, prompts = talkative_decoder(), make()
    stops = varied_stops(model, prompts)
    expected = [alone(model, prompt, NEW, stops) for prompt in prompts]
    batched = []
    for start in range(0, len(prompts), batch_size):
        batched += generate_greedy(
            model,
            prompts[start : start + batch_size],
            max_new_tokens=NEW,
            stop_tokens=stops,
        )
    assert batched == expected


def generated(model, prompts, stops):
    """The texts, and the shapes of the tokens of each forward pass."""
    shapes = []
    hook = model.tok_embeddings.register_forward_hook(
        lambda module, args, out: shapes.append(tuple(args[0].shape))
    )
    settings = {"max_new_tokens": NEW, "stop_tokens": stops}
    texts = generate_greedy(model, prompts, **settings)
    hook.remove()
    return texts, shapes


def test_computes_what_is_shared_once_and_drops_what_has_ended():
    model, prompts = talkative_decoder(), with_a_shared_prefix()
    stops = varied_stops(model, prompts)
    lengths = [len(alone(model, prompt, NEW, stops)) for prompt in prompts]
    _, shapes = generated(model, prompts, stops)
    assert shapes[0] == (1, 6)
    assert shapes[1] == (len(prompts), max(map(len, prompts)) - 6)
    assert {width for _, width in shapes[2:]} == {1}
    # A text that has ended stays while more than four in five go on.
    rows = len(prompts)
    for step, (computed, _) in enumerate(shapes[2:], start=1):
        going = sum(length >= step for length in lengths)
        rows = going if going <= 0.8 * rows else rows
        assert computed == rows


@pytest.mark.parametrize("limit", [20, 5, 1])
@pytest.mark.parametrize("make", [ragged, with_a_shared_prefix])
def test_a_forward_pass_takes_so_many_tokens(make, limit, monkeypatch):
    """A longer prompt is computed in pieces."""
    monkeypatch.setattr(erjepa.evaluation.generation, "_TOKENS", limit)
    model, prompts = talkative_decoder(), make()
    stops = varied_stops(model, prompts)
    expected = [alone(model, prompt, NEW, stops) for prompt in prompts]
    texts, shapes = generated(model, prompts, stops)
    assert texts == expected
    assert len(shapes) > NEW + 2
    assert all(rows * columns <= limit for rows, columns in shapes)


def test_a_text_ends_with_the_positions():
    """After the token that the last position predicts; others of the batch go on."""
    model = talkative_decoder(max_seq_len=20)
    prompts = random_tokens(5, 12, 18, 20)
    answers = generate_greedy(model, prompts, max_new_tokens=NEW, stop_tokens=[])
    assert [len(answer) for answer in answers] == [NEW, 9, 3, 1]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == alone(model, prompt, len(answer), [])
    with pytest.raises(
        ValueError, match="21 tokens, but the model has positions for 20"
    ):
        generate_greedy(model, random_tokens(21), max_new_tokens=1, stop_tokens=[])


def test_batches_hold_prompts_of_like_length():
    lengths = [5, 1, 4, 1, 3, 2, 6]
    assert batches_of_like_length(lengths, 3) == [[1, 3, 5], [4, 2, 0], [6]]


def test_the_model_is_left_as_it_was():
    model, prompts = talkative_decoder(), ragged()
    before = model(torch.tensor(prompts[1:2]))
    generate_greedy(model, prompts, max_new_tokens=2, stop_tokens=[])
    assert not model.caches_are_setup() and not model.caches_are_enabled()
    assert model(torch.tensor(prompts[1:2])).equal(before)


@pytest.mark.parametrize("tokens", [1, 5])
def test_a_group_of_query_heads_attends_to_one_head_of_keys(tokens):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(3, 6, tokens, 8, generator=generator)
    keys, values = torch.randn(2, 3, 2, 7, 8, generator=generator)
    mask = torch.rand(3, tokens, 7, generator=generator) < 0.7
    mask[:, :, 0] = True
    grouped = _grouped_attention(queries, keys, values, mask=mask, is_causal=False)
    expanded = F.scaled_dot_product_attention(
        queries,
        keys.repeat_interleave(3, dim=1),
        values.repeat_interleave(3, dim=1),
        attn_mask=mask[:, None],
    )
    torch.testing.assert_close(grouped, expanded, rtol=1e-6, atol=1e-6)


def test_a_text_that_the_positions_cut_is_not_finished():
    model = talkative_decoder(max_seq_len=20)
    prompts = random_tokens(5, 18)
    tokenizer = SimpleNamespace(stop_tokens=[], decode=str)
    cut = generate_texts(model, tokenizer, prompts, NEW)
    assert [(a["tokens"], a["finished"]) for a in cut] == [(NEW, False), (3, False)]
    tokenizer.stop_tokens = alone(model, prompts[1], 1, [])
    assert generate_texts(model, tokenizer, prompts[1:], NEW)[0]["finished"]
