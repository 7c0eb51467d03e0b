"""Each problem gets its own line, and the other checks still run."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from torchtune.modules.peft import get_adapter_params

from erjepa.checkpoints.checkpoint import ADAPTER
from erjepa.commands.doctor import checks, main
from erjepa.commands.memory import main as memory
from erjepa.configs import load
from erjepa.training.run.prepared import PreparedRun
from tests.harness.data import write_jsonl
from tests.harness.memories import write_run
from tests.harness.runs import (
    BUILDER,
    FULL_BUILDER,
    overrides_for,
    paired,
    small_config,
)

NAMES = (
    "versions device attention ranks shared-memory files model tokenizer pairs test-pairs disk step memory"
).split()


@pytest.fixture
def doctor(capsys):
    """Runs it, and returns the exit code and the lines by name of their check."""

    def run(*arguments):
        code = main([*map(str, arguments)])
        lines = capsys.readouterr().out.splitlines()
        found = {}
        for line in lines:
            verdict, _, rest = line.partition(" ")
            name, _, text = rest.strip().partition(": ")
            found[name.replace(" ", "-")] = (verdict, text)
        assert len(found) == len(lines)
        return code, found

    return run


@pytest.fixture
def small(base, data, tmp_path):
    """Arguments of a small run on the CPU that works."""

    def arguments(**overrides):
        return [
            "--config",
            "llama3_2_1b_synth",
            *overrides_for(base, data, tmp_path / "out", **overrides),
        ]

    return arguments


def faults(found):
    return [name for name, (verdict, _) in found.items() if verdict == "fix"]


def test_a_run_that_works(doctor, small):
    code, found = doctor(*small(), "--nproc_per_node", 2)
    assert (code, faults(found)) == (0, [])
    assert set(found) == set(NAMES)
    assert found["ranks"][1] == "2; a step has 8 pairs, 4 x 1 accumulated x 2"
    assert found["step"][1].endswith(" FLOPs for 8 new pairs and 8 replayed ones")


@pytest.fixture
def step(doctor, small):
    """Returns the FLOPs and the pairs of a step."""

    def read(**overrides):
        _, found = doctor(*small(**overrides), "--nproc_per_node", 2)
        flops, _, pairs = found["step"][1].partition(" FLOPs for ")
        return float(flops), pairs

    return read


def test_the_flops_of_replayed_pairs_are_of_as_many_as_there_are(step):
    new, pairs = step(replay__weight=0)
    assert pairs == "8 pairs"
    few, pairs = step(replay__budget=2)
    assert pairs == "8 new pairs and 2 replayed ones"
    assert few / new == pytest.approx(1.25, rel=0.06)  # of two digits


def test_only_steps_with_a_jepa_loss_replay(step):
    without = {"replay__weight": 0}
    new, _ = step(**without)
    sft, _ = step(**without, loss__jepa_weight=0)
    both, _ = step(loss__jepa_every=2)
    assert both == pytest.approx((2 * new + sft) / 2, rel=0.08)


def test_the_forward_pass_that_looks_ahead_is_counted(step):
    keys = {"batch_size": 2, "gradient_accumulation_steps": 2}
    cosine, _ = step(**keys)
    infonce, _ = step(**keys, loss__distance="infonce")
    assert infonce > 1.2 * cosine


def too_little_disk(monkeypatch):
    usage = SimpleNamespace(free=100 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)


def no_gpu_memory(monkeypatch):
    monkeypatch.setattr(checks, "memory_of", lambda device: 1 << 20)


@pytest.mark.parametrize(
    ("overrides", "patch", "check", "said"),
    [
        (
            {"tokenizer__path": "/nowhere/tokenizer.model"},
            None,
            "files",
            "tune download meta-",
        ),
        (
            {"checkpointer__checkpoint_files": "[other.safetensors]"},
            None,
            "files",
            "other",
        ),
        ({"max_seq_len": 16}, None, "pairs", "do not fit max_seq_len=16; the longest"),
        ({"dataset__source": "/nowhere.jsonl"}, None, "pairs", "/nowhere.jsonl"),
        (
            paired("eval_dataset", "/nowhere.jsonl"),
            None,
            "test-pairs",
            "/nowhere.jsonl: no such file or folder; set eval_dataset.source to",
        ),
        (
            {"task": "exactmatch"},
            None,
            "test-pairs",
            "task=exactmatch: expected one of",
        ),
        ({"attention": "flex"}, None, "attention", "FlexAttention needs CUDA"),
        (
            {"init_from": "/nowhere"},
            None,
            "earlier-runs",
            "init_from=/nowhere does not",
        ),
        (
            {"base_adapters": "[/nowhere]"},
            None,
            "earlier-runs",
            "base_adapters=/nowhere does not",
        ),
        (
            {"replay__init_from": "/nowhere"},
            None,
            "earlier-runs",
            "replay.init_from: /nowhere does not exist",
        ),
        (
            {"device": "cuda", "row_length": 2048},
            None,
            "device",
            "finds no CUDA device",
        ),
        ({}, too_little_disk, "disk", "a checkpoint takes about"),
        ({}, no_gpu_memory, "memory", "a step takes"),
        ({"fsdp_cpu_offload": True}, None, "memory", "the run is on the CPU"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_wrong_has_one_line(
    doctor, small, monkeypatch, overrides, patch, check, said
):
    if patch is not None:
        patch(monkeypatch)
    code, found = doctor(*small(**overrides))
    assert code == 2
    assert faults(found) == [check]
    assert said in found[check][1]
    assert found["memory"][0] == "ok" or check == "memory"


def test_a_disk_that_checkpoints_may_fill_is_warned_of(doctor, small, monkeypatch):
    """As by the run, which trains; one checkpoint fits."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=50 << 20))
    keys = {"epochs": 1000, "keep_last_n": "null"}
    code, found = doctor(*small(**keys))
    assert (code, found["disk"][0]) == (0, "warn")
    assert "may fill up" in found["disk"][1]
    assert "; save_adapter_weights_only=True, keep_last_n=2 and" in found["disk"][1]
    _, found = doctor(*small(**keys, save_adapter_weights_only=True))
    assert "are free; keep_last_n=2 and keep_epochs=False take" in found["disk"][1]


