"""A prompt finds the stored pairs whose sources the run's model embeds most similarly."""

import json
import re
import shutil

import pytest

from erjepa.checkpoints.stored_memory import open_memory
from erjepa.commands.memory import main
from erjepa.commands.memory.prompt import prompt_embedding
from erjepa.commands.memory.reading import address_table, nearest, read_slots
from erjepa.training.model import device
from tests.harness.data import write_records
from tests.harness.runs import small_config, train


@pytest.fixture(scope="module")
def earlier(base, data, tmp_path_factory):
    """A run whose adapter does something."""
    folder = tmp_path_factory.mktemp("earlier")
    settings = {"epochs": 1, "batch_size": 11, "optimizer__lr": 0.02}
    train(small_config(base, data, folder, **settings))
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        {"views": "shared", "replay__address": "dense"},
        {"views": "standalone", "seed": 7},
    ],
)
def test_a_stored_source_finds_its_own_slot(
    base, data, earlier, tmp_path, capsys, settings
):
    """Nothing is learnt, so addresses in the memory are those of the model in the end."""
    more = write_records(tmp_path / "more.jsonl", 8, seed=3)
    paired = {"_component_": "erjepa.datasets.paired_dataset"}
    parts = [
        {**paired, "source": str(source), "weight": weight}
        for source, weight in ((data, 1), (more, 2))
    ]
    cfg = small_config(
        base,
        parts,
        tmp_path / "run",
        **{"epochs": 1, "batch_size": 8, "stop__steps": 2, "optimizer__lr": 0.0},
        **{"init_from": earlier, "replay__init_from": earlier, **settings},
        replay__init_addresses="recomputed",
    )
    train(cfg)
    stored = open_memory(tmp_path / "run")
    slots, (table, _) = read_slots(stored), address_table(stored)
    assert len(slots) > 50
    for slot in slots.iloc[[0, -1]].itertuples():
        embedding = prompt_embedding(tmp_path / "run", slot.source)
        cosines = nearest(table, table.encode(embedding), len(slots))
        assert len(cosines) == len(slots) and cosines.is_monotonic_decreasing
        assert cosines[slot.slot] == pytest.approx(1, abs=2e-6)
        assert cosines[slots.source != slot.source].max() < 1 - 1e-4
    command = [str(tmp_path / "run" / "epoch_0_step_2"), "--prompt", slot.source]
    main([*command, "--top", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[1].split()[0] == "1.0000"
    assert f": {' '.join(slot.source.split())}"[:40] in lines[1]


@pytest.mark.parametrize(
    "prompt, message",
    [
        ("  ", "the source .user message. is empty"),
        ("x", "no such file|missing"),
        (
            "x " * 5000,
            "the prompt has .* tokens, but the model has positions for .*; shorten",
        ),
    ],
)
def test_prompts_that_cannot_be_embedded(earlier, tmp_path, prompt, message, capsys):
    arguments = [str(earlier), "--prompt", prompt]
    if prompt == "x":
        arguments += ["--set", f"checkpointer.checkpoint_dir={tmp_path / 'missing'}"]
    with pytest.raises(SystemExit):
        main(arguments)
    assert re.search(message, capsys.readouterr().err)


def test_a_prompt_needs_whole_blocks_on_cuda(earlier, monkeypatch):
    monkeypatch.setattr(device, "flex_obstacle", lambda device: None)
    with pytest.raises(ValueError, match="row_length=None: FlexAttention"):
        prompt_embedding(earlier, "a prompt")


def test_texts_are_those_of_the_manifest_or_of_the_tokens(earlier, tmp_path, capsys):
    def refused(run):
        with pytest.raises(SystemExit):
            main([str(run)])
        return capsys.readouterr().err

    run = shutil.copytree(earlier, tmp_path / "run")
    texts = run / "epoch_0" / "memory" / "texts.jsonl"
    written = texts.read_text()
    lines = written.splitlines(keepends=True)
    target = json.dumps(json.loads(lines[3])["target"])
    lines[3] = lines[3].replace(target, '"another"')
    texts.write_text("".join(lines))
    assert re.search("texts.jsonl (has .* bytes|is damaged)", refused(run))
    (run / "epoch_0" / "manifest.json").unlink()
    assert re.search("texts.jsonl:4: not the texts of slot 3; del", refused(run))
    texts.write_text("".join(lines[1:]))
    assert re.search(r"has \d+ lines for \d+ slots; delete it", refused(run))
    texts.write_text('{"source": 1}\n' + "".join(lines[1:]))
    assert re.search("texts.jsonl:1: source: input should be a", refused(run))
    texts.write_text(written)
    shown = read_slots(open_memory(run))
    texts.unlink()
    decoded = read_slots(open_memory(run))
    columns = ["source", "target"]
    assert shown[columns].equals(decoded[columns])
    about = run / "epoch_0" / "memory" / "memory.json"
    about.write_text(re.sub('"tokenizer": "..', '"tokenizer": "xx', about.read_text()))
    assert re.search("holds tokens of another tokenizer than", refused(run))
