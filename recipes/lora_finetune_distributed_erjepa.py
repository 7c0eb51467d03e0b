import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torchtune import training, utils
from torchtune.recipe_interfaces import FTRecipeInterface
from tqdm.contrib.logging import logging_redirect_tqdm

import erjepa.configs
from erjepa.checkpoints.prompt_format import write_prompt_format
from erjepa.checkpoints.served_chat import Serving
from erjepa.configs import Config
from erjepa.datasets import require_sources
from erjepa.evaluation.validation import Validation
from erjepa.tasks.score import load_task
from erjepa.training.model.averaged import AveragedWeights
from erjepa.training.model.build import activation_offloading, set_up_model
from erjepa.training.model.device import attention_of, device_of, run_device
from erjepa.training.model.distributed import all_reduce_sum, on_rank_zero, wait_for_all
from erjepa.training.model.sharding import with_resharding
from erjepa.training.run.inherited import InheritedMemories
from erjepa.training.run.memory import RunMemory
from erjepa.training.run.metrics import MetricsLog, step_metrics
from erjepa.training.run.packed_rows import require_packable
from erjepa.training.run.prepared import PreparedRun
from erjepa.training.run.process_group import lose_patience, process_group
from erjepa.training.run.progress import RunProgress
from erjepa.training.run.recipe_state import RecipeState
from erjepa.training.run.saving import RunCheckpoints
from erjepa.training.run.signals import StopSignals, end_with_launcher
from erjepa.training.run.start import (
    RunFolder,
    Start,
    build_checkpointer,
    find_serving,
    find_starts,
    is_to_resume,
    load_start,
    seed_of,
)
from erjepa.training.run.steps import Step, TrainingPairs
from erjepa.training.run.summary import log_summary
from erjepa.training.step.finite import require_finite
from erjepa.training.step.orthogonal import OrthogonalPenalty
from erjepa.training.step.passes import Passes, PassResult, StepTotals
from erjepa.training.step.probe import ReplayProbe


