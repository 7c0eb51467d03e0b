import sys
import time
from dataclasses import replace
from functools import partial

import torch
from torch.distributed.tensor import DTensor
from torchtune import training, utils
from torchtune.recipe_interfaces import FTRecipeInterface

import erjepa.configs
from erjepa.checkpoints.fingerprint import fingerprint
from erjepa.configs import Config
from erjepa.datasets import build_dataset
from erjepa.evaluation.validation import Validation
from erjepa.training.model.averaged import AveragedWeights
from erjepa.training.model.build import activation_offloading, build_model, set_up_model
from erjepa.training.model.device import attention_of, memory_of, run_device
from erjepa.training.model.distributed import (
    all_reduce_sum,
    on_rank_zero,
    wait_for_all,
)
from erjepa.training.model.sharding import reshards_after_forward
from erjepa.training.run.data import (
    pair_collators,
    run_views,
    training_pairs,
)
from erjepa.training.run.memory import RunMemory
from erjepa.training.run.metrics import MetricsLog, StepMetrics
from erjepa.training.run.process_group import lose_patience, process_group
from erjepa.training.run.progress import RunProgress
from erjepa.training.run.recipe_state import RecipeState
from erjepa.training.run.saving import Loaded, RunCheckpoints, is_to_resume
from erjepa.training.run.signals import StopSignals, end_with_launcher
from erjepa.training.run.steps import Step, share_of_replay, steps_of
from erjepa.training.run.summary import log_summary
from erjepa.training.step.finite import require_finite
from erjepa.training.step.passes import Passes, PassResult, StepTotals
from erjepa.training.step.probe import ReplayProbe


