"""The checkpoints of a run: when they are written, from which weights, with what beside them."""

import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torchtune import training, utils

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.fingerprint import changed_keys, digest_of_weights
from erjepa.checkpoints.lock import FolderLock
from erjepa.checkpoints.model_card import PROMPT, base_of, write_model_card
from erjepa.checkpoints.peft_adapter import is_peft_adapter, load_peft_adapter
from erjepa.checkpoints.served_chat import Serving, serving_of, write_chat_template
from erjepa.checkpoints.space import (
    checkpoint_sizes,
    free_bytes,
    is_full_disk,
    readable,
    require_space,
)
from erjepa.configs import Config
from erjepa.datasets import Pairs
from erjepa.objective import PackedDecoder
from erjepa.training.model.averaged import AveragedWeights
from erjepa.training.model.distributed import on_rank_zero, wait_for_all
from erjepa.training.model.sharding import free_gathered
from erjepa.training.model.trainable import Trained
from erjepa.training.model.weights import require_same_model
from erjepa.training.run.progress import RunProgress
from erjepa.training.run.signals import resuming_command
from erjepa.training.step.finite import require_finite_weights
from erjepa.utils.files import EMA, write_whole

log = utils.get_logger("INFO")


class Loaded(NamedTuple):
    """What a run starts from.

    Args:
        base (dict[str, Tensor]): weights of the base model, by name.
        trained (dict[str, Tensor] | None): trained weights, of a run that is gone on with or
            of ``init_from``.
        predictor (Tensor | None): embeddings of the predictor tokens, of the same, [k, H].
        averaged (dict[str, Any] | None): averages to go on with, of the same.
        state (dict[str, Any] | None): the recipe state of a run that is gone on with; ``checkpoint``, where it was read; and
            ``changed``: the keys that differ from the run which saved it.
    """

    base: dict[str, Tensor]
    trained: dict[str, Tensor] | None
    predictor: Tensor | None
    averaged: dict[str, Any] | None
    state: dict[str, Any] | None


def is_to_resume(cfg: Config) -> bool:
    """Whether the run goes on from a checkpoint, the same on every rank.

    With ``resume_from_checkpoint=auto`` it does if there is one: a group of ranks that is
    started again, by torchrun or by Slurm, then needs no other command.

    Args:
        cfg: config of the run.

    Returns:
        bool: value of the key, ``auto`` decided.
    """
    if cfg.resume_from_checkpoint != "auto":
        return cfg.resume_from_checkpoint
    folder = Path(cfg.output_dir)
    return on_rank_zero(lambda: bool(checkpoint.resumable_checkpoints(folder)))


class _Gathered(NamedTuple):
    """Whole weights on rank 0, on the CPU.

    Args:
        decoder (dict[str, Tensor]): the decoder's, by name.
        predictor (Tensor | None): trained embeddings of the predictor tokens, [k, H].
        averaged (dict[str, Tensor]): averages of what is trained, by its name in the whole
            model; empty where none are kept.
    """

    decoder: dict[str, Tensor]
    predictor: Tensor | None
    averaged: dict[str, Tensor]


