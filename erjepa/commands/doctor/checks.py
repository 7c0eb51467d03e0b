"""The checks of ``erjepa doctor``: a run's own functions, in the order of the run."""

import os
import shutil
import sys
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from heapq import nlargest
from importlib.metadata import version
from itertools import chain, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from erjepa.checkpoints.space import checkpoint_sizes, readable, require_space
from erjepa.commands.doctor.memory import memory_parts
from erjepa.configs import Config, components, require_files
from erjepa.configs.component import Components
from erjepa.datasets import Pair, dataset_name, require_sources
from erjepa.objective import PackedDecoder, StepFlops
from erjepa.packing import Attention, PackedBatch
from erjepa.tasks.score import load_task
from erjepa.training.model.device import (
    attention_of,
    flex_obstacle,
    memory_of,
    run_device,
)
from erjepa.training.model.precision import dtypes_of
from erjepa.training.model.sharding import require_shardable
from erjepa.training.run.earlier_weights import (
    load_adapter,
    named_start,
    require_start,
)
from erjepa.training.run.inherited import InheritedMemories
from erjepa.training.run.memory import memory_bytes
from erjepa.training.run.prepared import PreparedRun
from erjepa.training.run.start import (
    find_starts,
    is_to_resume,
    require_fresh_output,
)
from erjepa.training.run.steps import TrainingPairs
from erjepa.training.step.passes import flops_of

GIB = 2**30
USED = 0.9  # usable part of a GPU's memory, beside its context, NCCL and fragmentation
_USED_ON_CPU = 0.7  # beside the libraries, the data, and kernels that copy their inputs
_STEPS = 8  # steps whose rows and FLOPs are shown
_NCCL, _WORKER = 1 << 30, 64 << 20  # bytes of shared memory, roughly
_REMEDIES = {
    "weights": "set model.quantize_base=True, set fsdp_cpu_offload=True, start more ranks",
    "gathered weights": "set fsdp_reshard_after_forward=True, set model.quantize_base=True, "
    "take larger GPUs",
    "gradients": "set a smaller model.lora_rank",
    "optimizer": "set a smaller model.lora_rank, set fsdp_cpu_offload=True, start more ranks",
    "averaged weights": "set ema_decay=null",
    "activations": "set enable_activation_checkpointing=True, "
    "set a smaller batch_size and more gradient_accumulation_steps",
    "logits": "set a smaller batch_size and more gradient_accumulation_steps",
    "replay memory": "set a smaller replay.capacity",
    "answers": "set validation.generate=0",
}

T = TypeVar("T")


class Report:
    """Prints a line per check; ``has_faults`` is whether one failed."""

    has_faults = False

    def check(
        self, name: str, function: Callable[[], T], say: Callable[[T], str] = str
    ) -> T | None:
        """Run a check and print its result, what the run would warn of, or the error that it would
        end with.

        Returns:
            What ``function`` returned; ``None`` if it raised.
        """
        verdict, value = "ok", None
        try:
            value = function()
            text = say(value)
        except Warning as warning:
            verdict, text = "warn", str(warning)
        except Exception as error:  # noqa: BLE001  the run would end with it
            self.has_faults = True
            verdict, value, text = "fix", None, str(error) or type(error).__name__
        print(f"{verdict:<4} {name}: {' '.join(text.split())}", flush=True)
        return value


