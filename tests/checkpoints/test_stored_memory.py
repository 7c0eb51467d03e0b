"""Invalid memory files are refused with a one-line error by every reader."""

import json
import os
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from erjepa.checkpoints import stored_memory
from erjepa.checkpoints.memory_file import write_memory
from erjepa.checkpoints.stored_memory import StoredMemory, open_memory
from tests.harness.memories import DESCRIPTION, filled, write_run


def slots_of(folder, change):
    """Rewrite the tensors of a memory: a change of a tensor in place, or a new one."""
    tensors = load_file(folder / "slots.safetensors")
    tensors.update(change(tensors) or {})
    kept = {name: t.contiguous() for name, t in tensors.items() if t is not None}
    save_file(kept, folder / "slots.safetensors")


def about_of(folder, change):
    """Rewrite ``memory.json``: a change of it in place."""
    path = folder / "memory.json"
    about = json.loads(path.read_text())
    change(about)
    path.write_text(json.dumps(about))


def bytes_of(name, change):
    def harm(folder):
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return harm


def tensor(name, slot, value):
    return lambda folder: slots_of(
        folder, lambda tensors: tensors[name].__setitem__(slot, value)
    )


def other(name, function):
    return lambda folder: slots_of(folder, lambda t: {name: function(t.get(name))})


def about(**values):
    return lambda folder: about_of(folder, lambda about: about.update(values))


def state(**values):
    def change(about):
        about["state"]["memory"].update(values)

    return lambda folder: about_of(folder, change)


def fifo(name):
    def make(folder):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


HARMS = {
    # Files.
    "cut": (bytes_of("slots.safetensors", lambda b: b[:-1]), "cannot be read"),
    "half": (bytes_of("slots.safetensors", lambda b: b[:200]), "cannot be read"),
    "empty": (bytes_of("slots.safetensors", lambda b: b""), "cannot be read"),
    "zip": (bytes_of("slots.safetensors", lambda b: b"PK" + b), "cannot be read"),
    "fifo of slots": (fifo("slots.safetensors"), "slots.safetensors is not a regular"),
    "fifo of about": (fifo("memory.json"), "memory.json is not a regular file"),
    "fifo of texts": (fifo("texts.jsonl"), "texts.jsonl is not a regular file"),
    # memory.json.
    "cut json": (bytes_of("memory.json", lambda b: b[:-9]), "memory.json:.* not JSON"),
    "deep json": (
        bytes_of("memory.json", lambda b: b"[" * 10**5),
        "JSON that cannot be read",
    ),
    "list": (bytes_of("memory.json", lambda b: b"[]"), "does not describe a memory"),
    "format": (about(format="zip"), "does not describe a memory"),
    "version": (about(version=2), "has version 2 of the format, but only version 1"),
    "no tokenizer": (about(tokenizer=None), "tokenizer: input should be a valid st"),
    "origins": (about(origins=[1]), r"origins\[0\]: input should be a valid string"),
    "slots as text": (about(slots="30"), "slots: input should be a valid integer"),
    "slots below 0": (about(slots=-1), "slots: input should be greater than or equ"),
    "slots": (
        about(slots=31),
        r"is torch.int64 \[30\]; memory.json .* torch.int64 \[31\]",
    ),
    "many": (about(slots=51), "has 51 slots of 50"),
    "inherited": (about(inherited=2), "2 inherited origins of 1"),
    "score": (about(replay={"score": "x"}), "replay.score: input should be 'jepa'"),
    "revisit": (state(on_revisit="x"), "on_revisit: input should be 'keep'"),
    "seen": (state(seen=[1, 10**30]), r"seen\[1\]: "),
    # Names, types and shapes.
    "extra": (other("more", lambda _: torch.zeros(30)), "holds more, unlike"),
    "missing": (other("scores", lambda t: None), "lacks scores, unlike"),
    "no addresses": (state(addresses={}), "holds address_indices, unlike"),
    "half precision": (
        other("scores", torch.Tensor.half),
        r"scores is torch.float16 \[30\]; .* torch.float32 \[30\]",
    ),
    "wide": (other("lengths", torch.Tensor.long), r"lengths is torch.int64 \[30, 5\]"),
    "flat": (other("lengths", torch.Tensor.flatten), r"lengths is torch.int32 \[150\]"),
    "tall": (
        other("tokens", lambda t: t[:, None]),
        r"tokens is torch.int32 \[\d+, 1\]",
    ),
    "narrow": (
        other("address_values", lambda t: t[:, :0]),
        "address_values is torch.float32",
    ),
    # Values.
    "nan": (tensor("scores", 7, torch.nan), "slot 7 has a score that is not finite"),
    "inf": (tensor("scores", 29, torch.inf), "slot 29 has a score that is not fin"),
    "count": (tensor("replay_counts", 3, -1), "slot 3 has a negative replay count"),
    "equal ids": (
        tensor("example_ids", 9, 4),
        "slot 9 repeats the example of an earlier",
    ),
    "origin": (tensor("example_ids", 9, 1 << 32), "slot 9 has an unknown origin"),
    "old origin": (tensor("example_ids", 9, -1), "slot 9 has an unknown origin"),
    "no target": (tensor("lengths", (5, 2), 0), "slot 5 has an empty text"),
    "length": (tensor("lengths", (5, 1), -1), "slot 5 has a negative length"),
    "longer": (tensor("lengths", (5, 1), 9), r"holds \d+ tokens, and the lengths .*"),
    "less": (other("tokens", lambda t: t[:-1]), "tokens, and the lengths of its slots"),
    "token": (tensor("tokens", -1, -1), "slot 29 has the token -1"),
    "address": (
        tensor("address_values", (8, 0), torch.nan),
        "slot 8 has an address th",
    ),
    "long": (tensor("address_values", (8, 0), 1e30), "slot 8 has an address that is"),
    "index": (tensor("address_indices", (2, 0), -1), "slot 2 has an address index"),
    "index above": (tensor("address_indices", (2, 0), 32), "slot 2 has an address ind"),
    "generator": (other("generator", lambda t: t[:9]), "slots.safetensors: generator:"),
}


