"""A batch of ragged prompts gives what each prompt gives alone, without a cache."""

import pytest
import torch

from erjepa.generation import generate_greedy
from tests.models_for_tests import small_decoder

PAD = 90


def alone(model, prompt, max_new_tokens, stop_tokens):
    tokens = list(prompt)
    for _ in range(max_new_tokens):
        with torch.inference_mode():
            token = model(torch.tensor([tokens]))[0, -1].argmax().item()
        if token in stop_tokens:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_batched_equals_alone(batch_size):
    model = small_decoder(seed=3).eval()
    model.tok_embeddings.weight.data[PAD] = -100.0 * model.tok_embeddings.weight[PAD]
    generator = torch.Generator().manual_seed(1)
    prompts = [
        torch.randint(0, 90, (length,), generator=generator).tolist()
        for length in (2, 9, 5, 1, 7, 7, 3)
    ]
    free = [alone(model, prompt, 12, []) for prompt in prompts]
    stops = [free[1][4], free[4][2]]  # tokens that really come up
    expected = [alone(model, prompt, 12, stops) for prompt in prompts]
    assert {len(tokens) for tokens in expected} > {12}
    batched = []
    for start in range(0, len(prompts), batch_size):
        batched += generate_greedy(
            model,
            prompts[start : start + batch_size],
            max_new_tokens=12,
            stop_tokens=stops,
            pad_id=PAD,
        )
    assert batched == expected