def find_faults(cfg: Config, ranks: int, gpu_memory: int | None) -> bool:
    """Check a run on ``ranks`` ranks, from package versions to the memory of a step.

    ``gpu_memory`` is the bytes of each GPU, if they are not this machine's. Returns whether a
    check failed.
    """
    report = Report()
    check = report.check
    with rank_of(ranks):
        check("versions", _versions)
        found = check("device", lambda: _device(cfg, gpu_memory))
        device = found or Device(torch.device("cuda"), "GPU", None, False)
        attention, _ = check(
            "attention",
            lambda: _attention(cfg, device),
            lambda found: f"{found[0]}: {found[1]}",
        ) or ("dense", "")
        check("ranks", lambda: _ranks(cfg, device, ranks))
        check("shared memory", lambda: _shared_memory(cfg, device, ranks))
        files = check(
            "files",
            lambda: _files(cfg),
            lambda cfg: f"base model in {cfg.checkpointer.get('checkpoint_dir')}",
        )
        seeded = replace(files or cfg, seed=cfg.seed or 0)
        run = PreparedRun(seeded, device.device, attention)
        tokenizer = None
        if files is not None:
            tokenizer = check(
                "tokenizer", lambda: run.tokenizer, lambda made: type(made).__name__
            )
        if check("model", lambda: run.model, _sizes) is None:
            return True
        earlier = None
        if cfg.init_from or cfg.base_adapters or cfg.replay.start_from:
            _, earlier = check(
                "earlier runs",
                lambda: _earlier_runs(run, has_tokenizer=tokenizer is not None),
                lambda found: found[0],
            ) or ("", None)
        inherited = 0 if earlier is None else len(earlier)
        rows = None
        if tokenizer is not None:
            rows = check("pairs", lambda: rows_of_data(run, earlier))
        if (test := cfg.eval_dataset) is not None:
            check("test pairs", lambda: _test_pairs(test, cfg.task))
        stored = 0 if rows is None else memory_bytes(run, inherited)
        if rows is None:
            rows = check("rows", lambda: longest_rows(run))
        check("disk", lambda: _disk(run, stored))
        if rows is not None:
            check("step", lambda: _step(run, rows, ranks))
            check("memory", lambda: _memory(run, rows, device, inherited))
    return report.has_faults


@contextmanager
def rank_of(ranks: int) -> Iterator[None]:
    """Simulate one of several ranks, on the last device; collectives do nothing."""
    last = {"LOCAL_RANK": str(ranks - 1), "LOCAL_WORLD_SIZE": str(ranks)}
    with patch.dict(os.environ, last):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        try:
            yield
        finally:
            dist.destroy_process_group()


# -------------------------------------------------------------------- the machine


class Device(NamedTuple):
    """The device that a rank trains on."""

    device: torch.device
    name: str  # name of the GPU, or cpu
    memory: int | None  # bytes for each rank; None: the device does not exist
    is_here: bool = True  # whether this machine has it

    def __str__(self) -> str:
        return f"{self.name}, {(self.memory or 0) / GIB:.1f} GiB for each rank"


def _versions() -> str:
    names = ("torch", "torchtune", "torchao")
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    return f"{', '.join(f'{name} {version(name)}' for name in names)}; built for {cuda}"


def _device(cfg: Config, gpu_memory: int | None) -> Device:
    if gpu_memory is not None:
        absent = torch.device("cuda")
        return Device(absent, "GPU of another machine", gpu_memory, False)
    found = run_device(cfg)
    is_gpu = found.type == "cuda"
    name = torch.cuda.get_device_name(found) if is_gpu else found.type
    return Device(found, name, memory_of(found))


def _attention(cfg: Config, device: Device) -> tuple[Attention, str]:
    """Return the attention of the run, and the reason."""
    if device.is_here:
        attention = attention_of(cfg, device.device)
        if attention == "dense" and cfg.attention != "dense":
            return attention, f"{flex_obstacle(device.device)}"
        return attention, f"attention={cfg.attention}"
    if cfg.attention in ("dense", "causal"):
        return cfg.attention, f"attention={cfg.attention}"
    return "flex", "if that machine has a C compiler"


def _ranks(cfg: Config, device: Device, ranks: int) -> str:
    needs_nccl = device.device.type == "cuda" and ranks > 1 and device.is_here
    if needs_nccl and not dist.is_nccl_available():
        raise RuntimeError(
            "several GPUs need NCCL, which this build of torch lacks: install one for CUDA"
        )
    batch_size, accumulated = cfg.batch_size, cfg.gradient_accumulation_steps
    return (
        f"{ranks}; a step has {batch_size * accumulated * ranks} pairs, {batch_size} x "
        f"{accumulated} accumulated x {ranks}"
    )


def _shared_memory(cfg: Config, device: Device, ranks: int) -> str:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return "this system has no /dev/shm"
    needed = ranks * _WORKER if cfg.num_workers else 0
    if device.device.type == "cuda" and ranks > 1:
        needed += _NCCL
    free = shutil.disk_usage(folder).free
    if free < needed and device.is_here:
        raise RuntimeError(
            f"/dev/shm has {readable(free)} free, {ranks} ranks need about "
            f"{readable(needed)}: start the container with --shm-size=2g or --ipc=host"
        )
    return f"{readable(free)} free, about {readable(needed)} needed"