@pytest.mark.parametrize("harm, message", HARMS.values(), ids=HARMS)
def test_what_no_run_writes_is_refused_in_one_line(tmp_path, harm, message):
    """Without a manifest, as in a copied folder."""
    folder = tmp_path / "memory"
    write_memory(folder, filled(30), DESCRIPTION)
    harm(folder)
    with pytest.raises(
        ValueError, match=f"^key: {re.escape(str(folder))}.*{message}"
    ) as e:
        open_memory(folder, "key")
    assert len(str(e.value).splitlines()) == 1


def test_examples_may_repeat_where_revisits_are_appended(tmp_path):
    replay = filled(30, on_revisit="append")
    replay.memory.example_ids[9] = 4
    write_memory(tmp_path / "memory", replay, DESCRIPTION)
    assert len(open_memory(tmp_path)) == 30


def test_tokens_are_held_to_the_vocabulary(tmp_path):
    write_memory(tmp_path / "memory", filled(30), DESCRIPTION)
    stored = open_memory(tmp_path)
    stored.require_vocabulary(30)
    with pytest.raises(
        ValueError, match="slot 29 has the token 29; the vocabulary .* 29"
    ):
        stored.require_vocabulary(29)


@pytest.mark.parametrize(
    "harm, message",
    [
        (lambda f: (f / "memory.json").unlink(), "memory.json is missing"),
        (lambda f: (f / "slots.safetensors").unlink(), "slots.safetensors is missing"),
        (shutil.rmtree, "memory.json is missing"),
        (
            bytes_of("slots.safetensors", lambda b: b[:-1] + bytes([b[-1] ^ 1])),
            "slots.safetensors is damaged: its SHA-256",
        ),
        (about(inherited=1), "memory.json has .* bytes|memory.json is damaged"),
        (bytes_of("texts.jsonl", bytes.upper), "texts.jsonl is damaged"),
        (lambda f: (f.parent / "manifest.json").write_text("{}"), "json is damaged"),
    ],
)
def test_an_older_memory_is_never_taken_by_itself(tmp_path, harm, message):
    write_run(tmp_path, "epoch_0", "epoch_1", "epoch_2")
    assert len(open_memory(tmp_path)) == 3
    harm(tmp_path / "epoch_2" / "memory")
    (tmp_path / "epoch_1" / "memory" / "slots.safetensors").write_bytes(b"")
    older = re.escape(str(tmp_path / "epoch_0"))
    with pytest.raises(ValueError, match=f"epoch_2.*({message}).*name .*: {older}$"):
        open_memory(tmp_path)
    assert len(open_memory(tmp_path / "epoch_0")) == 1


