"""The weights that a run starts from: those of its base with earlier runs' adapters merged in, and
those that an earlier run or PEFT trained.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torchtune import training, utils
from torchtune.modules import TransformerDecoder
from torchtune.modules.peft import get_adapter_params

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.peft_adapter import is_peft_adapter, load_peft_adapter, rescaled
from erjepa.configs import Config, merged, resolved
from erjepa.training.model.adapters import merge_adapters
from erjepa.training.model.build import require_same_model
from erjepa.utils.escape import counted
from erjepa.utils.files import EMA, config_of_run, moved_along

log = utils.get_logger("INFO")


def load_base(
    cfg: Config, checkpointer: Any, decoder: TransformerDecoder
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """Load the base's weights, merge the adapters of ``base_adapters`` into them, and return both.

    Args:
        cfg: config with :func:`found_adapters`.
        decoder: model of the run, whose adapters have the same shapes.
    """
    base = checkpointer.load_checkpoint()[training.MODEL_KEY]
    rank, alpha = cfg.model.get("lora_rank"), cfg.model.get("lora_alpha")
    adapters = []
    for path in cfg.base_adapters or []:
        adapter, _ = load_adapter(Path(path), f"base_adapters={path}", cfg, decoder)
        adapters.append(adapter)
        weights = {**base, **adapter}
        base = merge_adapters(weights, torch.device("cpu"), rank=rank, alpha=alpha)
    return base, adapters


def found_adapters(cfg: Config, run: Path | None) -> list[str] | None:
    """Return ``base_adapters`` as absolute paths of checkpoints or adapters of PEFT.

    A run stands for the checkpoint that ``run`` or a later one of them was trained over, otherwise
    for its newest.

    Args:
        run: the run or checkpoint that goes on, whose adapters are those that it recorded; the runs
            that they are from may have been trained further.

    Raises:
        FileNotFoundError: if there is no adapter, or a recorded one is gone.
        ValueError: if an adapter was trained over a base with other adapters merged in, or two
            contain what one run has trained.
    """
    given = cfg.base_adapters or []
    names = given if run is None else _as_recorded(given, run)
    found: list[str] = []
    for i in reversed(range(len(given))):
        path = _find_adapter(names[i], "base_adapters")
        require_trained_over(path, given[:i], to_merge=given[i])
        names = _as_recorded(names, path)
        found.insert(0, str(path.absolute()))
    if run is None:
        _require_apart(given, found)
    return found or None


def _require_apart(given: Sequence[str], found: Sequence[str]) -> None:
    """Raise ValueError if two of the adapters contain what one run has trained.

    Args:
        given: their names in the config.
        found: their paths.
    """
    names = dict[Path, str]()  # of the adapter that contains a run's
    for name, path in zip(given, found, strict=True):
        for run in (runs := _trained_by(Path(path))):
            if run in names:
                raise ValueError(
                    f"base_adapters: {names[run]} and {name} both contain the adapter of {run}, "
                    "which would be merged twice; leave one of them out"
                )
        names |= dict.fromkeys(runs, name)


def _trained_by(adapter: Path) -> list[Path]:
    """Return the folders of the runs that trained an adapter one after the other, the last first;
    an adapter without a run counts as one.
    """
    start, runs = adapter, list[Path]()
    while (file := config_of_run(start)) and (run := file.parent.resolve()) not in runs:
        runs.append(run)
        config = config_of(start)
        if not (source := config.get("continue_from") or config.get("init_from")):
            return runs
        start = moved_along(source, config.get("output_dir", ""), file.parent)
    return runs if file else [*runs, start.resolve()]


def _as_recorded(given: Sequence[str], adapter: Path) -> list[str]:
    """Return the paths of merged adapters, each replaced by the one below it, if any, that the run
    of ``adapter`` recorded in the same place.
    """
    recorded = _trained_with(adapter).get("base_adapters") or []
    paths = list(given)
    for i, (name, before) in enumerate(zip(given, recorded, strict=False)):
        path = _found(before, name)
        if not _is_of(path, name):
            continue
        if not path.exists():
            raise FileNotFoundError(
                f"{adapter} was trained over {path}, which is gone: restore it from a copy. A "
                "run that is trained further keeps its checkpoints with keep_last_n=null"
            )
        paths[i] = str(path)
    return paths


def _found(recorded: str, name: str) -> Path:
    """Return the path of a recorded adapter: if it is gone, its run may have been moved to where
    ``name`` is.
    """
    path = Path(recorded)
    if path.exists():
        return path
    return checkpoint.current(Path(name).absolute()).with_name(path.name)


def _is_of(recorded: Path, name: str) -> bool:
    """Whether an absolute path may be what ``name`` stood for: a run, a checkpoint, ``best``."""
    # Without "..", since the runs may have been started in different folders.
    path, named = os.path.abspath(recorded), os.path.abspath(name)
    paths = (Path(path), checkpoint.with_link(Path(path)))
    return any(path.is_relative_to(named) for path in paths)


def require_start(cfg: Config, folder: Path, decoder: TransformerDecoder) -> None:
    """Check that a run can start from the weights in ``folder``, without loading them.

    Args:
        folder: what ``init_from`` stands for, a checkpoint or an adapter of PEFT.
        decoder: model of the run, which starts from an adapter if it has adapters.

    Raises:
        FileNotFoundError: if there is no adapter, or without adapters no whole model.
        ValueError: if the adapter was trained over a base with other adapters merged in, or the
            run of the checkpoint trained all weights and this one trains adapters.
    """
    named = named_start(cfg)
    if not folder.exists():
        raise FileNotFoundError(f"{start_key(cfg)}={folder} does not exist")
    if not get_adapter_params(decoder):
        whole_weights_in(folder, f"{named}: ")
        return
    is_ours = (folder / checkpoint.PROGRESS).is_file()
    if is_ours and not (folder / checkpoint.ADAPTER).is_file():
        raise ValueError(
            f"{named}: the run trained all weights, and this one trains adapters. Set the model "
            f"of that run, or make {folder} the base model, without {start_key(cfg)} and with "
            f"replay.init_from={cfg.init_from}"
        )
    path = _find_adapter(str(folder), start_key(cfg))
    require_trained_over(path, cfg.base_adapters or [])


def start_key(cfg: Config) -> str:
    """Return the key by which the user named the run whose weights are loaded."""
    return "init_from" if cfg.continue_from is None else "continue_from"


def named_start(cfg: Config) -> str:
    """Return the key and the path by which the user named the run whose weights are loaded."""
    return f"{start_key(cfg)}={cfg.init_from}"


def _find_adapter(name: str, key: str) -> Path:
    """Return the folder of an adapter: of PEFT, or of a checkpoint, of a run the newest."""
    start = Path(name)
    if not start.exists():
        raise FileNotFoundError(f"{key}={start} does not exist")
    if is_peft_adapter(start) and not (start / checkpoint.ADAPTER).is_file():
        return start
    folder = checkpoint.current(start)
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

    Recorded adapters that are not found are compared by their number.

    Args:
        given: adapters that are merged into the base.
        to_merge: path of ``adapter`` if it is merged next; adapters that were trained over the
            same base can then be merged one after the other.
    """
    trained = _trained_with(adapter).get("base_adapters") or []
    n = len(trained)
    is_other = any(
        (path := _found(before, name)).exists() and not _is_of(path, name)
        for before, name in zip(trained, given, strict=False)
    )
    fits = n == len(given) or (to_merge is not None and n < len(given))
    if fits and not is_other:
        return
    names = [*trained, to_merge] if to_merge is not None else trained
    raise ValueError(
        f"{adapter} was trained over the base with {counted(n, 'adapter')} merged in; set "
        f"base_adapters=[{','.join(names)}]"
    )


