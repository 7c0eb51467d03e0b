"""What a run starts from: its folder, the base, an earlier run, or its own checkpoint."""

import contextlib
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torchtune import utils
from torchtune.modules.peft import get_adapter_params

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.fingerprint import (
    changed_keys,
    digest_of_weights,
    fingerprint,
)
from erjepa.checkpoints.lock import FolderLock
from erjepa.checkpoints.model_card import PROMPT
from erjepa.checkpoints.served_chat import Serving, serving_of
from erjepa.configs import Config
from erjepa.datasets import ChatTemplate
from erjepa.objective import PackedDecoder
from erjepa.training.model.build import StartWeights
from erjepa.training.model.distributed import (
    on_rank_zero,
    require_equal,
    wait_for_all,
)
from erjepa.training.run.earlier_weights import (
    config_of,
    found_adapters,
    load_averages,
    load_base,
    load_trained,
    named_start,
    require_start,
    warn_of_other_base,
)
from erjepa.training.run.prepared import PreparedRun
from erjepa.training.run.steps import TrainingPairs
from erjepa.utils.files import EMA, write_whole

log = utils.get_logger("INFO")


def is_to_resume(cfg: Config) -> bool:
    """Whether the run resumes a checkpoint, the same on every rank.

    ``resume_from_checkpoint=auto`` resumes if there is one, so that torchrun or Slurm can restart
    ranks with the same command.
    """
    if cfg.resume_from_checkpoint != "auto":
        return cfg.resume_from_checkpoint
    folder = Path(cfg.output_dir)
    return on_rank_zero(lambda: bool(checkpoint.resumable_checkpoints(folder)))


def seed_of(cfg: Config, *, resume: bool) -> int | None:
    """Return ``seed``; with ``seed=null`` a resumed run keeps the one that it drew."""
    if cfg.seed is not None or not resume:
        return cfg.seed
    return on_rank_zero(lambda: config_of(Path(cfg.output_dir)).get("seed"))


def find_starts(cfg: Config, *, resume: bool) -> tuple[Config, dict[str, Path]]:
    """Find the checkpoints of earlier runs that a run starts from; the same on every rank.

    They are found once, since an earlier run may still be training. A path that stands for no
    checkpoint is returned unchanged.

    Returns:
        The config with :func:`found_adapters`, and the checkpoints that a new run starts from, by
        the paths in ``init_from`` and ``replay.init_from``.

    Raises:
        FileNotFoundError: if ``continue_from`` does not exist; as :func:`found_adapters`.
        ValueError: as :func:`found_adapters`.
    """

    def find() -> tuple[list[str] | None, dict[str, Path]]:
        if resume:
            return found_adapters(cfg, Path(cfg.output_dir)), {}
        if (start := cfg.continue_from) and not Path(start).exists():
            raise FileNotFoundError(
                f"continue_from={start} does not exist; give the output_dir of the earlier run"
            )
        runs = [run for run in (cfg.init_from, *cfg.replay.start_from) if run]
        starts = {run: checkpoint.current(Path(run)) for run in runs}
        return found_adapters(cfg, starts.get(cfg.init_from or "")), starts

    adapters, starts = on_rank_zero(find)
    return replace(cfg, base_adapters=adapters), starts


class RunFolder:
    """``output_dir``, which rank 0 locks for the run until :meth:`close`.

    Attributes:
        resumed: the newest checkpoint if the run resumes.

    Raises:
        BlockingIOError: if another run has locked it.
        FileExistsError: as in :func:`require_fresh_output`.
        FileNotFoundError: if there is no checkpoint to resume.
        ValueError: naming the damaged file of that checkpoint; as in :func:`require_fresh_output`.
    """

    def __init__(self, cfg: Config, *, resume: bool) -> None:
        self.path = Path(cfg.output_dir)
        self._lock: FolderLock | None = None  # on rank 0

        def claim() -> Path | None:
            self._lock = FolderLock(self.path, "run")
            require_fresh_output(cfg, resume=resume)
            return checkpoint.latest(self.path) if resume else None

        self.resumed = on_rank_zero(claim)

    def require(self) -> None:
        """On rank 0, raise a FileNotFoundError if the folder has been deleted or replaced."""
        if self._lock is not None:
            self._lock.require_folder()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()