def test_no_memory(tmp_path):
    with pytest.raises(FileNotFoundError, match="replay.init_from: .* holds no memory"):
        open_memory(tmp_path, "replay.init_from")


def test_a_checkpoint_may_be_pruned_while_its_memory_is_read(tmp_path, monkeypatch):
    """By the run that writes it: at each moment of opening, and after it."""
    opened = stored_memory.open_regular
    for moment in range(1, 5):
        run = tmp_path / str(moment)
        write_run(run, "epoch_0_step_2", "epoch_0_step_4")
        calls = []

        def prune_meanwhile(path, run=run, moment=moment, calls=calls):
            calls.append(path)
            if len(calls) == moment:
                write_run(run, "epoch_0_step_6")
                shutil.rmtree(run / "epoch_0_step_4")
            return opened(path)

        monkeypatch.setattr(stored_memory, "open_regular", prune_meanwhile)
        stored = open_memory(run)
        newest = "epoch_0_step_6" if moment < 4 else "epoch_0_step_4"
        assert stored.folder.parent.name == newest
    shutil.rmtree(tmp_path)
    stored.check()
    replay = filled(9)
    replay.restore(stored.about.state, stored.tensors)
    assert len(replay) == 2 and len(list(stored.pairs)) == 2


def test_a_checkpoint_may_be_pruned_once_it_is_found(tmp_path, monkeypatch):
    write_run(tmp_path, "epoch_0_step_2")
    found = stored_memory.memory_folder

    def prune_found(path):
        monkeypatch.undo()
        folder = found(path)
        write_run(tmp_path, "epoch_0_step_4")
        shutil.rmtree(folder.parent)
        return folder

    monkeypatch.setattr(stored_memory, "memory_folder", prune_found)
    assert open_memory(tmp_path).folder.parent.name == "epoch_0_step_4"


def test_a_memory_may_be_pruned_before_torch_maps_it(tmp_path, monkeypatch):
    """Which is after safetensors has opened the file."""
    write_run(tmp_path, "epoch_0_step_2")
    mapped = torch.UntypedStorage.from_file

    def prune_before(*args, **kwargs):
        monkeypatch.undo()
        write_run(tmp_path, "epoch_0_step_4")
        shutil.rmtree(tmp_path / "epoch_0_step_2")
        return mapped(*args, **kwargs)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", prune_before)
    assert open_memory(tmp_path).folder.parent.name == "epoch_0_step_4"


def test_one_that_was_named_and_is_pruned_is_gone(tmp_path, monkeypatch):
    write_run(tmp_path, "epoch_0", "epoch_1")
    monkeypatch.setattr(
        StoredMemory,
        "_open",
        lambda *_: shutil.rmtree(tmp_path / "epoch_1") or open("x"),
    )
    with pytest.raises(FileNotFoundError, match="epoch_1 does not exist"):
        open_memory(tmp_path / "epoch_1")


def test_a_link_to_a_checkpoint_that_is_gone_is_named(tmp_path):
    write_run(tmp_path / "run", "epoch_0")
    newest = tmp_path / "run" / "epoch_9"
    newest.symlink_to(tmp_path / "unmounted")
    with pytest.raises(FileNotFoundError, match=f"{newest} links to nothing"):
        open_memory(tmp_path / "run")


def test_a_folder_that_another_rank_lacks_is_named(tmp_path):
    def fail(function):
        raise FileNotFoundError("on another rank")

    write_run(tmp_path, "epoch_0")
    with pytest.raises(
        FileNotFoundError, match="epoch_0/memory is not there for every"
    ):
        open_memory(tmp_path, on_each=fail)


def test_a_link_may_lead_elsewhere_while_its_memory_is_read(tmp_path):
    write_run(tmp_path, "epoch_0", "epoch_1")
    best, calls = tmp_path / "best", []
    best.symlink_to("epoch_0")

    def pruned_at_first(function):
        calls.append(function)
        if len(calls) > 1:
            return function()
        best.unlink()
        best.symlink_to("epoch_1")
        raise FileNotFoundError("epoch_0")

    assert len(open_memory(best, on_each=pruned_at_first)) == 2