class FinetuneRecipeERJEPA(FTRecipeInterface):
    """
    Finetuning with ER-JEPA on one or more ranks, on CUDA (NCCL) or CPU (Gloo).

    Next-token loss on the target, a JEPA loss that aligns the embeddings of source and target
    (LLM-JEPA), and a replay path that keeps past pairs in an episodic memory and trains on
    selected ones again. ``replay.weight=0`` is LLM-JEPA; with ``loss.jepa_weight=0`` as well it
    is SFT. Losses, gradients and memory do not depend on how a step is cut into ranks and
    micro-batches.

    The ``model`` decides what is trained: the adapters of a builder with LoRA, DoRA or QLoRA,
    or every weight of one without, which is full fine-tuning. As in torchtune's distributed
    recipes: FSDP2, activation checkpointing and offloading, compile, gradient clipping, metric
    loggers, profiler.

    Checkpoints are complete or absent, at the end of each epoch, every ``save_every_n_steps``
    and at SIGINT or SIGTERM; ``resume_from_checkpoint=True`` goes on from the newest one as if
    the run had not stopped. The adapter alone, or the model without one, is kept at each budget of
    ``checkpoint_at_flops``, to compare runs at equal compute. With ``validation.size`` pairs
    held out of training, losses and accuracy on them are logged and ``keep_best`` keeps the
    best checkpoint; neither changes what is trained, nor counts as FLOPs, tokens or time of
    training.

    Args:
        cfg: config after overrides, see ``configs/``.

    Raises:
        ValueError: if a key is unknown or a value makes no sense.
    """

    def __init__(self, cfg: Config) -> None:
        self._device = utils.get_device(device=cfg.device)
        self._on_cuda = self._device.type == "cuda"
        self._dtype = training.get_dtype(cfg.dtype, device=self._device)
        self._trainable_dtype = training.get_dtype(
            cfg.trainable_dtype or cfg.dtype, device=self._device
        )
        _, self._rank = utils.get_world_size_and_rank()
        self._seed = training.set_seed(
            seed=cfg.seed, debug_mode=cfg.cudnn_deterministic_mode
        )
        self._cfg = replace(cfg, seed=self._seed)  # one is drawn where it is null
        self._resume = is_to_resume(cfg)
        self._batch_size = cfg.batch_size
        self._save_every_n_steps = cfg.save_every_n_steps
        self._eval_every_n_steps = cfg.eval_every_n_steps
        self._probe_every_n_steps = cfg.log_replay_gradients_every_n_steps
        clip_grad_norm = cfg.clip_grad_norm
        self._clip_grad_norm = float(
            "inf" if clip_grad_norm is None else clip_grad_norm
        )
        self._stop_signals = StopSignals(lose_patience)

    # ------------------------------------------------------------------ set-up

    def setup(self) -> None:
        """Build everything; whatever can be wrong in the config fails before weights load."""
        cfg = self._cfg
        attention = attention_of(cfg, self._device)
        self._loss_fn = cfg.loss.build()
        erjepa.configs.require_files(cfg)
        tokenizer = cfg.tokenizer.build()
        self._memory = RunMemory(cfg, tokenizer, resume=self._resume)
        self._averaged = AveragedWeights(cfg.ema_decay, self._device)
        self._checkpoints = RunCheckpoints(
            cfg, self._device, self._memory.write, self._averaged, resume=self._resume
        )
        self._dataset = build_dataset(cfg.dataset, tokenizer)
        self._checkpoints.serve(self._dataset, tokenizer)
        views = run_views(cfg, self._loss_fn.jepa_weight, self._memory.settings)
        self._has_views = views.new != "none"
        self._model, self._trained = build_model(
            cfg,
            dtype=self._dtype,
            trainable_dtype=self._trainable_dtype,
            device=self._device,
            num_predictor_tokens=views.num_predictor_tokens,
            attention=attention,
        )
        memory = memory_of(self._device)
        # Ranks that decided otherwise would wait for each other.
        reshards = on_rank_zero(
            lambda: reshards_after_forward(self._cfg, self._model, memory)
        )
        cfg = self._cfg = replace(cfg, fsdp_reshard_after_forward=reshards)
        forward_context = activation_offloading(cfg, self._model, self._device)
        self._collator, self._replay_collator = pair_collators(
            cfg,
            tokenizer,
            views=views,
            vocab_size=self._model.decoder.tok_embeddings.num_embeddings,
            trim=attention == "dense",
        )
        self._share = self._memory.share
        self._pairs = training_pairs(
            cfg,
            self._dataset,
            self._collator,
            num_positions=self._model.decoder.max_seq_len,
            jepa_every=self._loss_fn.jepa_every,
            pin_memory=self._on_cuda,
            share=self._share,
        )
        self._sampler, self._held_out = self._pairs.sampler, self._pairs.held_out
        self._replay = self._memory.build(
            self._dataset,
            self._model,
            self._collator,
            has_views=self._has_views,
            device=self._device,
        )
        self._validation = None
        if self._held_out:
            self._validation = Validation(
                cfg,
                self._dataset,
                self._held_out,
                tokenizer,
                self._collator,
                self._loss_fn,
                self._device,
            )
        steps_per_epoch = min(
            self._sampler.steps_per_epoch,
            cfg.max_steps_per_epoch or self._sampler.steps_per_epoch,
        )
        self._run = RunProgress(cfg.epochs, steps_per_epoch, cfg.stop)
        self._metrics_log = MetricsLog(cfg, self._device)

        self._fingerprint = fingerprint(
            cfg,
            pairs_of_a_step=self._sampler.examples_per_step,
            pairs=self._pairs.loader.dataset,  # type: ignore[arg-type]
        )
        base, resumed, predictor, averaged, state = self.load_checkpoint()
        if predictor is None:
            predictor = self._model.initial_predictor(
                base, self._collator.predictor_ids
            )
        set_up_model(
            cfg,
            self._model,
            self._trained,
            base,
            resumed,
            predictor,
            dtype=self._dtype,
            device=self._device,
        )
        self._passes = Passes(
            self._model,
            self._loss_fn,
            self._device,
            forward_context=forward_context,
            keep_gathered=not reshards,
        )
        self._optimizer = cfg.optimizer.build(
            [p for p in self._model.parameters() if p.requires_grad]
        )
        self._lr_scheduler = cfg.lr_scheduler.build(
            self._optimizer,
            num_training_steps=cfg.epochs * steps_per_epoch,
        )
        self._step_metrics = StepMetrics(cfg, self._run, self._memory, self._optimizer)
        self._profiler, _ = cfg.profiler.build()
        self._state = RecipeState(
            self._model,
            self._optimizer,
            self._lr_scheduler,
            self._run,
            self._device,
        )
        self._averaged.start(self._model, averaged)
        if state is None:
            self._memory.start(self._passes)
        else:
            self._state.load_state_dict(state)
            self._memory.go_on(state["checkpoint"], self._run.steps)
        wait_for_all()  # each read at its own pace; within a step the wait is limited

    # --------------------------------------------------------------- the step

    def _train_step(self, step: Step, new_totals: StepTotals) -> dict[str, float]:
        """One optimizer step: the loss of Eq. 4, then the rules of the episodic memory.

        New and replayed pairs run one after the other, so gradients add up to those of the sum
        and activations peak at the larger of the two. Where replayed pairs are a share of the
        step, they run with the new ones. Counts, selection and memory are those of the whole
        step, the same on every rank.
        """
        # New pairs.
        is_probed = self._is_time_to_probe()
        replays = self._replay is not None and (
            new_totals.views > 0 or not self._has_views
        )
        draw, replayed = step.draw, None
        runs_twice = replays and draw is None and self._memory.can_draw
        new = self._passes.forward_backward(
            step.batches, new_totals, last=not runs_twice or is_probed
        )
        if draw is not None:
            new, replayed = new.split(len(new.example_ids) - len(draw.example_ids))

        # Replayed pairs: chosen by the new ones, never among them.
        replay_totals, probe = StepTotals(), None
        if self._replay is not None and replays:
            self._require_finite(new)
            ids = self._memory.ids(new.example_ids)
            segments = [self._dataset[i].segments for i in new.example_ids.tolist()]
            addresses = self._replay.encode(new.source)
        if self._replay is not None and runs_twice:
            draw = self._replay.draw(ids, segments, addresses)
            batches = share_of_replay(
                draw,
                self._replay_collator,
                self._batch_size,
                step=self._run.steps,
                pin_memory=self._on_cuda,
            )
            checksum = self._replay.checksum(draw)
            replay_totals = self._passes.totals(batches, checksum)
            replay_totals.require_equal_replay(self._run.steps + 1)
            if is_probed and replay_totals.pairs:
                probe = ReplayProbe(self._model, self._device)
            replayed = self._passes.forward_backward(
                batches, replay_totals, weight=self._replay.weight, last=True
            )
            if probe is not None:
                probe.after_replay(replayed.loss, replayed.weight)

        # Update of the weights.
        grad_norm = self._clipped_grad_norm(new, replayed)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._averaged.update()
        self._lr_scheduler.step()
        if probe is not None:
            probe.after_update(partial(self._passes.measure, batches, replay_totals))

        # Update of the memory: refresh what was replayed, then store what is new.
        if self._replay is not None and replays:
            score = self._replay.settings.score
            if draw is not None and replayed is not None:
                self._replay.refresh(draw, replayed.scores(score))
                self._replay.adapt_weight(draw, new.token_loss, replayed.token_loss)
            self._replay.write(ids, segments, addresses, new.scores(score))
            self._memory.log_errors(self._run.steps + 1, new, draw, replayed)

        metrics = self._step_metrics(
            new, replayed, new_totals, replay_totals, grad_norm
        )
        return metrics if probe is None else {**metrics, **probe.metrics}

    def _is_time_to_probe(self) -> bool:
        every = self._probe_every_n_steps
        return every is not None and (self._run.steps + 1) % every == 0

    def _clipped_grad_norm(self, *passes: PassResult | None) -> float:
        total = torch.nn.utils.clip_grad_norm_(
            self._model.parameters(), max_norm=self._clip_grad_norm
        )
        norm = (total.full_tensor() if isinstance(total, DTensor) else total).item()
        self._require_finite(*passes, grad_norm=norm)
        return norm

    def _require_finite(
        self, *passes: PassResult | None, grad_norm: float = 0.0
    ) -> None:
        require_finite(
            [p for p in passes if p is not None],
            step=self._run.steps + 1,
            where=self._memory.where,
            how_to_resume=partial(self._checkpoints.how_to_resume, self._run),
            grad_norm=grad_norm,
        )

    # ------------------------------------------------------------ the training loop

    def train(self) -> None:
        """Run to the last epoch, or to the first of ``stop.flops``, ``.tokens``, ``.steps``.

        SIGINT and SIGTERM end it after the step, with a checkpoint to go on from.
        """
        if self._on_cuda:
            training.cleanup_before_training()
        self._model.train()
        self._profiler.start()
        with self._stop_signals:
            while not (self._run.is_over() or self.exit_code):
                self._train_epoch()
            if self.exit_code and not self._checkpoints.is_saved(self._run):
                self.save_checkpoint()
        self._profiler.stop()

    def _train_epoch(self) -> None:
        run = self._run
        self._sampler.set_position(run.epoch, run.step_in_epoch, run.steps)
        steps = steps_of(
            self._pairs,
            self._memory,
            share=self._share,
            start=run.step_in_epoch,
            pin_memory=self._on_cuda,
        )
        self._metrics_log.start(run)
        for _ in range(run.step_in_epoch, run.steps_per_epoch):
            start = time.perf_counter()
            if self._is_told_to_stop():
                break
            step = next(steps)
            totals = self._passes.totals(step.batches, step.checksum)
            totals.require_equal_replay(run.steps + 1)
            metrics = self._train_step(step, totals)
            seconds = time.perf_counter() - start
            run.advance(seconds)
            validation = self._validate()
            self._metrics_log.step({**metrics, **validation}, run=run, seconds=seconds)
            self._profiler.step()
            # Before the one to resume from, so that a killed run leaves none out.
            self._checkpoints.save_at_flops(self._model, run, metrics["step_flops"])
            self._checkpoints.save_if_best(self._model, run, validation)
            if run.is_time(self._save_every_n_steps):
                self.save_checkpoint()
            if run.has_reached_stop():
                break

    def _is_told_to_stop(self) -> bool:
        votes = all_reduce_sum(torch.tensor(self._stop_signals.vote()))
        self._stop_signals.agree(int(votes))
        return self.exit_code != 0

    @property
    def exit_code(self) -> int:
        """Of the process: 0, or 130 and 143 after SIGINT and SIGTERM."""
        return self._stop_signals.exit_code

    def _validate(self) -> dict[str, float]:
        """What is measured on the held-out pairs, when it is time."""
        if self._validation is None or not self._run.is_time(self._eval_every_n_steps):
            return {}
        return self._validation(self._model)

    # ------------------------------------------------------------- checkpoints

    def load_checkpoint(self) -> Loaded:
        """Base weights; trained weights and recipe state as well when resuming."""
        return self._checkpoints.load(self._model, self._trained, self._fingerprint)

    def save_checkpoint(self) -> None:
        """Write weights and all that a resumed run needs; complete or absent."""
        self._checkpoints.save(self._model, self._run, self._state.state_dict())

    def log_summary(self) -> None:
        """Say in some lines what is about to run; every key is in ``output_dir``."""
        pairs = self._sampler.examples_per_step
        log_summary(
            self._cfg,
            self._model,
            self._run,
            num_train=self._sampler.num_examples,
            num_held_out=len(self._held_out),
            device=self._device,
            replay=self._memory.summary(pairs),
            carried=[*self._checkpoints.carried, *self._memory.carried(pairs)],
        )

    def cleanup(self) -> None:
        """Close the log, say how to go on after a signal, and leave ``output_dir``."""
        self._metrics_log.close()
        if self.exit_code:
            self._checkpoints.say_way_on(self._run)
        self._checkpoints.close()


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
        recipe.log_summary()
        recipe.train()
        recipe.cleanup()
    return recipe.exit_code


if __name__ == "__main__":
    sys.exit(recipe_main())