def config_of(path: Path) -> Mapping[str, Any]:
    """Return the config of the run that wrote a checkpoint; empty if there is none."""
    file = config_of_run(path)
    return {} if file is None else resolved(merged(str(file)))


def warn_of_other_base(adapter: Path, named: str, digest: str) -> None:
    """Warn if a run trained an adapter over other base weights than those of ``digest``.

    Args:
        named: what the user calls the adapter.
    """
    if checkpoint.progress_of(adapter).get("base_weights", digest) != digest:
        utils.log_rank_zero(
            log,
            f"{named} was trained over other base weights than those of this config, over which "
            "its adapter computes something else; set the base model of its run",
            level=logging.WARNING,
        )


def _trained_with(adapter: Path) -> dict[str, Any]:
    """Return ``lora_alpha`` and ``base_adapters`` of the run that wrote an adapter, as far as its
    checkpoint or else the config of the run has them; those that were moved along with the run
    where they are now.
    """
    file, config = config_of_run(adapter), config_of(adapter)
    of_run = {**config.get("model", {}), "base_adapters": config.get("base_adapters")}
    found = {**of_run, **checkpoint.progress_of(adapter)}
    if file is not None and (paths := found["base_adapters"]):
        before = config.get("output_dir", "")
        moved = [str(moved_along(path, before, file.parent)) for path in paths]
        found["base_adapters"] = moved
    return found