class FinetuneRecipeERJEPA(FTRecipeInterface):
    """
    Fine-tune a model with ER-JEPA on one or more ranks, on CUDA (NCCL) or CPU (Gloo).

    The loss is a next-token loss on the target plus a JEPA loss that aligns the embeddings of
    source and target (LLM-JEPA). A replay path stores past pairs in an episodic memory and trains
    on selected ones again. ``replay.weight=0`` is LLM-JEPA; with ``loss.jepa_weight=0`` as well,
    it is SFT. Except for rounding and dropout, losses, gradients and memory do not depend on how
    a step is split into ranks and micro-batches.

    ``model`` decides which weights are trained: the adapters of a builder with LoRA, DoRA or
    QLoRA, or all weights of a builder without (full fine-tuning). Supported as in torchtune's
    distributed recipes: FSDP2, activation checkpointing and offloading, compile, gradient
    clipping, metric loggers, profiler.

    Checkpoints are complete or absent. They are written at the end of each epoch, every
    ``save_every_n_steps`` steps, and after SIGINT or SIGTERM; ``resume_from_checkpoint=True``
    resumes the newest one as if the run had not stopped. ``checkpoint_at_flops`` keeps the trained
    weights at given amounts of compute. ``validation.size`` holds out pairs, and ``keep_best``
    keeps the weights that do best on them; validation does not affect training, nor the counts of
    FLOPs, tokens and time.

    Raises:
        ValueError: if a key is unknown or a value is invalid.
    """

    def __init__(self, cfg: Config) -> None:
        self._device = device_of(cfg)
        self._resume = is_to_resume(cfg)
        seed = seed_of(cfg, resume=self._resume)
        seed = training.set_seed(seed=seed, debug_mode=cfg.cudnn_deterministic_mode)
        self._cfg = replace(cfg, seed=seed)  # drawn if it is null
        self._stop_signals = StopSignals(lose_patience)

    # ------------------------------------------------------------------ set-up

    def setup(self) -> None:
        """Build everything, and log the main settings of the run.

        Errors in the config are raised before weights are loaded.
        """
        device, resume = self._device, self._resume
        attention = attention_of(self._cfg, device)
        cfg = erjepa.configs.require_files(self._cfg)
        require_sources(cfg.dataset)
        if cfg.eval_dataset is not None:  # before hours of training
            require_sources(cfg.eval_dataset, "eval_dataset")
        if cfg.task is not None:
            load_task(cfg.task)
        cfg, starts = find_starts(cfg, resume=resume)
        prepared = self._prepared = PreparedRun(cfg, device, attention)
        tokenizer = prepared.texts.fingerprint
        earlier = InheritedMemories(cfg, tokenizer, starts)
        self._folder = RunFolder(cfg, resume=resume)
        checkpointer = build_checkpointer(cfg)
        serving = find_serving(prepared)

        # The model without its weights, and the training pairs.
        model, loss_fn = prepared.model, prepared.loss_fn
        cfg = self._cfg = with_resharding(cfg, model, device)
        offloading = activation_offloading(cfg, model, device)
        keeps = not cfg.fsdp_reshard_after_forward
        self._passes = Passes(model, loss_fn, device, offloading, keep_gathered=keeps)
        self._model = model
        self._memory = RunMemory(prepared, earlier, self._folder.resumed)
        self._pairs = TrainingPairs(prepared, self._memory.share)
        held_out = self._pairs.held_out
        self._pairs.require_equal()  # waits: ranks read files at different speeds
        self._validation = (
            Validation(prepared, self._passes, held_out) if held_out else None
        )
        self._progress = RunProgress(cfg.epochs, self._pairs.steps_per_epoch, cfg.stop)
        path = self._folder.resumed
        start = load_start(cfg, checkpointer, model, self._pairs, starts, path)
        self._setup_training(start, checkpointer, serving)
        # Only now: a run that is refused or already over must not replace the config in its folder.
        # It is that without with_resharding, as another machine or number of ranks may resume it.
        self._metrics_log = MetricsLog(prepared.cfg, self._progress, device)
        if not self._progress.is_over():
            out, section = Path(cfg.output_dir), cfg.as_dict()["dataset"]
            on_rank_zero(lambda: write_prompt_format(out, prepared.dataset, section))
        wait_for_all()
        pairs, memory, progress = self._pairs, self._memory, self._progress
        carried = start.carried
        log_summary(cfg, model, pairs, memory, progress, carried=carried, device=device)

    def _setup_training(
        self, start: Start, checkpointer: Any, serving: Serving
    ) -> None:
        """Load the weights, build what trains and saves them, and start or resume the run."""
        cfg, model, device = self._cfg, self._model, self._device
        predictor_ids = self._prepared.collators.new.predictor_ids
        set_up_model(cfg, model, start.weights, predictor_ids, device)
        self._averaged = AveragedWeights(
            cfg.ema_decay, model, device, start.weights.averaged
        )
        self._penalty = OrthogonalPenalty(
            cfg.orthogonal_weight, model.decoder, start.weights.merged
        )
        self._optimizer = cfg.optimizer.build(
            [p for p in model.parameters() if p.requires_grad]
        )
        length = {"expected_steps": self._progress.expected_steps}
        self._lr_scheduler = cfg.lr_scheduler.build(
            self._optimizer,
            num_training_steps=cfg.epochs * self._progress.steps_per_epoch,
            **(length if cfg.lr_scheduler.takes("expected_steps") else {}),
        )
        self._profiler, _ = cfg.profiler.build()
        state = RecipeState(
            model, self._optimizer, self._lr_scheduler, self._progress, device
        )
        if start.state is not None:
            state.load_state_dict(start.state, start.changed)
        self._checkpoints = RunCheckpoints(
            cfg,
            self._folder,
            checkpointer,
            start,
            trainable=self._prepared.trainable,
            averaged=self._averaged,
            memory=self._memory,
            state=state,
            serving=serving,
        )
        self._require_finite = partial(
            require_finite,
            where=self._memory.where,
            how_to_resume=self._checkpoints.how_to_resume,
        )
        if start.state is None:
            pairs = self._prepared.dataset.pairs
            require_packable(model, pairs, device, cfg.base_model)
        offered = partial(self._pairs.offered, self._progress)
        steps = self._progress.steps
        self._memory.load(steps, offered, self._passes, start.changed)

    # --------------------------------------------------------------- the step

    def _train_step(self, step: Step) -> dict[str, Any]:
        """Run one optimizer step: the loss (Eq. 4 of ER-JEPA), then the update of the memory.

        New and replayed pairs run one after the other: their gradients add up to that of the sum,
        and activations peak at the larger of the two passes. With ``replay.share``, replayed pairs
        run in the same pass as the new ones. Counts, selection and memory are those of the whole
        step, the same on every rank.
        """
        memory, passes, number = self._memory, self._passes, self._progress.steps + 1
        # Steps that loss.jepa_every leaves without a JEPA loss do not replay.
        replays = memory.is_on and self._pairs.has_jepa_loss(number - 1)
        has_replay_pass = replays and step.draw is None and memory.can_draw
        every = self._cfg.log_replay_gradients_every_n_steps
        # If a step that does not replay is due, the next one that does takes its place.
        is_due = every is not None and number % every < self._pairs.jepa_every
        is_probed = has_replay_pass and is_due

        # New pairs.
        totals = passes.totals(step.batches, step.checksum, number)
        last = is_probed or not has_replay_pass
        new = passes.forward_backward(step.batches, totals, last=last)
        draw, replayed, probe = step.draw, None, None
        if draw is not None:
            new, replayed = new.split(len(new.example_ids) - len(draw.example_ids))
        if replays:
            self._require_finite([new], step=number)
            entries = memory.entries(new.example_ids, new.source)

        # Replayed pairs, if they have a pass of their own.
        replay_totals = StepTotals()
        if has_replay_pass:
            draw = memory.draw(entries)
            batches = self._pairs.pack_replayed(draw, number - 1)
            replay_totals = passes.totals(batches, draw.checksum, number)
            if is_probed and replay_totals.pairs:
                replay_loss = partial(passes.loss, batches, replay_totals)
                probe = ReplayProbe(self._model, self._device, replay_loss)
            replayed = passes.forward_backward(
                batches, replay_totals, weight=memory.weight, last=True
            )
            if probe is not None:
                probe.after_replay(replayed, self._optimizer.param_groups[0]["lr"])

        # Update of the weights.
        penalty = self._penalty.add_gradient()
        grad_norm = self._clipped_grad_norm(new, replayed)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._averaged.update()
        if probe is not None:
            probe.after_update()

        # Update of the memory: refresh the replayed slots, then store the new pairs.
        if replays:
            memory.update(number, entries, new, draw, replayed)

        tokens = totals.tokens + replay_totals.tokens
        flops = totals.flops + replay_totals.flops
        self._progress.count(tokens=tokens, flops=flops)
        self._lr_scheduler.step()  # may read the counts
        metrics = step_metrics(
            new,
            replayed,
            memory,
            self._progress,
            tokens=tokens,
            flops=flops,
            lr=self._optimizer.param_groups[0]["lr"],
            grad_norm=grad_norm,
            log_collapse=self._cfg.log_collapse,
        )
        probed = {} if probe is None else probe.metrics
        return {**metrics, **penalty, **probed}

    def _clipped_grad_norm(self, *passes: PassResult | None) -> float:
        limit = self._cfg.clip_grad_norm
        total = torch.nn.utils.clip_grad_norm_(
            self._model.parameters(), float("inf") if limit is None else limit
        )
        norm = (total.full_tensor() if isinstance(total, DTensor) else total).item()
        self._require_finite(passes, step=self._progress.steps + 1, grad_norm=norm)
        return norm

    # ------------------------------------------------------------ the training loop

    def train(self) -> None:
        """Train until the last epoch ends or a limit of ``stop`` is reached.

        SIGINT and SIGTERM end training after the current step, with a checkpoint to resume.
        """
        if self._device.type == "cuda":
            training.cleanup_before_training()
        self._model.train()
        self._profiler.start()
        # Log lines appear above the progress bar, an error below it.
        log_lines = logging_redirect_tqdm([utils.get_logger("INFO")])
        with self._stop_signals, log_lines, self._metrics_log.start():
            while not (self._progress.is_over() or self.exit_code):
                self._train_epoch()
            if self.exit_code and not self._checkpoints.is_saved:
                self.save_checkpoint()
        self._profiler.stop()

    def _train_epoch(self) -> None:
        progress = self._progress
        steps = self._pairs.steps(progress, self._memory)
        for _ in range(progress.step_in_epoch, progress.steps_per_epoch):
            start = time.perf_counter()
            votes = all_reduce_sum(torch.tensor(self._stop_signals.vote()))
            self._stop_signals.agree(int(votes))
            if self.exit_code:
                break
            metrics = self._train_step(next(steps))
            seconds = time.perf_counter() - start
            progress.advance(seconds)
            validation = self._validate()
            self._metrics_log.step({**metrics, **validation}, seconds)
            self._profiler.step()
            # Before the resumable checkpoint: a run killed in between repeats this step
            # when it is resumed, and so does not miss a budget.
            self._checkpoints.save_at_flops(metrics["step_flops"])
            if validation and progress.judge(validation) and self._cfg.keep_best:
                self._checkpoints.save_best(validation)
            if progress.is_time(self._cfg.save_every_n_steps):
                self.save_checkpoint()
            if progress.has_reached_stop():
                break

    @property
    def exit_code(self) -> int:
        """Exit code of the process: 0, 130 after SIGINT, 143 after SIGTERM."""
        return self._stop_signals.exit_code

    def _validate(self) -> dict[str, float]:
        """Return the metrics of the held-out pairs if a validation is due, else none."""
        every = self._cfg.eval_every_n_steps
        if self._validation is None or not self._progress.is_time(every):
            return {}
        return self._validation(self._model)

    # ------------------------------------------------------------- checkpoints

    def save_checkpoint(self) -> None:
        """Write a checkpoint that can be resumed."""
        self._checkpoints.save()

    def cleanup(self) -> None:
        """Close the log, print how to resume after a signal, and release ``output_dir``."""
        self._metrics_log.close()
        if self.exit_code:
            self._checkpoints.print_resume_command()
        self._folder.close()


@erjepa.configs.parse
def recipe_main(cfg: Config) -> int:
    """
    Entry point for the recipe.

    Configurable parameters are read in the following order:
        - Parameters specified in config (a path, or a name such as ``llama3_2_1b_synth``)
        - Overwritten by arguments from the command-line
    """
    end_with_launcher()
    with process_group(run_device(cfg), cfg.step_timeout):
        if cfg.fsdp_cpu_offload:
            training.set_torch_num_threads()
        recipe = FinetuneRecipeERJEPA(cfg=cfg)
        recipe.setup()
        recipe.train()
        recipe.cleanup()
    return recipe.exit_code


if __name__ == "__main__":
    sys.exit(recipe_main())