def test_full_finetuning_gets_no_advice_on_adapters(doctor, small, monkeypatch):
    too_little_disk(monkeypatch)
    _, found = doctor(*small(model=FULL_BUILDER))
    assert faults(found) == ["disk"]
    assert found["disk"][1].endswith(" Free some or choose another output_dir.")
    for part in ("weights", "gathered weights", "gradients", "optimizer"):
        monkeypatch.setattr(checks, "memory_parts", lambda *_: {part: 1 << 60})  # noqa: B023
        for model, is_full in ((FULL_BUILDER, True), (BUILDER, False)):
            _, found = doctor(*small(model=model))
            text = found["memory"][1]
            assert ("lora_rank" in text or "quantize_base" in text) != is_full


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ("weights", "model.quantize_base"),
        ("gathered weights", "fsdp_reshard_after_forward"),
        ("activations", "enable_activation_checkpointing"),
    ],
)
def test_no_advice_on_what_is_set(part, key):
    for value in (True, False):
        cfg = load("llama3_2_1b_synth", [f"{key}={value}"])
        run = SimpleNamespace(cfg=cfg, trainable=SimpleNamespace(has_adapters=True))
        assert (f"{key}=True" in checks._remedies(run, part)) != value


def test_inherited_pairs_take_space(doctor, small, tmp_path, monkeypatch):
    earlier, counts = tmp_path / "earlier", []
    memory(["create", str(earlier), "--number", "3", *map(str, small())])
    counted = checks.memory_bytes

    def memory_bytes(run, inherited):
        counts.append(inherited)
        return counted(run, inherited)

    monkeypatch.setattr(checks, "memory_bytes", memory_bytes)
    start = {"replay__init_from": earlier}
    for overrides in ({}, start, {**start, "replay__capacity": 2}):
        assert doctor(*small(**overrides))[0] == 0
    assert counts == [0, 3, 2]