# ----------------------------------------------------------- files, model, pairs


def _files(cfg: Config) -> Config:
    cfg = require_files(cfg)
    with TemporaryDirectory() as scratch:
        cfg.checkpointer.build(output_dir=f"{scratch}/unused")
    return cfg


def _earlier_runs(
    run: PreparedRun, *, has_tokenizer: bool
) -> tuple[str, InheritedMemories]:
    """Return the folders of the runs to start from, and their memories."""
    resume = is_to_resume(run.cfg)
    cfg, starts = find_starts(run.cfg, resume=resume)
    found: list[str | Path] = [*(cfg.base_adapters or [])]
    if cfg.init_from is not None and not resume:
        found.append(start := starts[cfg.init_from])
        require_start(cfg, start, run.model.decoder)
        if run.trainable.has_adapters:
            load_adapter(start, named_start(cfg), cfg, run.model.decoder)
    tokenizer = run.texts.fingerprint if has_tokenizer else None
    memories = InheritedMemories(cfg, tokenizer, starts)
    if has_tokenizer:
        memories.fit(run)
    found += memories.folders
    return ", ".join(map(str, found)) or "resumed instead", memories


def _sizes(model: PackedDecoder) -> str:
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    rows = "; a text per row" if model.attention == "causal" else ""
    return f"{sum(size for size, _ in sizes):,} parameters, {trained:,} trained{rows}"


class Rows(NamedTuple):
    """Micro-batches of a rank."""

    pairs: str  # describes the pairs
    longest: list[PackedBatch]  # of the longest pairs
    steps: list[list[PackedBatch]]  # of the first steps

    @property
    def largest(self) -> PackedBatch:
        return max(self.longest, key=lambda b: (b.tokens.numel(), b.num_projected))

    def __str__(self) -> str:
        """Describe the pairs, and the shapes of rows, the most frequent first."""
        shapes = Counter(tuple(b.tokens.shape) for step in self.steps for b in step)
        shown = ", ".join(f"{n} x {length}" for (n, length), _ in shapes.most_common())
        most = " x ".join(map(str, self.largest.tokens.shape))
        return f"{self.pairs}; rows x tokens of a micro-batch: {shown}, at most {most}"


def rows_of_data(run: PreparedRun, earlier: InheritedMemories | None = None) -> Rows:
    """Return rows of the run's pairs, the longest also of pairs that it inherits."""
    cfg, collator, found = run.cfg, run.collators.new, TrainingPairs(run)
    accumulated = cfg.gradient_accumulation_steps
    longest_of = partial(nlargest, cfg.batch_size * accumulated, key=collator.length)
    longest = longest_of(found.train)
    said = (
        f"{len(found.train):,} to train on, {len(found.held_out):,} to validate on, of at most "
        f"{collator.length(longest[0])} tokens (max_seq_len={cfg.max_seq_len})"
    )
    if earlier is not None:
        inherited = (Pair(0, *cut) for cut in earlier.segments())
        longest = longest_of(chain(longest, inherited))
    loader = found.loader  # not iterated: it may start processes and pin memory
    steps = [loader.dataset[step] for step in islice(loader.sampler, _STEPS)]
    return Rows(said, collator.split(longest, accumulated), steps)


def _test_pairs(section: Components, task: str | None) -> str:
    require_sources(section, "eval_dataset")
    if task is not None:
        load_task(task)
    return ", ".join(map(dataset_name, components(section)))