def require_fresh_output(cfg: Config, *, resume: bool) -> None:
    """Fail if the run would overwrite checkpoints of another run or mix FLOPs budgets with it.

    Raises:
        FileExistsError: if there are checkpoints and the run does not resume, or if ``output_dir``
            is a checkpoint itself.
        ValueError: if they have other FLOPs budgets than the resumed run.
    """
    output_dir = Path(cfg.output_dir)
    if (output_dir / checkpoint.PROGRESS).is_file():
        advice = (
            f"set output_dir={output_dir.parent}"
            if resume
            else "choose another output_dir"
        )
        raise FileExistsError(
            f"output_dir={output_dir} is a checkpoint, which its run may delete; {advice}"
        )
    at_flops = checkpoint.flops_checkpoints(output_dir)
    existing = at_flops + checkpoint.checkpoints(output_dir)
    if existing and not resume:
        lacks_budgets = len(at_flops) < len(cfg.checkpoint_at_flops or ())
        advice = "Choose another output_dir"
        if checkpoint.resumable_checkpoints(output_dir):
            advice = (
                "Resume it (resume_from_checkpoint=True) or choose another output_dir"
            )
        elif existing == at_flops and lacks_budgets:
            removal = shlex.join(["rm", "-r", *map(str, existing)])
            advice += f", or delete those of a run that was killed: {removal}"
        raise FileExistsError(
            f"output_dir={output_dir} holds {existing[-1].name} of an earlier run. {advice}."
        )
    for i, budget in enumerate(cfg.checkpoint_at_flops or ()):
        path = output_dir / checkpoint.flops_name(i)
        if path in at_flops and checkpoint.load_progress(path)["budget"] != budget:
            raise ValueError(
                f"{path} was not written at {budget:g} FLOPs; a resumed run keeps its "
                "checkpoint_at_flops and may add larger ones."
            )


def build_checkpointer(cfg: Config) -> Any:
    """Build the torchtune checkpointer of the base, which exports to the scratch folder."""
    scratch = Path(cfg.output_dir) / checkpoint.SCRATCH
    checkpointer = cfg.checkpointer.build(output_dir=str(scratch))
    # Every rank's checkpointer creates the folder, and could fail if it were removed meanwhile.
    wait_for_all()
    with contextlib.suppress(OSError):
        scratch.rmdir()
    return checkpointer


def find_serving(run: PreparedRun) -> Serving:
    """Find a chat template that makes the prompts of training; warn of what still differs."""

    def find() -> Serving:
        folder = Path(run.cfg.checkpointer.get("checkpoint_dir"))
        serving = serving_of(folder, run.dataset, run.tokenizer)
        if serving.warning is not None:
            log.warning(serving.warning)
        if serving.template is not None:
            log.info(
                f"The chat template of {folder} builds other prompts than training does; "
                "checkpoints get one that builds the same."
            )
        if serving.prompt is not None:
            write_whole(Path(run.cfg.output_dir) / PROMPT, serving.prompt)
        end_of_turn = ChatTemplate(run.tokenizer).end_of_turn
        return serving._replace(end_of_turn=end_of_turn)

    return on_rank_zero(find)


class Start(NamedTuple):
    weights: StartWeights
    fingerprint: dict[str, Any]  # what determines the run, compared when it is resumed
    data: dict[str, Any]  # the pairs of the run, see data_of
    # Checkpoints of earlier runs, relative to the paths in the config, by these
    started_from: dict[str, str]
    # If it resumes: the recipe state in its checkpoint, and the dotted keys that have changed
    state: dict[str, Any] | None
    changed: Collection[str]
    carried: Sequence[str]  # descriptions of what comes from earlier runs


def load_start(
    cfg: Config,
    checkpointer: Any,
    model: PackedDecoder,
    pairs: TrainingPairs,
    starts: Mapping[str, Path],
    path: Path | None,
) -> Start:
    """Load what the run starts from or the checkpoint that it resumes, and wait for all ranks.

    Args:
        starts: the result of :func:`find_starts`.
        path: the checkpoint to resume.

    Raises:
        ValueError: naming the damaged file, what differs from the run to resume, or the ranks that
            read another base model than rank 0.
    """
    current = fingerprint(
        cfg,
        pairs_of_a_step=pairs.sampler.examples_per_step,
        share=pairs.share,
        pairs=pairs.train,  # type: ignore[arg-type]
    )
    trained, predictor, averaged = None, None, None
    carried = [f"{start}, merged" for start in cfg.base_adapters or []]
    if cfg.init_from is not None and path is None:
        source = starts[cfg.init_from]
        require_start(cfg, source, model.decoder)
        trained, predictor = load_trained(source, named_start(cfg), cfg, model.decoder)
        carried.append(f"weights of {source}")
        if cfg.ema_decay is not None:
            averaged, description = load_averages(source, cfg, model.decoder)
            carried.append(description)
        elif (source / EMA).is_dir():
            carried.append("their average not continued, as ema_decay=null")
    base, merged = load_base(cfg, checkpointer, model.decoder)
    current["base model"] = digest = digest_of_weights(base)
    # Ranks quantize their own copies of the weights.
    require_equal(digest, key="base model", what="weights")
    state, changed = None, set[str]()
    if path is None:
        if cfg.init_from is not None and get_adapter_params(model.decoder):
            warn_of_other_base(starts[cfg.init_from], named_start(cfg), digest)
        started_from = {
            str(Path(run)): os.path.relpath(found, run)
            for run, found in starts.items()
            if found != Path(run)
        }
    else:
        started_from = checkpoint.load_progress(path).get("started_from", {})
        trained, state = checkpoint.load_resumable(path)
        predictor, averaged = state["predictor"], state.get("averaged")
        changes = list(cfg.resume_changes or [])
        changed = changed_keys(state["fingerprint"], current, changes, path)
        utils.log_rank_zero(log, f"Resuming from {path}.")
    weights = StartWeights(base, trained, predictor, averaged, merged)
    return Start(weights, current, pairs.data, started_from, state, changed, carried)