def test_inherited_pairs_may_be_the_longest(doctor, small, tmp_path):
    def pairs(name, source):
        path = tmp_path / f"{name}.jsonl"
        write_jsonl(path, [{"input": source, "output": "b"}] * 4)
        return paired("dataset", path)

    memory(
        ["create", str(tmp_path / "old"), *map(str, small(**pairs("old", "a" * 90)))]
    )
    alone = {**pairs("new", "a"), "max_seq_len": 300}
    after = {**alone, "replay__init_from": tmp_path / "old"}
    _, found = doctor(*small(**alone))
    _, longer = doctor(*small(**after))
    short, long = (f["pairs"][1].partition(", at most 1 x ") for f in (found, longer))
    assert short[0] == long[0] and int(short[2]) + 80 < int(long[2])
    code, found = doctor(*small(**{**after, "max_seq_len": 60}))
    assert (code, faults(found)) == (2, ["earlier-runs"])
    assert "do not fit max_seq_len=60; the longest" in found["earlier-runs"][1]


def test_a_memory_of_another_tokenizer(doctor, small, tmp_path):
    earlier = write_run(tmp_path / "earlier", "epoch_0")
    code, found = doctor(*small(replay__init_from=earlier))
    assert (code, faults(found)) == (2, ["earlier-runs"])
    assert "tokens of another tokenizer" in found["earlier-runs"][1]


def test_an_adapter_of_another_rank(doctor, small, base, data, tmp_path):
    cfg, start = small_config(base, data, tmp_path), tmp_path / "earlier"
    adapter = get_adapter_params(PreparedRun(cfg, torch.device("cpu")).model.decoder)
    start.mkdir()
    torch.save({k: torch.zeros(p.shape) for k, p in adapter.items()}, start / ADAPTER)
    assert faults(doctor(*small(init_from=start))[1]) == []
    _, found = doctor(*small(init_from=start, model__lora_rank=2))
    assert faults(found) == ["earlier-runs"]
    assert f"init_from={start} holds another model" in found["earlier-runs"][1]


def test_an_earlier_run_in_the_folder(doctor, small, tmp_path):
    (tmp_path / "out" / "epoch_0").mkdir(parents=True)
    (tmp_path / "out" / "epoch_0" / "progress.json").write_text("{}")
    code, found = doctor(*small())
    assert (code, faults(found)) == (2, ["disk"])
    assert "of an earlier run" in found["disk"][1]


def test_a_gpu_without_a_compiler_takes_a_dense_mask(monkeypatch):
    said = "Triton needs a C compiler; install gcc, or name one in CC"
    monkeypatch.setattr(
        "erjepa.training.model.device.flex_obstacle", lambda device: said
    )
    monkeypatch.setattr(checks, "flex_obstacle", lambda device: said)
    device = checks.Device(torch.device("cuda"), "GPU", 80 << 30)
    cfg = SimpleNamespace(attention="auto")
    assert checks._attention(cfg, device) == ("dense", said)
    with pytest.raises(ValueError, match="attention=flex: Triton needs"):
        checks._attention(SimpleNamespace(attention="flex"), device)


def test_shared_memory_and_nccl(monkeypatch):
    cfg = SimpleNamespace(num_workers=1, batch_size=4, gradient_accumulation_steps=1)
    gpu = checks.Device(torch.device("cuda"), "GPU", 80 << 30)
    usage = SimpleNamespace(free=64 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(RuntimeError, match="--shm-size=2g"):
        checks._shared_memory(cfg, gpu, 4)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: False)
    with pytest.raises(RuntimeError, match="several GPUs need NCCL"):
        checks._ranks(cfg, gpu, 4)
    checks._ranks(cfg, gpu, 1)


@pytest.mark.parametrize("gib", ["nan", "-4", "0", "inf"])
def test_a_gpu_has_some_memory(gib, capsys):
    with pytest.raises(SystemExit):
        main(["--config", "tiny_synth", f"--gpu_memory={gib}"])
    assert f"--gpu_memory {float(gib)}: must be a positive" in capsys.readouterr().err


def test_a_packaged_config_without_its_files(doctor, tmp_path):
    """One line says how to get them; memory is counted for pairs as long as may be."""
    code, found = doctor(
        *("--config", "llama3_2_1b_synth", f"output_dir={tmp_path}"),
        *("--gpu_memory", 10, "save_adapter_weights_only=True"),
    )
    assert code == 2
    assert faults(found) == ["files", "memory"]
    assert (
        "tune download meta-llama/Llama-3.2-1B-Instruct --output" in found["files"][1]
    )
    assert found["rows"][1].endswith("1 x 2048, at most 1 x 2048")
    assert "set enable_activation_checkpointing=True" in found["memory"][1]
