"""The cost of a step in forward passes, tokens and token slots, but not in seconds.

Steps have eight pairs of the fixture, in the trimmed rows of the CPU.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from erjepa.datasets import paired_dataset
from erjepa.packing import PairCollator
from erjepa.training.step.passes import Passes
from tests.harness.data import write_records
from tests.harness.runs import at_start, small_config, train, watch_forwards

SFT = {"replay__weight": 0, "loss__jepa_weight": 0}
LLM_JEPA = {"replay__weight": 0}
# Of steps 2 to 4: forward passes, tokens and slots. Step 1 has nothing to replay.
EXPECTED = {
    "SFT": (SFT, 3, 1872, 1983),
    "LLM-JEPA": (LLM_JEPA, 3, 2374, 2502),
    "ER-JEPA": ({"replay__selection": "uniform"}, 6, 4891, 5172),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """44 pairs, of which eight fill more than a row."""
    return write_records(tmp_path_factory.mktemp("cost") / "train.jsonl", 44)


@pytest.mark.parametrize("mode", EXPECTED)
def test_forward_passes_tokens_and_slots(
    base, data, tmp_path, tokenizer, mode, monkeypatch
):
    overrides, num_forwards, tokens, slots = EXPECTED[mode]
    seen = watch_forwards(monkeypatch)
    settings = {"batch_size": 8, "row_length": 512, "stop__steps": 4, **overrides}
    cfg = small_config(base, data, tmp_path, **settings)
    (passes,) = train(cfg, 1, lambda recipe: seen)
    later = passes[2:] if mode == "ER-JEPA" else passes[1:]
    assert len(later) == num_forwards
    assert all(batch.num_pairs == 8 for batch in later)
    dataset = paired_dataset(tokenizer, source=str(data))
    collator = PairCollator(
        views="none" if mode == "SFT" else "shared", predictor_ids=[266]
    )
    for batch in later:
        pairs = [dataset[i] for i in batch.example_ids.tolist()]
        # Rows share what the pairs of a row do: less than one tree of all, more than none.
        one_tree = collator(pairs).num_tokens
        assert one_tree <= batch.num_tokens < sum(map(collator.length, pairs))
    assert sum(batch.num_tokens for batch in later) == tokens
    assert sum(batch.tokens.numel() for batch in later) == slots


class ReadsByTheHost(TorchDispatchMode):
    """Notes operations whose result the host needs, for which it would wait for a GPU."""

    OPERATIONS = (
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.nonzero.default,
        torch.ops.aten.masked_select.default,
        torch.ops.aten.equal.default,
    )

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation in self.OPERATIONS:
            self.found.append(str(operation))
        return operation(*args, **(kwargs or {}))


def test_no_pass_waits_for_its_device(base, data, tmp_path, monkeypatch):
    reads, passes = ReadsByTheHost(), []
    run_pass = Passes.forward_backward

    def watched(self, *args, **kwargs):
        with reads:
            passes.append(run_pass(self, *args, **kwargs))
        return passes[-1]

    monkeypatch.setattr(Passes, "forward_backward", watched)
    cfg = small_config(base, data, tmp_path, batch_size=8, stop__steps=2)
    found = train(cfg, 1, lambda recipe: (len(passes), reads.found))
    assert found == [(4, [])]


def test_adapters_on_a_cpu_drop_by_few_bits(base, data, tmp_path):
    def dropouts(recipe):
        return {type(m).__name__ for m in recipe._model.modules() if hasattr(m, "p")}

    cfg = small_config(base, data, tmp_path, model__lora_dropout=0.1)
    assert at_start(cfg, 1, dropouts) == {"QuickDropout"}
