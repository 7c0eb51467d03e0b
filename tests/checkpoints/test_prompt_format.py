"""A run's prompts are built from the stored wording as from its data."""

import json

import pytest
from torchtune.data import InputOutputToMessages

from erjepa.checkpoints.prompt_format import stored_prompt, write_prompt_format
from erjepa.configs import Component
from erjepa.datasets import PairedDataset, Record, build_dataset
from tests.harness.data import chat, write_jsonl

CHAT = chat("a", "b", "Convert.")
DATASETS = {
    "columns": ({"question": "a", "answer": "b"}, "paired", {}),
    "chat": (CHAT, "paired", {}),
    "new system prompt": (CHAT, "paired", {"new_system_prompt": "Be kind."}),
    "empty system prompt": (CHAT, "paired", {"new_system_prompt": ""}),
    "Alpaca": ({"instruction": "a", "output": "b"}, "paired", {}),
    "labels": ({"text": "a", "label": "b"}, "classification", {"question": "How?"}),
}


@pytest.mark.parametrize("name", DATASETS)
def test_prompts_are_those_of_the_data(name, tmp_path, tokenizer):
    record, builder, arguments = DATASETS[name]
    arguments = {"source": write_jsonl(tmp_path / "data.jsonl", [record]), **arguments}
    section = {"_component_": f"erjepa.datasets.{builder}_dataset", **arguments}
    pairs = build_dataset(Component(section["_component_"], arguments), tokenizer)
    assert stored_prompt(tmp_path, section, tokenizer) is None
    write_prompt_format(tmp_path, pairs, section)
    stored = stored_prompt(tmp_path, section, tokenizer)
    for text, system in (("one", None), (" two\n", ""), ("three", "Hm.")):
        assert stored.ask(text, system) == pairs.ask(text, system)
        assert stored.pair_of(text) == pairs.pair_of(text)
    assert stored.messages(0)[0].role == pairs.messages(0)[0].role
    assert stored_prompt(tmp_path, {**section, "split": "x"}, tokenizer) is None


@pytest.mark.parametrize("wording", [str.upper, "Q: {0}\nAgain: {0}".format])
def test_a_wording_that_changes_or_repeats_texts_is_not_stored(
    tmp_path, tokenizer, wording
):
    class Worded(InputOutputToMessages):
        user_text = staticmethod(wording)

    pairs = PairedDataset(
        [Record("a", {"input": "a", "output": "b"})], tokenizer, Worded()
    )
    write_prompt_format(tmp_path, pairs, {})
    assert not any(tmp_path.iterdir())


def test_a_damaged_file_is_named(tmp_path, tokenizer):
    stored = {"dataset": None, "before": 3, "after": ""}
    (tmp_path / "prompt_format.json").write_text(json.dumps(stored))
    with pytest.raises(
        ValueError, match="prompt_format.json: before: .* string, got 3"
    ):
        stored_prompt(tmp_path, None, tokenizer)
