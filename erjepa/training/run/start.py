"""What a run starts from: its folder, the base, an earlier run, or its own checkpoint."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchtune import training, utils
from torchtune.modules import TransformerDecoder
from torchtune.modules.peft import get_adapter_params

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.fingerprint import changed_keys, digest_of_weights, fingerprint
from erjepa.checkpoints.lock import FolderLock
from erjepa.checkpoints.model_card import PROMPT
from erjepa.checkpoints.peft_adapter import is_peft_adapter, load_peft_adapter, rescaled
from erjepa.checkpoints.served_chat import Serving, serving_of
from erjepa.configs import Config, merged, resolved
from erjepa.objective import PackedDecoder
from erjepa.training.model.adapters import merge_adapters
from erjepa.training.model.build import StartWeights, require_same_model
from erjepa.training.model.distributed import on_rank_zero, wait_for_all
from erjepa.training.run.prepared import PreparedRun
from erjepa.training.run.steps import TrainingPairs
from erjepa.utils.escape import counted
from erjepa.utils.files import EMA, config_of_run, write_whole

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
    return on_rank_zero(lambda: _config_of(Path(cfg.output_dir)).get("seed"))


class RunFolder:
    """``output_dir``, which rank 0 locks for the run until :meth:`close`.

    Raises:
        BlockingIOError: if another run has locked it.
        FileExistsError, ValueError: as in :func:`require_fresh_output`.
    """

    def __init__(self, cfg: Config, *, resume: bool) -> None:
        self.path = Path(cfg.output_dir)
        self._locks: list[FolderLock] = []

        def claim() -> None:
            self._locks.append(FolderLock(self.path, "run"))
            require_fresh_output(cfg, resume=resume)

        on_rank_zero(claim)

    def require(self) -> None:
        """On rank 0, raise a FileNotFoundError if the folder has been deleted or replaced."""
        for lock in self._locks:
            lock.require_folder()

    def close(self) -> None:
        for lock in self._locks:
            lock.release()


def require_fresh_output(cfg: Config, *, resume: bool) -> None:
    """Fail if the run would overwrite checkpoints of another run or mix FLOPs budgets with it.

    Raises:
        FileExistsError: if there are checkpoints and the run does not resume.
        ValueError: if they have other FLOPs budgets than the resumed run.
    """
    output_dir = Path(cfg.output_dir)
    at_flops = checkpoint.flops_checkpoints(output_dir)
    existing = at_flops + checkpoint.checkpoints(output_dir)
    if existing and not resume:
        raise FileExistsError(
            f"output_dir={output_dir} holds {existing[-1].name} of an earlier run. "
            "Resume it (resume_from_checkpoint=True) or choose another output_dir."
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
        return serving

    return on_rank_zero(find)


class Resumed(NamedTuple):
    path: Path
    state: dict[str, Any]  # the recipe state in it
    changed: Collection[str]  # dotted keys whose values the resumed run has changed


class Start(NamedTuple):
    weights: StartWeights
    fingerprint: dict[str, Any]  # what determines the run, compared when it is resumed
    resumed: Resumed | None = None  # the run's own checkpoint
    carried: Sequence[str] = ()  # descriptions of what comes from earlier runs


def load_start(
    cfg: Config,
    checkpointer: Any,
    model: PackedDecoder,
    pairs: TrainingPairs,
    *,
    resume: bool,
) -> Start:
    """Load what the run starts from or, with ``resume``, the newest checkpoint of ``output_dir``.

    Raises:
        FileNotFoundError: if there is no checkpoint to resume.
        ValueError: naming the damaged file, or what differs from the run to resume.
    """
    current = fingerprint(
        cfg,
        pairs_of_a_step=pairs.sampler.examples_per_step,
        pairs=pairs.train,  # type: ignore[arg-type]
    )
    path = None
    if resume:
        path = on_rank_zero(lambda: checkpoint.latest(Path(cfg.output_dir)))
    trained, predictor, averaged = None, None, None
    carried = [f"{start}, merged" for start in cfg.base_adapters or []]
    source = None if resume else adapter_to_start(cfg)
    if source is not None:
        named = f"{_start_key(cfg)}={cfg.init_from}"
        trained, predictor = _load_adapter(source, named, cfg, model.decoder)
        carried.append(f"weights of {source}")
        if cfg.ema_decay is not None:
            averaged, description = _load_averages(source, cfg)
            carried.append(description)
    base = load_base(cfg, checkpointer, model.decoder)
    current["base model"] = digest_of_weights(base)
    resumed = None
    if path is not None:
        trained, state = checkpoint.load_resumable(path)
        predictor, averaged = state["predictor"], state.get("averaged")
        changes = list(cfg.resume_changes or [])
        changed = changed_keys(state["fingerprint"], current, changes, path)
        resumed = Resumed(path, state, changed)
        utils.log_rank_zero(log, f"Resuming from {path}.")
    weights = StartWeights(base, trained, predictor, averaged)
    return Start(weights, current, resumed, carried)


def load_base(
    cfg: Config, checkpointer: Any, decoder: TransformerDecoder
) -> dict[str, Tensor]:
    """Load the base's weights and merge the adapters of ``base_adapters`` into them.

    Args:
        decoder: model of the run, whose adapters have the same shapes.
    """
    adapters = zip(cfg.base_adapters or [], adapters_to_merge(cfg), strict=True)
    base = checkpointer.load_checkpoint()[training.MODEL_KEY]
    for name, path in adapters:
        adapter, _ = _load_adapter(path, f"base_adapters={name}", cfg, decoder)
        rank, alpha = (cfg.model.get(f"lora_{key}") for key in ("rank", "alpha"))
        weights = {**base, **adapter}
        base = merge_adapters(weights, torch.device("cpu"), rank=rank, alpha=alpha)
    return base


def found_adapters(cfg: Config, run: Path | None) -> list[str] | None:
    """Return ``base_adapters`` as absolute paths of checkpoints or adapters of PEFT.

    Args:
        run: the run or checkpoint that goes on, whose adapters are those that it recorded when it
            started; the runs that they are from may have been trained further.

    Raises:
        FileNotFoundError: if there is no adapter, or a recorded one is gone.
        ValueError: if an adapter was trained over a base with other adapters merged in.
    """
    given = [Path(name).absolute() for name in cfg.base_adapters or []]
    known = _config_of(run).get("base_adapters") if run is not None else None
    if known and len(known) == len(given):
        if all(Path(a).is_relative_to(b) for a, b in zip(known, given, strict=True)):
            for path in known:
                if not Path(path).exists():
                    raise FileNotFoundError(
                        f"{run} was trained over {path}, which is gone: restore it from a copy. "
                        "A run that is trained further keeps its checkpoints with "
                        "keep_last_n=null"
                    )
            return known
    return [str(path.absolute()) for path in adapters_to_merge(cfg)] or None


def adapter_to_start(cfg: Config) -> Path | None:
    """Find the checkpoint or adapter of PEFT that ``init_from`` names, without loading it.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it was trained over a base with other adapters merged in.
    """
    if cfg.init_from is None:
        return None
    key, start = _start_key(cfg), Path(cfg.init_from)
    folder = _newest(start)
    is_ours, has_adapter = (
        (folder / name).is_file() for name in (checkpoint.PROGRESS, checkpoint.ADAPTER)
    )
    if is_ours and not has_adapter:
        raise FileNotFoundError(
            f"{key}={start} loads adapters, and {folder} has whole weights instead; in place of "
            f"{key}, set {_whole_weights(cfg, folder)}"
        )
    path = _find_adapter(cfg.init_from, key)
    require_trained_over(path, cfg.base_adapters or [])
    return path


def _start_key(cfg: Config) -> str:
    """Return the key by which the user named the run whose weights are loaded."""
    return "init_from" if cfg.continue_from is None else "continue_from"


def _whole_weights(cfg: Config, folder: Path) -> str:
    """Return the keys that start from the whole weights, and the memory, of a checkpoint."""
    files = ",".join(sorted(file.name for file in folder.glob("model*.safetensors")))
    keys = (
        f"checkpointer.checkpoint_dir={folder} checkpointer.checkpoint_files=[{files}]"
    )
    if cfg.model.get("path") is not None:
        keys = f"model.path={folder}"
    has_memory = cfg.replay.weight and (folder / checkpoint.MEMORY).is_dir()
    return keys + f" replay.init_from={cfg.init_from}" * bool(has_memory)


def adapters_to_merge(cfg: Config) -> list[Path]:
    """Find the adapters of ``base_adapters``; raises as :func:`adapter_to_start` does."""
    given = cfg.base_adapters or []
    paths = [_find_adapter(name, "base_adapters") for name in given]
    for i, path in enumerate(paths):
        require_trained_over(path, given[:i], given[i])
    return paths


def _newest(start: Path) -> Path:
    """Return the newest checkpoint of a run; any other folder unchanged."""
    return (checkpoint.saved(start) or [start])[-1]


def _find_adapter(name: str, key: str) -> Path:
    """Return the folder of an adapter: of PEFT, or a checkpoint, the newest one of a run."""
    start = Path(name)
    if not start.exists():
        raise FileNotFoundError(f"{key}={start} does not exist")
    if is_peft_adapter(start) and not (start / checkpoint.ADAPTER).is_file():
        return start
    folder = _newest(start)
    if not (folder / checkpoint.ADAPTER).is_file():
        raise FileNotFoundError(
            f"{key}={start} holds no {checkpoint.ADAPTER} and no adapter of PEFT. Give the "
            "output_dir of a run that trained adapters, one of its checkpoints, or the folder "
            "of a PEFT adapter; to start from whole weights, set checkpointer.checkpoint_dir."
        )
    return folder


def require_trained_over(
    adapter: Path, given: Sequence[str], to_merge: str | None = None
) -> None:
    """Raise ValueError if a run trained an adapter over a base with other adapters merged in.

    Recorded adapters that have been moved are compared by their number.

    Args:
        given: adapters that are merged into the base.
        to_merge: path of ``adapter`` if it is merged next; adapters that were trained over the
            same base can then be merged one after the other.
    """
    trained = _trained_with(adapter).get("base_adapters") or []
    n = len(trained)
    is_other = any(
        Path(path).exists() and not Path(path).is_relative_to(Path(name).absolute())
        for path, name in zip(trained, given, strict=False)
    )
    fits = n == len(given) or (to_merge is not None and n < len(given))
    if fits and not is_other:
        return
    names = [*trained, to_merge] if to_merge is not None else trained
    raise ValueError(
        f"{adapter} was trained over the base with {counted(n, 'adapter')} merged in; set "
        f"base_adapters=[{','.join(names)}]"
    )


def _config_of(path: Path) -> Mapping[str, Any]:
    """Return the config of the run that wrote a checkpoint; empty if there is none."""
    file = config_of_run(path)
    return {} if file is None else resolved(merged(str(file)))


def _trained_with(adapter: Path) -> dict[str, Any]:
    """Return ``lora_alpha`` and ``base_adapters`` of the run that wrote an adapter, as far as its
    checkpoint or else the config of the run has them.
    """
    config = _config_of(adapter)
    of_run = {**config.get("model", {}), "base_adapters": config.get("base_adapters")}
    is_ours = (adapter / checkpoint.PROGRESS).is_file()
    return {**of_run, **(checkpoint.load_progress(adapter) if is_ours else {})}


def _load_adapter(
    path: Path, named: str, cfg: Config, decoder: TransformerDecoder
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Load an adapter, with B scaled to the run's ``lora_alpha``, and its predictor tokens.

    Args:
        named: the key and the value that name it, for messages.
    """
    like = get_adapter_params(decoder)
    if not like:
        raise ValueError(
            f"{named} starts from an adapter, and the model has none; to start from "
            "whole weights, set checkpointer.checkpoint_dir"
        )
    predictor = None
    if (path / checkpoint.ADAPTER).is_file():
        weights, predictor = checkpoint.load_trained(path)
        weights = rescaled(weights, _ratio_of_scales(path, cfg))
    else:
        base_dir = Path(cfg.checkpointer.get("checkpoint_dir"))
        alpha = cfg.model.get("lora_alpha")
        weights = load_peft_adapter(
            path, like, base_dir, alpha=alpha, base_model=cfg.base_model
        )
    require_same_model(like, weights, named)
    return weights, predictor


def _ratio_of_scales(path: Path, cfg: Config) -> float:
    """Return the ``lora_alpha`` of the run that wrote a checkpoint over that of this run."""
    alpha = cfg.model.get("lora_alpha")
    return _trained_with(path).get("lora_alpha", alpha) / alpha


def _load_averages(start: Path, cfg: Config) -> tuple[dict[str, Any] | None, str]:
    """Load the averaged weights of ``start``, if any, and describe them."""
    folder = start if start.name == EMA else start / EMA
    if not folder.is_dir():
        return None, "no average of them, so the average of this run starts from them"
    weights, predictor = checkpoint.load_trained(folder)
    weights = rescaled(weights, _ratio_of_scales(folder, cfg))
    progress = checkpoint.load_progress(folder)
    steps = progress.get("averaged_steps", progress["steps"])
    named = {f"decoder.{name}": weight for name, weight in weights.items()}
    if predictor is not None:
        named["predictor"] = predictor
    return {"steps": steps, "weights": named}, f"their average over {steps} steps"
