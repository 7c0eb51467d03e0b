"""The layout of pairs with the real Llama 3 tokenizer, on the five real datasets.

The tokenizer file comes from the package ``llama-models``, if installed, or from
``ERJEPA_LLAMA3_TOKENIZER``.
"""

import pytest

from erjepa.datasets import (
    gsm8k_dataset,
    nl_rx_dataset,
    nq_open_dataset,
    predictor_token_ids,
    spider_dataset,
)
from tests.harness.data import REAL_DATA, tokenizer_file

pytestmark = pytest.mark.skipif(
    not tokenizer_file().is_file(), reason="needs Llama 3's tokenizer"
)


def test_predictor_tokens_fit_llama_3_2(llama3):
    """Among them is not <|image|>, which torchtune puts at 128256, beyond the vocabulary."""
    ids = predictor_token_ids(llama3, 200, vocab_size=128_256)
    assert ids[:4] == [128_002, 128_003, 128_013, 128_014] and ids[-1] < 128_256
    assert len(set(ids)) == 200


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real datasets")
@pytest.mark.parametrize(
    ("builder", "folder", "arguments", "pairs"),
    [
        (nl_rx_dataset, "nl_rx", {"subset": "synth"}, 8000),
        (nl_rx_dataset, "nl_rx", {"subset": "turk"}, 8000),
        (gsm8k_dataset, "gsm8k", {}, 7473),
        (spider_dataset, "spider", {}, 6587),
        (nq_open_dataset, "nq_open", {}, 8000),
    ],
)
def test_source_and_target_are_torchtunes_own_tokens(
    llama3, builder, folder, arguments, pairs
):
    """Source, bridge and target make up the chat as torchtune tokenizes it for training."""
    dataset = builder(llama3, source=str(REAL_DATA / folder), **arguments)
    assert len(dataset) == pairs
    for i, pair in enumerate(dataset):
        messages = dataset.messages(i)
        whole = llama3({"messages": messages})["tokens"]
        ours = [*pair.source, *pair.bridge, *pair.target]
        assert ours == whole[:-1], dataset.where(i)  # all but the end of text
        target = llama3.encode(messages[-1].text_content.strip(), False, False)
        assert list(pair.target) == [*target, llama3.eot_id], dataset.where(i)
        source = llama3.encode(messages[-2].text_content.strip(), False, False)
        for view in (pair.source, pair.source_view):
            assert list(view[-len(source) :]) == source, dataset.where(i)
        assert list(pair.target_view[-len(target) :]) == target, dataset.where(i)