class RunCheckpoints:
    """Writes the checkpoints of a run, and finds the one to go on from.

    Holds ``output_dir`` for the run, until :meth:`close`. Each call is made by all ranks; rank
    0 writes, and what goes wrong there is raised on all.

    Args:
        cfg: config of the run.
        device (torch.device): device of the run.
        write_memory (Callable[[Path], None]): puts the memory into a checkpoint.
        averaged (AveragedWeights): which each checkpoint holds as well.
        resume: whether the run goes on from a checkpoint.

    Attributes:
        start: the checkpoint of ``init_from``, once its weights are loaded.
        carried: what is carried on from there, in words.

    Raises:
        BlockingIOError: if another run holds the folder.
        FileExistsError: if it has checkpoints of a run that is not to be gone on with.
        ValueError: if that kept other budgets.
    """

    def __init__(
        self,
        cfg: Config,
        device: torch.device,
        write_memory: Callable[[Path], None],
        averaged: AveragedWeights,
        *,
        resume: bool,
    ) -> None:
        self._write_memory = write_memory
        self._averaged = averaged
        self._output_dir = Path(cfg.output_dir)
        self._resume = resume
        self._cfg = cfg
        self.start: Path | None = None
        self.carried: list[str] = []
        self._flops_budgets = list(cfg.checkpoint_at_flops or [])
        self._lock: FolderLock | None = None
        on_rank_zero(self._claim)
        scratch = self._output_dir / checkpoint.SCRATCH
        self._checkpointer = cfg.checkpointer.build(output_dir=str(scratch))
        # The checkpointer makes it; a rank may fail if another removes it just then.
        wait_for_all()
        with contextlib.suppress(OSError):
            scratch.rmdir()
        self._adapter_only = cfg.save_adapter_weights_only
        self._keep_best = cfg.keep_best
        self._serving = Serving()
        # The newest is not known to be good: no step has followed it yet.
        self._keep_last_n = cfg.keep_last_n and max(cfg.keep_last_n, 2)
        self._resume_changes = list(cfg.resume_changes or [])
        self._epochs = cfg.epochs
        self._device = device
        self._is_rank_zero = dist.get_rank() == 0
        self._saved_at = 0

    def _claim(self) -> None:
        self._lock = FolderLock(self._output_dir, "run")
        require_fresh_output(
            self._output_dir, resume=self._resume, flops_budgets=self._flops_budgets
        )

    def load(
        self, model: PackedDecoder, trained: Trained, fingerprint: Mapping[str, Any]
    ) -> Loaded:
        """What the run starts from, or goes on from.

        Args:
            model (PackedDecoder): the model, which may be on the meta device.
            trained (Trained): what of it is trained.
            fingerprint (Mapping[str, Any]): what decides the run.

        Returns:
            Loaded: base weights; trained weights and recipe state as well when resuming.

        Raises:
            FileNotFoundError: if there is nothing to go on from.
            ValueError: naming the file that is damaged, or what differs in this run; if
                adapters alone are to be saved, and there are none.
            OSError: if there is no room for a checkpoint.
        """
        if self._adapter_only and not trained.has_adapters:
            raise ValueError(
                "save_adapter_weights_only=True, but the model has no adapters; set it to "
                "False"
            )
        path = None
        if self._resume:
            path = on_rank_zero(lambda: checkpoint.latest(self._output_dir))
        start = None if self._resume else self._cfg.init_from
        resumed, predictor, averaged = None, None, None
        if start is not None:
            resumed, predictor = self._load_start(Path(start), model, trained)
            averaged = self._load_averages()
        base = self._checkpointer.load_checkpoint()[training.MODEL_KEY]
        self._trained = trained
        self._fingerprint = {**fingerprint, "base model": digest_of_weights(base)}
        self._sizes = checkpoint_sizes(
            base.values(),
            [p for p in model.parameters() if p.requires_grad],
            has_adapters=trained.has_adapters,
            adapter_only=self._adapter_only,
            averaged=self._averaged.is_on,
        )
        state, epochs = None, self._epochs
        if path is not None:
            resumed, state = checkpoint.load_resumable(path)
            predictor, averaged = state["predictor"], state.get("averaged")
            state["changed"] = changed_keys(
                state["fingerprint"], self._fingerprint, self._resume_changes, path
            )
            state["checkpoint"] = path
            self._saved_at = state["totals"]["steps"]
            epochs -= state["epoch"]
            utils.log_rank_zero(log, f"Resuming from {path}.")
        on_rank_zero(lambda: self._require_space(epochs))
        return Loaded(base, resumed, predictor, averaged, state)

    def serve(self, pairs: Pairs, tokenizer: Any) -> None:
        """Find out how a server will ask what these pairs ask, and warn where it will not."""
        on_rank_zero(lambda: self._serve(pairs, tokenizer))

    def _serve(self, pairs: Pairs, tokenizer: Any) -> None:
        folder = Path(self._cfg.checkpointer.get("checkpoint_dir"))
        self._serving = serving_of(folder, pairs, tokenizer)
        if self._serving.warning is not None:
            log.warning(self._serving.warning)
        if self._serving.template is not None:
            log.info(
                f"The chat template of {folder} asks otherwise than training does; "
                "checkpoints get one that asks the same."
            )
        if self._serving.prompt is not None:
            write_whole(self._output_dir / PROMPT, self._serving.prompt)

    def _load_start(
        self, start: Path, model: PackedDecoder, trained: Trained
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Trained weights of ``init_from``, and embeddings of its predictor tokens."""
        if not trained.has_adapters:
            raise ValueError(
                f"init_from={start} starts from an adapter, and the model has none; to start "
                "from whole weights, set checkpointer.checkpoint_dir"
            )
        like = {n: p for n, p in model.decoder.named_parameters() if n in trained.names}
        self.start, predictor = start, None
        if is_peft_adapter(start) and not (start / checkpoint.ADAPTER).is_file():
            weights = load_peft_adapter(
                start,
                like,
                Path(self._cfg.checkpointer.get("checkpoint_dir")),
                alpha=self._cfg.model.get("lora_alpha"),
            )
        else:
            self.start, weights, predictor = checkpoint.load_trained(start, "init_from")
        require_same_model(like, weights, f"init_from={start}")
        return weights, predictor

    def _load_averages(self) -> dict[str, Any] | None:
        """The averages of the run that ``init_from`` names, as one that is resumed has them."""
        assert self.start is not None
        self.carried.append(f"weights of {self.start}")
        if not self._averaged.is_on:
            return None
        folder = self.start if self.start.name == EMA else self.start / EMA
        if not folder.is_dir():
            self.carried.append(
                "no average there, so that of this run starts from them"
            )
            return None
        _, weights, predictor = checkpoint.load_trained(folder, "init_from")
        progress = checkpoint.load_progress(folder)
        steps = progress.get("averaged_steps", progress["steps"])
        self.carried.append(f"their average over {steps} steps")
        named = {f"decoder.{name}": weight for name, weight in weights.items()}
        if predictor is not None:
            named["predictor"] = predictor
        return {"steps": steps, "weights": named}

    def _require_space(self, epochs: int) -> None:
        run = self._sizes.run(
            epochs=epochs,
            keep_last_n=self._keep_last_n,
            keep_best=self._keep_best,
            num_budgets=len(self._flops_budgets),
        )
        if warning := require_space(self._output_dir, self._sizes, run):
            log.warning(warning)

    def is_saved(self, run: RunProgress) -> bool:
        """Whether there is nothing new to go on from; nor is there before the first step."""
        return self._saved_at == run.steps

    def say_way_on(self, run: RunProgress) -> None:
        """Tell the user of a run that was told to stop how to go on with it."""
        said = "Stopped before the first step: there is nothing to go on from."
        if run.steps:
            said = f"Stopped after step {run.steps}. To go on:\n  {resuming_command()}"
        if self._is_rank_zero:
            print(said, flush=True)

    def how_to_resume(self, run: RunProgress) -> str:
        """Name the newest good checkpoint, and the commands that resume from it.

        For a run that ends because losses, gradients or weights are not finite. A checkpoint
        is good if they were finite in a step after it.

        Args:
            run (RunProgress): where the run is.

        Returns:
            str: for a message, the same on every rank.
        """
        return on_rank_zero(lambda: self._how_to_resume(self.is_saved(run)))

    def _how_to_resume(self, is_newest_bad: bool) -> str:
        resumable = checkpoint.resumable_checkpoints(self._output_dir)
        if not resumable:
            return "There is no checkpoint to resume from."
        newest, command = resumable[-1], f"\n  {resuming_command()}"
        said = f"{newest.name} is good; to resume from it{command}"
        if is_newest_bad:
            before = checkpoint.how_to_resume_before(newest, f"\nthen{command}")
            said = f"{newest.name} leads to this. {before}"
        return (
            "With the same settings a resumed run fails again; resume_changes=[optimizer.lr] "
            f"allows a lower optimizer.lr. {said}"
        )

    def close(self) -> None:
        """Let other runs have ``output_dir``."""
        if self._lock is not None:
            self._lock.release()

    def save(
        self, model: PackedDecoder, run: RunProgress, state: dict[str, Any]
    ) -> None:
        """Write a checkpoint that a run can go on from.

        Args:
            model (PackedDecoder): the model.
            run (RunProgress): where the run is.
            state (dict[str, Any]): all that a resumed run needs besides the weights.
        """
        weights = self._gather(model, run)

        def write() -> None:
            own = {**state, "fingerprint": self._fingerprint}
            if (kept := self._trained.resumable(weights.decoder)) is not None:
                own["weights"] = kept
            if self._averaged.is_on:
                own["averaged"] = self._averaged.state_dict(weights.averaged)
            path = self._publish(
                run.checkpoint_name(),
                weights,
                self._adapter_only,
                needed=self._sizes.whole,
                progress=run.summary(),
                state=own,
                keep_last_n=self._keep_last_n,
            )
            log.info(f"Saved {path}.")

        on_rank_zero(write)
        self._saved_at = run.steps

    def save_at_flops(
        self, model: PackedDecoder, run: RunProgress, step_flops: float
    ) -> None:
        """Keep the adapter, or the model without any, at each budget the last step reached.

        Args:
            model (PackedDecoder): the model.
            run (RunProgress): where the run is.
            step_flops (float): operations of the last step.
        """
        total = run.totals["flops"]
        reached = [
            (checkpoint.flops_name(i), budget)
            for i, budget in enumerate(self._flops_budgets)
            if total - step_flops < budget <= total
        ]
        if not reached:
            return
        weights = self._gather(model, run)

        def write() -> None:
            for name, budget in reached:
                path = self._publish(
                    name,
                    weights,
                    self._trained.has_adapters,
                    needed=self._sizes.whole - self._sizes.state,
                    progress={"budget": budget, **run.summary()},
                )
                log.info(f"Saved {path}.")

        on_rank_zero(write)

    def save_if_best(
        self, model: PackedDecoder, run: RunProgress, validation: dict[str, float]
    ) -> None:
        """Keep the weights that are the best so far, see :meth:`RunProgress.judge`.

        Args:
            model (PackedDecoder): the model.
            run (RunProgress): where the run is; its best score is brought up to date.
            validation (dict[str, float]): what was measured after the last step, if anything.
        """
        if not (validation and run.judge(validation) and self._keep_best):
            return
        measured = next(iter(run.best))
        weights = self._gather(model, run)

        def write() -> None:
            path = self._publish(
                checkpoint.best_name(run.steps),
                weights,
                self._adapter_only,
                needed=self._sizes.whole - self._sizes.state,
                progress={**validation, **run.summary()},
            )
            checkpoint.set_best(path)
            log.info(f"Saved {path}: {measured} {validation[measured]:.4f}.")

        on_rank_zero(write)

    def _gather(self, model: PackedDecoder, run: RunProgress) -> _Gathered:
        how_to_resume = partial(self.how_to_resume, run)
        free_gathered(model)
        require_finite_weights(model, step=run.steps, how_to_resume=how_to_resume)
        weights = training.gather_cpu_state_dict(
            model, self._is_rank_zero, device=self._device
        )
        if self._device.type == "cpu":
            # On one rank they are the live weights, and merging works in place.
            weights = {name: weight.clone() for name, weight in weights.items()}
        return _Gathered(*_parts(weights), self._averaged.gather())

    def _publish(
        self,
        name: str,
        weights: _Gathered,
        adapter_only: bool,
        *,
        needed: int,
        progress: dict[str, Any],
        **beside: Any,
    ) -> Path:
        lock = self._lock
        assert lock is not None  # rank 0 has it, and writes
        lock.require_folder()

        def exported(
            decoder: dict[str, Tensor], predictor: Tensor | None
        ) -> checkpoint.Exported:
            return checkpoint.Exported(
                lambda epoch: self._write_weights(decoder, epoch, adapter_only),
                predictor,
            )

        averaged = None
        if weights.averaged:
            decoder, predictor = _parts(weights.averaged)
            if not adapter_only:
                # Of the base a copy: adapters are merged into it in place.
                base = {k: v for k, v in weights.decoder.items() if k not in decoder}
                decoder |= {name: weight.clone() for name, weight in base.items()}
            averaged = exported(decoder, predictor)
        try:
            path = checkpoint.publish(
                self._output_dir,
                name,
                exported(weights.decoder, weights.predictor),
                progress={**progress, **self._averaged.progress()},
                averaged=averaged,
                write_memory=self._write_memory,
                **beside,
            )
            write_model_card(self._output_dir)
        except Exception as error:
            lock.require_folder()
            scratch = self._output_dir / checkpoint.SCRATCH
            is_full = is_full_disk(error, scratch, needed)
            shutil.rmtree(scratch, ignore_errors=True)
            if is_full:
                raise OSError(self._no_room(name, needed)) from error
            raise
        return path

    def _no_room(self, name: str, needed: int) -> str:
        resumable = checkpoint.resumable_checkpoints(self._output_dir)
        way_on = "There is no checkpoint to go on from"
        if resumable:
            way_on = (
                f"{resumable[-1].name} is whole: make room, and go on from it with\n"
                f"  {resuming_command()}"
            )
        return (
            f"output_dir={self._output_dir}: no room for {name}, which takes about "
            f"{readable(needed)}; {readable(free_bytes(self._output_dir))} are free. {way_on}"
        )

    def _write_weights(
        self, weights: dict[str, Tensor], epoch: str, adapter_only: bool
    ) -> None:
        self._checkpointer.repo_id = base_of(self._cfg.as_dict())  # for PEFT's config
        logging.disable(logging.INFO)  # it names files that are about to be moved
        try:
            self._checkpointer.save_checkpoint(
                self._trained.export(weights, self._device, adapter_only=adapter_only),
                epoch=epoch,
                adapter_only=adapter_only,
            )
        finally:
            logging.disable(logging.NOTSET)
        if self._serving.template is not None:
            folder = self._output_dir / checkpoint.SCRATCH / f"epoch_{epoch}"
            write_chat_template(folder, self._serving.template)


def _parts(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
    """The decoder's weights by their names in it, and the predictor tokens' embeddings."""
    decoder = {
        name.removeprefix("decoder."): weight
        for name, weight in weights.items()
        if name != "predictor"
    }
    return decoder, weights.get("predictor")


def require_fresh_output(
    output_dir: Path, *, resume: bool, flops_budgets: Sequence[float]
) -> None:
    """Never write over the checkpoints of another run, nor mix budgets with its.

    Args:
        output_dir (Path): folder of the run.
        resume (bool): whether to go on with the run that is there.
        flops_budgets (Sequence[float]): ``checkpoint_at_flops``.

    Raises:
        FileExistsError: if there is one that is not to be gone on with.
        ValueError: if it kept other budgets.
    """
    existing = checkpoint.all_checkpoints(output_dir)
    if existing and not resume:
        raise FileExistsError(
            f"output_dir={output_dir} holds {existing[-1].name} of an earlier run. Go on "
            "with it (resume_from_checkpoint=True) or choose another output_dir."
        )
    for i, budget in enumerate(flops_budgets):
        path = output_dir / f"flops_{i}"
        if path in existing and checkpoint.load_progress(path)["budget"] != budget:
            raise ValueError(
                f"{path} was not written at {budget:g} FLOPs; a resumed run keeps its "
                "checkpoint_at_flops and may add larger ones."
            )