def load_trained(
    path: Path, named: str, cfg: Config, decoder: TransformerDecoder
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Load the weights of ``path`` that ``decoder`` trains, its adapter or all, and the embeddings
    of predictor tokens, [k, H], if there are any. Arguments are those of :func:`load_adapter`.
    """
    if get_adapter_params(decoder):
        return load_adapter(path, named, cfg, decoder)
    weights = load_whole_weights(path, cfg)
    require_same_model(dict(decoder.named_parameters()), weights, named)
    return weights, checkpoint.load_predictor(path)


def load_whole_weights(path: Path, cfg: Config) -> dict[str, Tensor]:
    """Load the whole model of a checkpoint, by names in the decoder.

    Raises:
        FileNotFoundError: if the checkpoint has only an adapter.
        ValueError: if a file is damaged.
    """
    files = whole_weights_in(path)
    checkpoint.require_intact(path, [*files, f"{checkpoint.PREDICTOR}*"])
    reader = checkpoint_reader(cfg, checkpoint_dir=str(path), checkpoint_files=files)
    return reader.load_checkpoint()[training.MODEL_KEY]


def checkpoint_reader(cfg: Config, **arguments: Any) -> Any:
    """Build the config's checkpointer to load weights only."""
    with TemporaryDirectory() as unused:  # it creates its output_dir
        return cfg.checkpointer.build(output_dir=unused, **arguments)


def whole_weights_in(path: Path, said: str = "") -> list[str]:
    """Return the names of the files of the whole model in a checkpoint.

    Args:
        said: start of the error's message.

    Raises:
        FileNotFoundError: if there are none.
    """
    if files := sorted(file.name for file in path.glob("model*.safetensors")):
        return files
    raise FileNotFoundError(
        f"{said}{path} holds no merged weights, model*.safetensors. Use its adapter, with the "
        "model of its run and merged=False, or train with save_adapter_weights_only=False."
    )


def load_adapter(
    path: Path, named: str, cfg: Config, decoder: TransformerDecoder
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Load an adapter, with B scaled to the run's ``lora_alpha``, and its predictor tokens.

    Args:
        named: the key and the value that name it, for messages.
    """
    like = get_adapter_params(decoder)
    if not like:
        raise ValueError(f"{named} is an adapter, and the model has none")
    predictor, alpha = None, cfg.model.get("lora_alpha")
    if (path / checkpoint.ADAPTER).is_file():
        weights, predictor = checkpoint.load_torchtune_adapter(path)
        before = _trained_with(path).get("lora_alpha", alpha)
        weights = rescaled(weights, before / alpha)
    else:
        base_dir = Path(cfg.checkpointer.get("checkpoint_dir"))
        weights = load_peft_adapter(
            path, like, base_dir, alpha=alpha, base_model=cfg.base_model
        )
    require_same_model(like, weights, named)
    return weights, predictor


def load_averages(
    start: Path, cfg: Config, decoder: TransformerDecoder
) -> tuple[dict[str, Any] | None, str]:
    """Load the averaged weights of ``start``, if any, and describe them."""
    folder = start if start.name == EMA else start / EMA
    if not folder.is_dir():
        return None, "no average of them, so the average of this run starts from them"
    weights, predictor = load_trained(folder, str(folder), cfg, decoder)
    progress = checkpoint.load_progress(folder)
    steps = progress.get("averaged_steps", progress["steps"])
    named = {f"decoder.{name}": weight for name, weight in weights.items()}
    if predictor is not None:
        named["predictor"] = predictor
    return {"steps": steps, "weights": named}, f"their average over {steps} steps"
