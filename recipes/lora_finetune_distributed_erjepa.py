import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from torchtune import training, utils
from torchtune.modules.transforms import Transform
from torchtune.recipe_interfaces import FTRecipeInterface

import erjepa.configs
from erjepa.checkpoints.fingerprint import fingerprint
from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.configs import Config
from erjepa.datasets import build_dataset
from erjepa.evaluation.validation import Validation
from erjepa.packing import Attention
from erjepa.training.model.averaged import AveragedWeights
from erjepa.training.model.build import activation_offloading, build_model, set_up_model
from erjepa.training.model.device import attention_of, memory_of, run_device
from erjepa.training.model.distributed import (
    all_reduce_sum,
    on_rank_zero,
    wait_for_all,
)
from erjepa.training.model.sharding import reshards_after_forward
from erjepa.training.model.trainable import TrainableWeights
from erjepa.training.run.data import (
    pair_collators,
    run_views,
    training_pairs,
)
from erjepa.training.run.inherited import earlier_memories
from erjepa.training.run.memory import RunMemory
from erjepa.training.run.metrics import MetricsLog, step_metrics
from erjepa.training.run.packed_rows import require_packable
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
    is_to_resume,
    load_start,
)
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
        seed = training.set_seed(seed=cfg.seed, debug_mode=cfg.cudnn_deterministic_mode)
        self._cfg = replace(cfg, seed=seed)  # one is drawn where it is null
        self._resume = is_to_resume(cfg)
        clip_grad_norm = cfg.clip_grad_norm
        self._clip_grad_norm = float(
            "inf" if clip_grad_norm is None else clip_grad_norm
        )
        self._stop_signals = StopSignals(lose_patience)

    # ------------------------------------------------------------------ set-up

    def setup(self) -> None:
        """Build everything; whatever can be wrong in the config fails before weights load."""
        cfg, device = self._cfg, self._device
        attention = attention_of(cfg, device)
        self._loss_fn = cfg.loss.build()
        self._cfg = cfg = erjepa.configs.require_files(cfg)
        tokenizer = cfg.tokenizer.build()
        texts = PairTexts(tokenizer)
        earlier = earlier_memories(cfg.replay, texts.fingerprint, resume=self._resume)
        self._folder = RunFolder(
            Path(cfg.output_dir),
            resume=self._resume,
            flops_budgets=cfg.checkpoint_at_flops or (),
        )
        checkpointer = build_checkpointer(cfg)

        self._dataset = build_dataset(cfg.dataset, tokenizer)
        serving = find_serving(cfg, self._dataset, tokenizer)
        trainable = self._build_model(tokenizer, attention)
        cfg = self._cfg
        self._memory = RunMemory(
            cfg, self._dataset, self._model, self._collator, texts, earlier, device
        )
        self._setup_data(tokenizer)
        self._metrics_log = MetricsLog(cfg, device)

        prints = fingerprint(
            cfg,
            pairs_of_a_step=self._pairs.sampler.examples_per_step,
            pairs=self._pairs.loader.dataset,  # type: ignore[arg-type]
        )
        start = load_start(
            cfg, checkpointer, self._model, trainable, prints, resume=self._resume
        )
        self._carried = start.carried
        self._setup_training(start, trainable)
        self._checkpoints = RunCheckpoints(
            cfg,
            self._folder,
            checkpointer,
            self._model,
            trainable,
            self._averaged,
            start,
            serving=serving,
            write_memory=self._memory.write,
            device=device,
        )
        if start.resumed is None:
            require_packable(self._model, self._dataset.pairs, device, cfg.base_model)
            self._memory.start(self._passes)
        else:
            self._state.load_state_dict(start.resumed.state, start.resumed.changed)
            self._memory.resume(start.resumed.path, self._run.steps)
        wait_for_all()  # each read at its own pace; within a step the wait is limited

    def _build_model(
        self, tokenizer: Transform, attention: Attention
    ) -> TrainableWeights:
        """The model, without its weights, and what packs pairs for it."""
        cfg = self._cfg
        views = run_views(cfg, self._loss_fn.jepa_weight, cfg.replay)
        self._model, trainable = build_model(
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
            lambda: reshards_after_forward(cfg, self._model, memory)
        )
        self._cfg = replace(cfg, fsdp_reshard_after_forward=reshards)
        self._forward_context = activation_offloading(cfg, self._model, self._device)
        self._collator, self._replay_collator = pair_collators(
            cfg,
            tokenizer,
            views=views,
            vocab_size=self._model.vocab_size,
            trim=attention == "dense",
        )
        return trainable

    def _setup_data(self, tokenizer: Transform) -> None:
        """The pairs to train on and those held out, and how many steps they make."""
        cfg = self._cfg
        self._pairs = training_pairs(
            cfg,
            self._dataset,
            self._collator,
            num_positions=self._model.num_positions,
            jepa_every=self._loss_fn.jepa_every,
            pin_memory=self._on_cuda,
            share=self._memory.share,
        )
        self._validation = None
        if self._pairs.held_out:
            self._validation = Validation(
                cfg,
                self._dataset,
                self._pairs.held_out,
                tokenizer,
                self._collator,
                self._loss_fn,
                self._device,
            )
        steps = self._pairs.sampler.steps_per_epoch
        self._run = RunProgress(
            cfg.epochs, min(steps, cfg.max_steps_per_epoch or steps), cfg.stop
        )

    def _setup_training(self, start: Start, trainable: TrainableWeights) -> None:
        """Give the model its weights, and make what trains them."""
        cfg = self._cfg
        set_up_model(
            cfg,
            self._model,
            trainable,
            start.base,
            start.trained,
            start.predictor,
            predictor_ids=self._collator.predictor_ids,
            dtype=self._dtype,
            device=self._device,
        )
        self._averaged = AveragedWeights(
            cfg.ema_decay, self._model, self._device, start.averaged
        )
        self._passes = Passes(
            self._model,
            self._loss_fn,
            self._device,
            forward_context=self._forward_context,
            keep_gathered=not cfg.fsdp_reshard_after_forward,
        )
        self._optimizer = cfg.optimizer.build(
            [p for p in self._model.parameters() if p.requires_grad]
        )
        self._lr_scheduler = cfg.lr_scheduler.build(
            self._optimizer,
            num_training_steps=cfg.epochs * self._run.steps_per_epoch,
        )
        self._profiler, _ = cfg.profiler.build()
        self._state = RecipeState(
            self._model, self._optimizer, self._lr_scheduler, self._run, self._device
        )

    # --------------------------------------------------------------- the step

    def _train_step(self, step: Step, new_totals: StepTotals) -> dict[str, float]:
        """One optimizer step: the loss of Eq. 4, then the rules of the episodic memory.

        New and replayed pairs run one after the other, so gradients add up to those of the sum
        and activations peak at the larger of the two. Where replayed pairs are a share of the
        step, they run with the new ones. Counts, selection and memory are those of the whole
        step, the same on every rank.
        """
        # New pairs. A step without the JEPA loss that others have replays nothing.
        memory, passes, run = self._memory, self._passes, self._run
        has_views = self._collator.views != "none"
        replays = memory.is_on and (new_totals.views > 0 or not has_views)
        runs_twice = replays and step.draw is None and memory.can_draw
        is_probed = self._is_time_to_probe()
        new = passes.forward_backward(
            step.batches, new_totals, last=not runs_twice or is_probed
        )
        draw, replayed = step.draw, None
        if draw is not None:
            new, replayed = new.split(len(new.example_ids) - len(draw.example_ids))

        # Replayed pairs: chosen by the new ones, never among them.
        replay_totals, probe = StepTotals(), None
        if replays:
            self._require_finite(new)
            entries = memory.entries(new.example_ids, new.source)
        if runs_twice:
            draw, checksum = memory.draw(entries)
            batches = share_of_replay(
                draw,
                self._replay_collator,
                self._cfg.batch_size,
                step=run.steps,
                pin_memory=self._on_cuda,
            )
            replay_totals = passes.totals(batches, checksum)
            replay_totals.require_equal_replay(run.steps + 1)
            if is_probed and replay_totals.pairs:
                replay_again = partial(passes.measure, batches, replay_totals)
                probe = ReplayProbe(self._model, self._device, replay_again)
            replayed = passes.forward_backward(
                batches, replay_totals, weight=memory.weight, last=True
            )
            if probe is not None:
                probe.after_replay(replayed, self._optimizer.param_groups[0]["lr"])

        # Update of the weights.
        grad_norm = self._clipped_grad_norm(new, replayed)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._averaged.update()
        self._lr_scheduler.step()
        if probe is not None:
            probe.after_update()

        # Update of the memory: refresh what was replayed, then store what is new.
        if replays:
            memory.update(entries, new, draw, replayed)
            memory.log_errors(run.steps + 1, new, draw, replayed)

        tokens = new_totals.tokens + replay_totals.tokens
        flops = new_totals.flops + replay_totals.flops
        run.count(tokens=tokens, flops=flops)
        metrics = step_metrics(
            new,
            replayed,
            tokens=tokens,
            flops=flops,
            run=run,
            memory=memory,
            lr=self._optimizer.param_groups[0]["lr"],
            grad_norm=grad_norm,
            log_collapse=self._cfg.log_collapse,
        )
        return metrics if probe is None else {**metrics, **probe.metrics}

    def _is_time_to_probe(self) -> bool:
        every = self._cfg.log_replay_gradients_every_n_steps
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
        self._pairs.sampler.set_position(run.epoch, run.step_in_epoch, run.steps)
        steps = steps_of(
            self._pairs,
            self._memory,
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
            if run.is_time(self._cfg.save_every_n_steps):
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
        every = self._cfg.eval_every_n_steps
        if self._validation is None or not self._run.is_time(every):
            return {}
        return self._validation(self._model)

    # ------------------------------------------------------------- checkpoints

    def save_checkpoint(self) -> None:
        """Write weights and all that a resumed run needs; complete or absent."""
        self._checkpoints.save(self._model, self._run, self._state.state_dict())

    def log_summary(self) -> None:
        """Say in some lines what is about to run; every key is in ``output_dir``."""
        pairs = self._pairs.sampler.examples_per_step
        log_summary(
            self._cfg,
            self._model,
            self._run,
            num_train=self._pairs.sampler.num_examples,
            num_held_out=len(self._pairs.held_out),
            device=self._device,
            replay=self._memory.summary(pairs),
            carried=[*self._carried, *self._memory.carried(pairs)],
        )

    def cleanup(self) -> None:
        """Close the log, say how to go on after a signal, and leave ``output_dir``."""
        self._metrics_log.close()
        if self.exit_code:
            self._checkpoints.print_resume_command(self._run)
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
        recipe.log_summary()
        recipe.train()
        recipe.cleanup()
    return recipe.exit_code


if __name__ == "__main__":
    sys.exit(recipe_main())