def longest_rows(run: PreparedRun) -> Rows:
    """Return rows of made-up pairs of ``max_seq_len`` tokens, which share none of them.

    Source and target are equally long.
    """
    cfg, k = run.cfg, run.num_predictor_tokens
    names = cfg.predictor_tokens or [f"reserved {i}" for i in range(k)]
    special_tokens = {name: i for i, name in enumerate(names)}
    made_up: Any = SimpleNamespace(pad_id=0, special_tokens=special_tokens)
    run.tokenizer = made_up
    collator = run.collators.new
    tokens = count()

    def pair(length: int) -> Pair:
        source, target = (array("i", islice(tokens, length)) for _ in range(2))
        return Pair(0, source, array("i"), target, source, target)

    # Views of spans need a few tokens, so the shortest side has 7.
    half = 7 + bisect_right(
        range(8, cfg.max_seq_len),
        cfg.max_seq_len,
        key=lambda length: collator.length(pair(length)),
    )
    size, accumulated = cfg.batch_size, cfg.gradient_accumulation_steps
    pairs = [pair(half)._replace(example_id=i) for i in range(size * accumulated)]
    step = collator.split(pairs, accumulated)
    said = f"assumes pairs of max_seq_len={cfg.max_seq_len} tokens, half of them target"
    return Rows(said, step, [step])


# --------------------------------------------------------------- disk, time, memory


def _disk(run: PreparedRun, memory: int) -> str:
    cfg, folder = run.cfg, Path(run.cfg.output_dir)
    require_fresh_output(cfg, resume=bool(cfg.resume_from_checkpoint))
    dtype, _ = dtypes_of(cfg)
    has_adapters = run.trainable.has_adapters
    sizes = checkpoint_sizes(
        cfg, run.model, dtype=dtype, has_adapters=has_adapters, memory=memory
    )
    whole_run = sizes.run(cfg, cfg.epochs)
    existing = next(
        path for path in (folder, *folder.absolute().parents) if path.exists()
    )
    if warning := require_space(existing, sizes, whole_run):
        raise ResourceWarning(warning)
    return (
        f"a checkpoint takes about {readable(sizes.resumable)}, those of the run "
        f"{readable(whole_run)}; {readable(shutil.disk_usage(existing).free)} are free"
    )


def _step(run: PreparedRun, rows: Rows, ranks: int) -> str:
    """Return the mean FLOPs of the steps, of which those that lack their views replay nothing."""
    cfg, replay = run.cfg, run.cfg.replay
    count_flops = StepFlops(run.model.decoder)
    new = cfg.batch_size * cfg.gradient_accumulation_steps * ranks
    replayed, said = 0, f"{new} pairs"
    if replay.weight and replay.share is None:
        replayed = replay.budget or new
        said = f"{new} new pairs and {replayed} replayed ones"
    flops = 0.0
    for step in rows.steps:
        counted = sum(flops_of(b, len(step), run.loss_fn, count_flops) for b in step)
        replays = run.views == "none" or any(b.num_views for b in step)
        flops += ranks * counted * (1 + replays * replayed / new)
    return f"{flops / len(rows.steps):.2g} FLOPs for {said}"


def _memory(run: PreparedRun, rows: Rows, device: Device, inherited: int) -> str:
    require_shardable(run.cfg, run.model, run.device)
    memory = sys.maxsize if device.memory is None else device.memory
    parts = memory_parts(run, rows.largest, memory, inherited)
    total = sum(parts.values())
    shown = ", ".join(f"{name} {n / GIB:.1f}" for name, n in parts.items() if n)
    text = f"{total / GIB:.1f} GiB for each rank ({shown})"
    if device.memory is None:
        return text
    is_cpu = device.device.type == "cpu"
    usable = (_USED_ON_CPU if is_cpu else USED) * device.memory
    if total > usable:
        largest = max(parts, key=parts.__getitem__)
        raise MemoryError(
            f"a step takes {text}, and {usable / GIB:.1f} of {device.memory / GIB:.1f} GiB "
            f"are usable: {_remedies(run, largest)}; see docs/several_gpus.md"
        )
    return f"{text} of {usable / GIB:.1f} usable"


def _remedies(run: PreparedRun, part: str) -> str:
    """Return what makes a part of the memory smaller and is not yet done."""
    cfg = run.cfg
    is_done = {
        "set model.quantize_base=True": cfg.model.get("quantize_base"),
        "set fsdp_reshard_after_forward=True": cfg.fsdp_reshard_after_forward,
        "set enable_activation_checkpointing=True": cfg.enable_activation_checkpointing,
    }
    remedies = [r for r in _REMEDIES[part].split(", ") if not is_done.get(r)]
    if not run.trainable.has_adapters:
        remedies = ["train adapters" if "model." in r else r for r in remedies]
    return ", or ".join(remedies)
