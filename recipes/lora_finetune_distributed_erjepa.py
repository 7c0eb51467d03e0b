import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from torchtune import config, modules, training, utils
from torchtune.modules.peft import (
    get_adapter_params,
    get_adapter_state_dict,
    get_lora_module_names,
    set_trainable_params,
)
from torchtune.modules.transforms import Transform
from torchtune.recipe_interfaces import FTRecipeInterface
from tqdm import tqdm

import erjepa.config
from erjepa.datasets import Pair, StepSampler, hold_out, predictor_token_ids
from erjepa.evaluation.validation import HeldOutAccuracy, HeldOutLoss, check_validation
from erjepa.objective.decoder import PackedDecoder
from erjepa.objective.flops import StepFlops
from erjepa.objective.loss import cosine_distance
from erjepa.packing import BLOCK, PackedBatch, PairCollator
from erjepa.replay import Draw, EpisodicReplay, validate_replay
from erjepa.tasks.score import load_task, require_fields
from erjepa.training import checkpoint
from erjepa.training.adapters import initial_adapter_state, merge_adapters
from erjepa.training.distributed import (
    all_reduce_sum,
    gather_interleaved,
    gradient_scale,
    init_process_group,
)
from erjepa.training.dropout import quicken_dropout
from erjepa.training.gathered import gathered
from erjepa.training.model_card import write_model_card
from erjepa.training.precision import set_trainable_dtype
from erjepa.training.random_state import random_state, set_random_state
from erjepa.training.replay_probe import ReplayProbe
from erjepa.training.sharding import load_weights, set_last_backward, shard
from erjepa_recipe.keys import KEYS, require_files

log = utils.get_logger("INFO")


class StepSize(NamedTuple):
    """Totals of one pass of a step, over all ranks and micro-batches."""

    labels: int
    pairs: int
    tokens: int
    flops: int


class PassResult(NamedTuple):
    """Outcome of one pass over B pairs, in batch order, equal on every rank.

    Args:
        example_ids (Tensor): int64 [B].
        loss (Tensor): weighted loss of the pass, scalar.
        lm (Tensor): cross-entropy summed over each pair's labels, [B].
        jepa (Tensor): :math:`d(p, z^a)` of each pair, [B], or [0] without views.
        source (Tensor): :math:`z^u`, [B, H] or [0, H].
        cosine_shuffled (Tensor): mean cosine of :math:`p_i` and :math:`z^a_{i+1}`, scalar.
    """

    example_ids: Tensor
    loss: Tensor
    lm: Tensor
    jepa: Tensor
    source: Tensor
    cosine_shuffled: Tensor


class LoRAFinetuneRecipeDistributedERJEPA(FTRecipeInterface):
    """
    LoRA finetuning with ER-JEPA on one or more ranks, on CUDA (NCCL) or CPU (Gloo).

    Next-token loss on the target, a JEPA loss that aligns the embeddings of source and target
    (LLM-JEPA), and a replay path that keeps past pairs in an episodic memory and trains on
    selected ones again. ``replay.weight=0`` is LLM-JEPA; with ``loss.jepa_weight=0`` as well it
    is LoRA SFT. Losses, gradients and memory do not depend on how a step is cut into ranks and
    micro-batches.

    As in torchtune's distributed LoRA recipe: FSDP2, LoRA, DoRA and QLoRA by the model's builder,
    activation checkpointing and offloading, compile, gradient clipping, metric loggers, profiler.

    Checkpoints are complete or absent, at the end of each epoch and every
    ``save_every_n_steps``; ``resume_from_checkpoint=True`` goes on from the newest one as if the
    run had not stopped. The adapter alone is kept at each budget of ``checkpoint_at_flops``, to
    compare runs at equal compute. With ``validation.size`` pairs held out of training, losses
    and accuracy on them are logged and ``keep_best`` keeps the best checkpoint; neither changes
    what is trained, nor counts as FLOPs, tokens or time of training.

    Args:
        cfg (DictConfig): config after overrides, see ``configs/``.

    Raises:
        ValueError: if a key is unknown or a value makes no sense.
        RuntimeError: if activation offloading is asked for without CUDA or checkpointing.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self._device = utils.get_device(device=cfg.device)
        self._dtype = training.get_dtype(cfg.dtype, device=self._device)
        self._trainable_dtype = self._get_trainable_dtype(cfg)
        self._world_size, self._rank = utils.get_world_size_and_rank()
        self._is_rank_zero = self._rank == 0
        self._output_dir = Path(cfg.output_dir)
        self._seed = training.set_seed(
            seed=cfg.seed, debug_mode=cfg.get("cudnn_deterministic_mode", None)
        )
        self._total_epochs = cfg.epochs
        self._batch_size = cfg.batch_size
        self._accumulation_steps = cfg.gradient_accumulation_steps
        self._save_every_n_steps = cfg.get("save_every_n_steps", None)
        self._save_adapter_weights_only = cfg.get("save_adapter_weights_only", False)
        self._eval_every_n_steps = cfg.get("eval_every_n_steps", None)
        self._keep_best = cfg.get("keep_best", False)
        self._flops_budgets = list(cfg.get("checkpoint_at_flops", None) or [])
        self._log_every_n_steps = cfg.get("log_every_n_steps", 1)
        self._probe_every_n_steps = cfg.get("log_replay_gradients_every_n_steps", None)
        self._log_peak_memory_stats = (
            cfg.get("log_peak_memory_stats", False) and self._device.type == "cuda"
        )
        clip_grad_norm = cfg.get("clip_grad_norm", None)
        self._clip_grad_norm = float(
            "inf" if clip_grad_norm is None else clip_grad_norm
        )
        self._stop = {k: v for k, v in (cfg.get("stop") or {}).items() if v is not None}
        self._resume = cfg.get("resume_from_checkpoint", False)
        self._keep_gathered = not cfg.get("fsdp_reshard_after_forward", True)
        self._compile = cfg.get("compile", False)
        self._adapter_cfg = cfg.model

        # Where the run is; load_checkpoint sets them when resuming.
        self._epoch = 0
        self._step_in_epoch = 0
        self._totals = {"steps": 0, "tokens": 0, "flops": 0, "seconds": 0.0}
        self._best: dict[str, list[float]] = {}  # of validation: metric -> score

    # ------------------------------------------------------------------ set-up

    def setup(self, cfg: DictConfig) -> None:
        """Build everything; whatever can be wrong in the config fails before weights load."""
        self._require_sizes(cfg)
        replay = OmegaConf.to_container(
            cfg.get("replay") or {"weight": 0}, resolve=True
        )
        validate_replay(**replay)
        self._loss_fn = config.instantiate(cfg.loss)
        require_files(cfg)
        self._require_fresh_output()
        tokenizer = config.instantiate(cfg.tokenizer)
        self._dataset = config.instantiate(cfg.dataset, tokenizer)
        views = cfg.get("views", "shared")
        if self._loss_fn.jepa_weight == 0 and replay.get("weight", 1.0) == 0:
            views = "none"  # plain SFT: nothing reads the embeddings of the views
        num_predictor_tokens = cfg.num_predictor_tokens if views != "none" else 0
        model = self._build_model(cfg, num_predictor_tokens)
        vocab_size = model.decoder.tok_embeddings.num_embeddings
        collator = partial(
            PairCollator,
            views=views,
            predictor_ids=predictor_token_ids(
                tokenizer,
                num_predictor_tokens,
                vocab_size,
                cfg.get("predictor_tokens", None),
            ),
            pad_id=tokenizer.pad_id,
            row_length=cfg.get("row_length", None),
            train_on_input=cfg.get("train_on_input", False),
            trim=self._device.type != "cuda",
        )
        paths = self._paths_with_end_of_turn(cfg)
        self._collator = collator(train_end_of_turn="new" in paths)
        self._replay_collator = collator(train_end_of_turn="replay" in paths)
        self._setup_data(cfg)
        self._setup_validation(cfg, tokenizer)

        if self._is_rank_zero:
            self._metric_logger = config.instantiate(cfg.metric_logger)
            self._metric_logger.log_config(cfg)
        base, adapter, state = self.load_checkpoint(cfg)
        self._model = self._setup_model(cfg, model, base, adapter, state)
        self._gradient_scale = gradient_scale(self._device)
        self._count_flops = StepFlops(self._model.decoder)
        self._replay = None
        if replay.get("weight", 1.0):
            self._replay = EpisodicReplay(
                **replay,
                embed_dim=self._model.decoder.tok_embeddings.embedding_dim,
                seed=self._seed,
                device=self._device,
            )
        self._optimizer = config.instantiate(
            cfg.optimizer, [p for p in self._model.parameters() if p.requires_grad]
        )
        self._lr_scheduler = config.instantiate(
            cfg.lr_scheduler,
            self._optimizer,
            num_training_steps=self._total_epochs * self._steps_per_epoch,
        )
        self._profiler = self._setup_profiler(cfg)
        if state is not None:
            self._restore(state)

    def _get_trainable_dtype(self, cfg: DictConfig) -> torch.dtype:
        """Of what is trained: ``dtype``, or float32."""
        name = cfg.get("trainable_dtype", "fp32") or cfg.dtype
        if name not in ("fp32", cfg.dtype):
            raise ValueError(
                f"trainable_dtype={name}: what is trained is held in fp32, or in dtype "
                f"({cfg.dtype}) where trainable_dtype=null"
            )
        return training.get_dtype(name, device=self._device)

    def _paths_with_end_of_turn(self, cfg: DictConfig) -> set[str]:
        """The paths of the objective whose labels hold the end of turn."""
        choice = cfg.get("train_end_of_turn", "all")
        known = {
            "all": {"new", "replay"},
            "new": {"new"},
            "replay": {"replay"},
            "none": set(),
        }
        if choice not in known:
            raise ValueError(
                f"train_end_of_turn must be one of {', '.join(known)}, got {choice!r}"
            )
        return known[choice]

    def _require_sizes(self, cfg: DictConfig) -> None:
        at_least_one = ("batch_size", "gradient_accumulation_steps", "epochs")
        optional = ("max_steps_per_epoch", "save_every_n_steps")
        probe = "log_replay_gradients_every_n_steps"
        for key in (*at_least_one, *optional, probe):
            if (value := cfg.get(key, None)) is not None and value < 1:
                raise ValueError(f"{key} must be at least 1, got {value}")
        check_validation(
            **(cfg.get("validation") or {}),
            eval_every_n_steps=cfg.get("eval_every_n_steps", None),
            keep_best=cfg.get("keep_best", False),
        )
        budgets = self._flops_budgets
        if not (
            all(isinstance(budget, (int, float)) for budget in budgets)
            and all(a < b for a, b in zip([0, *budgets], budgets, strict=False))
        ):
            raise ValueError(
                f"checkpoint_at_flops must be an ascending list of FLOPs, got {budgets}"
            )
        row_length = cfg.get("row_length", None)
        if row_length is not None and row_length < cfg.max_seq_len:
            raise ValueError(
                f"row_length={row_length} is shorter than max_seq_len={cfg.max_seq_len}; "
                "a row must hold the longest pair."
            )
        if self._device.type == "cuda" and (row_length is None or row_length % BLOCK):
            raise ValueError(
                f"row_length={row_length}: on CUDA it must be a multiple of {BLOCK}, "
                "FlexAttention's block."
            )

    def _require_fresh_output(self) -> None:
        """Never write over the checkpoints of another run, nor mix budgets with its."""
        existing = checkpoint.all_checkpoints(self._output_dir)
        if existing and not self._resume:
            raise FileExistsError(
                f"output_dir={self._output_dir} holds {existing[-1].name} of an earlier "
                "run. Go on with it (resume_from_checkpoint=True) or choose another "
                "output_dir."
            )
        for i, budget in enumerate(self._flops_budgets):
            path = self._output_dir / f"flops_{i}"
            if path in existing and checkpoint.load_progress(path)["budget"] != budget:
                raise ValueError(
                    f"{path} was not written at {budget:g} FLOPs; a resumed run keeps "
                    "its checkpoint_at_flops and may add larger ones."
                )

    def _setup_data(self, cfg: DictConfig) -> None:
        """Keep the pairs that fit and deal them into steps."""
        lengths = [self._collator.length(pair) for pair in self._dataset]
        fitting = [i for i, length in enumerate(lengths) if length <= cfg.max_seq_len]
        if skipped := len(lengths) - len(fitting):
            worst = max(range(len(lengths)), key=lengths.__getitem__)
            message = (
                f"{skipped} of {len(lengths)} pairs do not fit max_seq_len="
                f"{cfg.max_seq_len}; the longest, {self._dataset.where(worst)}, takes "
                f"{lengths[worst]} tokens with its views"
            )
            if not cfg.get("skip_too_long", False):
                raise ValueError(
                    f"{message}. Raise max_seq_len, or set skip_too_long=True."
                )
            utils.log_rank_zero(log, f"Skipping pairs: {message}.")
        if not fitting:
            raise ValueError(f"no pair fits max_seq_len={cfg.max_seq_len}")
        train, self._held_out = self._hold_out(cfg, fitting)
        self._sampler = StepSampler(
            len(train),
            batch_size=self._batch_size,
            gradient_accumulation_steps=self._accumulation_steps,
            world_size=self._world_size,
            rank=self._rank,
            seed=self._seed,
            shuffle=cfg.get("shuffle", True),
        )
        self._steps_per_epoch = min(
            self._sampler.steps_per_epoch,
            cfg.get("max_steps_per_epoch", None) or self._sampler.steps_per_epoch,
        )
        self._dataloader = DataLoader(
            # A list, which processes that are spawned can be given too.
            [self._dataset[i] for i in train],
            batch_sampler=self._sampler,
            collate_fn=partial(
                self._collator.split, num_batches=self._accumulation_steps
            ),
            num_workers=cfg.get("num_workers", 0),
            pin_memory=self._device.type == "cuda",
            # Else every new iterator would draw from the state that LoRA dropout uses.
            generator=torch.Generator(),
        )

    def _hold_out(
        self, cfg: DictConfig, fitting: list[int]
    ) -> tuple[list[int], list[int]]:
        """Of the pairs that fit: those to train on, and those of ``validation``."""
        size = OmegaConf.select(cfg, "validation.size")
        self._split = [size, OmegaConf.select(cfg, "validation.seed", default=0)]
        if size is None:
            return fitting, []
        # Of the whole dataset, so that it does not depend on the views, hence the method.
        split = hold_out(self._dataset, *self._split)
        fits = set(fitting)
        train, held_out = (
            [i for i in ids if i in fits] for ids in (split.train, split.held_out)
        )
        utils.log_rank_zero(
            log,
            f"Training on {len(train)} pairs, validating on {len(held_out)}; "
            f"{split.copies} copies of held-out pairs are left out.",
        )
        if not train or not held_out:
            raise ValueError(
                f"validation.size={size} of {len(fitting)} pairs that fit max_seq_len="
                f"{cfg.max_seq_len}: {len(train)} are left to train on, {len(held_out)} to "
                "validate on"
            )
        return train, held_out

    def _setup_validation(self, cfg: DictConfig, tokenizer: Transform) -> None:
        """What to measure on the pairs held out."""
        self._held_out_loss = self._held_out_accuracy = None
        if not self._held_out:
            return
        self._held_out_loss = HeldOutLoss(
            self._dataset,
            self._held_out,
            self._collator,
            self._loss_fn,
            batch_size=self._batch_size,
            device=self._device,
        )
        if generate := cfg.validation.get("generate", 0):
            task = load_task(cfg.task, cfg.get("databases", None))
            require_fields(task, self._dataset, cfg.dataset._component_)
            self._held_out_accuracy = HeldOutAccuracy(
                self._dataset,
                self._held_out[:generate],
                tokenizer,
                task,
                batch_size=cfg.eval_batch_size,
                max_new_tokens=cfg.max_new_tokens,
            )

    def _build_model(self, cfg: DictConfig, num_predictor_tokens: int) -> PackedDecoder:
        """The model on the meta device, with what is to be trained set."""
        with training.set_default_dtype(self._dtype), torch.device("meta"):
            decoder = config.instantiate(cfg.model)
        if self._trainable_dtype != self._dtype:
            set_trainable_dtype(decoder, self._trainable_dtype)
        if self._device.type == "cpu":
            quicken_dropout(decoder)
        set_trainable_params(decoder, get_adapter_params(decoder))
        return PackedDecoder(
            decoder,
            num_predictor_tokens=num_predictor_tokens,
            train_predictor_tokens=cfg.get("train_predictor_tokens", True),
            trainable_dtype=self._trainable_dtype,
        )

    def load_checkpoint(
        self, cfg: DictConfig
    ) -> tuple[dict[str, Tensor], dict[str, Tensor] | None, dict[str, Any] | None]:
        """Base weights; adapter weights and recipe state as well when resuming."""
        self._checkpointer = config.instantiate(
            cfg.checkpointer, output_dir=str(self._output_dir / checkpoint.SCRATCH)
        )
        base = self._checkpointer.load_checkpoint()[training.MODEL_KEY]
        if not self._resume:
            return base, None, None
        path, adapter, state = checkpoint.load_latest(self._output_dir)
        for name, mine in (
            ("seed", self._seed),
            ("examples of a step", self._sampler.examples_per_step),
            ("validation.size and .seed", self._split),
        ):
            if state[name] != mine:
                raise ValueError(
                    f"{path} was written with {name} {state[name]}, this run has {mine}; "
                    "a resumed run keeps its seed, its validation pairs and its batch_size "
                    "x gradient_accumulation_steps x ranks."
                )
        utils.log_rank_zero(log, f"Resuming from {path}.")
        return base, adapter, state

    def _setup_model(
        self,
        cfg: DictConfig,
        model: PackedDecoder,
        base: dict[str, Tensor],
        adapter: dict[str, Tensor] | None,
        state: dict[str, Any] | None,
    ) -> PackedDecoder:
        """Shard the model and load its weights."""
        start = time.perf_counter()
        decoder = model.decoder
        offload = cfg.get("fsdp_cpu_offload", False)
        initial = initial_adapter_state(decoder, self._seed)
        expected = {name for name, _ in decoder.named_parameters()} - set(initial)
        if missing := sorted(expected - set(base)):
            raise ValueError(f"the checkpoint has no weights for {missing[:3]} ...")
        if unknown := sorted(set(base) - expected):
            raise ValueError(
                f"the model has no place for the weights {unknown[:3]} ..."
            )

        if cfg.get("compile", False):
            training.compile_model(decoder, verbose=self._is_rank_zero)
        if cfg.get("enable_activation_checkpointing", False):
            training.set_activation_checkpointing(
                model, auto_wrap_policy={modules.TransformerSelfAttentionLayer}
            )
        names = cfg.get("custom_sharded_layers", None) or []
        shard(
            model,
            dtype=self._dtype,
            layer_names=[f"decoder.{name}" for name in names],
            cpu_offload=offload,
            reshard_after_forward=not self._keep_gathered,
        )
        weights = {**base, **(initial if adapter is None else adapter)}
        weights = {f"decoder.{name}": weight for name, weight in weights.items()}
        if model.predictor is not None:
            rows = base["tok_embeddings.weight"][self._collator.predictor_ids]
            weights["predictor"] = rows if state is None else state["predictor"]
        load_weights(model, weights, self._device, cpu_offload=offload)
        with training.set_default_dtype(self._dtype), self._device:
            for module in model.modules():
                if hasattr(module, "rope_init"):
                    module.rope_init()
        for module in model.modules():
            if adapter is None and hasattr(module, "initialize_dora_magnitude"):
                module.initialize_dora_magnitude()
        training.validate_no_params_on_meta_device(model)

        offload_activations = cfg.get("enable_activation_offloading", False)
        if offload_activations and not (
            self._device.type == "cuda"
            and cfg.get("enable_activation_checkpointing", False)
        ):
            raise RuntimeError(
                "enable_activation_offloading needs CUDA and "
                "enable_activation_checkpointing=True"
            )
        self._activations_ctx = training.get_act_offloading_ctx_manager(
            decoder, offload_activations
        )
        seconds = time.perf_counter() - start
        utils.log_rank_zero(
            log, f"Sharding and loading the model took {seconds:.1f} s."
        )
        dist.barrier()
        return model

    def _setup_profiler(self, cfg: DictConfig):
        profiler = cfg.get(training.PROFILER_KEY, None) or DictConfig(
            {"enabled": False}
        )
        profiler["_component_"] = "torchtune.training.setup_torch_profiler"
        return config.instantiate(profiler)[0]

    # --------------------------------------------------------------- the step

    def _train_step(self, batches: list[PackedBatch]) -> dict[str, float]:
        """One optimizer step: the loss of Eq. 4, then the rules of the episodic memory.

        New and replayed pairs run one after the other, so gradients add up to those of the sum
        and activations peak at the larger of the two. Counts, selection and memory are those of
        the whole step, the same on every rank.
        """
        # New pairs.
        size = self._size_of(batches)
        is_probed = self._is_time_to_probe()
        new = self._forward_backward(
            batches, size, last=self._replay is None or is_probed
        )

        # Replayed pairs: chosen by the new ones, never among them.
        replayed, replay_size, probe = None, StepSize(0, 0, 0, 0), None
        if self._replay is not None:
            self._require_finite(new)
            records = [self._dataset[i].record for i in new.example_ids.tolist()]
            addresses = self._replay.encode(new.source)
            draw = self._replay.draw(new.example_ids, records, addresses)
            batches = self._deal(draw)
            replay_size = self._size_of(batches)
            if is_probed and replay_size.pairs:
                probe = ReplayProbe(self._model, self._device)
            replayed = self._forward_backward(
                batches, replay_size, weight=self._replay.weight, last=True
            )
            if probe is not None:
                probe.after_replay(replayed.loss, self._replay.weight)

        # Update of the weights.
        grad_norm = self._clipped_grad_norm(new, replayed)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._lr_scheduler.step()
        if probe is not None:
            probe.after_update(partial(self._loss_of, batches, replay_size))

        # Update of the memory: refresh what was replayed, then store what is new.
        if self._replay is not None:
            self._replay.refresh(draw, replayed.jepa)
            self._replay.write(new.example_ids, records, addresses, new.jepa)

        metrics = self._metrics(new, size, replayed, replay_size, grad_norm)
        return metrics if probe is None else {**metrics, **probe.metrics}

    def _is_time_to_probe(self) -> bool:
        every = self._probe_every_n_steps
        return every is not None and (self._totals["steps"] + 1) % every == 0

    def _loss_of(self, batches: list[PackedBatch], size: StepSize) -> Tensor:
        """Loss of a pass without its gradient, the same on every rank."""
        loss = torch.zeros((), device=self._device)
        for batch in batches:
            batch = batch.to(self._device)
            loss += self._loss_fn(
                self._model(batch), batch, max(size.labels, 1), max(size.pairs, 1)
            )[0]
        return all_reduce_sum(loss)

    def _size_of(self, batches: list[PackedBatch]) -> StepSize:
        mine = [
            (b.num_labels, b.num_pairs, b.num_tokens, self._count_flops(b))
            for b in batches
        ]
        # On the CPU, so that nothing waits for the device.
        total = torch.tensor(mine, dtype=torch.int64).sum(dim=0)
        return StepSize(*all_reduce_sum(total).tolist())

    def _forward_backward(
        self,
        batches: list[PackedBatch],
        size: StepSize,
        *,
        weight: float = 1.0,
        last: bool,
    ) -> PassResult:
        """Accumulate the gradient of ``weight`` times the loss; reduce it after the ``last``."""
        losses, outputs = [], []
        for i, batch in enumerate(batches):
            set_last_backward(
                self._model,
                last and i == len(batches) - 1,
                keep_gathered=self._keep_gathered,
            )
            batch = batch.to(self._device)
            with self._activations_ctx:
                output = self._model(batch)
                loss, pair_losses = self._loss_fn(
                    output, batch, max(size.labels, 1), max(size.pairs, 1)
                )
            (loss * weight * self._gradient_scale).backward()
            losses.append(loss.detach())
            views = torch.stack(output[1:], dim=1).detach().float()  # [n, 3, H]
            outputs.append((batch.order, batch.example_ids, pair_losses.lm, views))
        order, ids, lm, views = map(torch.cat, zip(*outputs, strict=True))
        place = order.argsort()
        ids, lm = (gather_interleaved(mine[place], size.pairs) for mine in (ids, lm))
        num_views = 0 if self._collator.views == "none" else size.pairs
        views = views[place] if num_views else views
        source, predicted, target = gather_interleaved(views, num_views).unbind(dim=1)
        return PassResult(
            example_ids=ids,
            loss=all_reduce_sum(torch.stack(losses).sum()),
            lm=lm,
            jepa=cosine_distance(predicted, target),
            source=source,
            cosine_shuffled=1 - cosine_distance(predicted, target.roll(1, 0)).mean(),
        )

    def _deal(self, draw: Draw) -> list[PackedBatch]:
        """This rank's share of the replayed pairs, in as many micro-batches as every rank's."""
        ids = draw.example_ids
        pairs = [Pair(i, *record) for i, record in zip(ids, draw.records, strict=True)]
        mine = pairs[self._rank :: self._world_size]
        most = -(-len(pairs) // self._world_size)
        batches = self._replay_collator.split(
            mine, max(-(-most // self._batch_size), 1)
        )
        on_cuda = self._device.type == "cuda"
        return [batch.pin_memory() if on_cuda else batch for batch in batches]

    def _clipped_grad_norm(self, *passes: PassResult | None) -> float:
        norm = torch.nn.utils.clip_grad_norm_(
            self._model.parameters(), max_norm=self._clip_grad_norm
        )
        norm = (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()
        if norm != norm or norm == float("inf"):
            passes = [p for p in passes if p is not None]
            for result in passes:
                self._require_finite(result)
            ids = torch.cat([p.example_ids for p in passes])
            self._stop_at_non_finite("gradient", ids)
        return norm

    def _require_finite(self, result: PassResult) -> None:
        bad = ~torch.isfinite(result.lm)
        if len(result.jepa):
            bad |= ~torch.isfinite(result.jepa)
        if bad.any().item():
            self._stop_at_non_finite("loss", result.example_ids[bad])

    def _stop_at_non_finite(self, what: str, example_ids: Tensor) -> None:
        where = [self._dataset.where(i) for i in example_ids.unique().tolist()]
        raise RuntimeError(
            f"The {what} is not finite at step {self._totals['steps'] + 1}. Stopping before "
            f"the optimizer update; the step's examples are {', '.join(where)}."
        )

    # ------------------------------------------------------------ the training loop

    def train(self) -> None:
        """Run to the last epoch, or to the first of ``stop.flops``, ``.tokens``, ``.steps``."""
        if self._device.type == "cuda":
            training.cleanup_before_training()
        self._model.train()
        self._profiler.start()
        while self._epoch < self._total_epochs and not self._reached_stop():
            self._sampler.set_position(self._epoch, self._step_in_epoch)
            steps = iter(self._dataloader)
            progress = tqdm(
                total=self._steps_per_epoch,
                initial=self._step_in_epoch,
                disable=not self._is_rank_zero,
            )
            for _ in range(self._step_in_epoch, self._steps_per_epoch):
                start = time.perf_counter()
                metrics = self._train_step(next(steps))
                seconds = time.perf_counter() - start
                self._totals["seconds"] += seconds
                validation = self._validate()
                self._log({**metrics, **validation}, seconds, progress)
                self._profiler.step()
                self._step_in_epoch += 1
                if self._step_in_epoch == self._steps_per_epoch:
                    self._epoch, self._step_in_epoch = self._epoch + 1, 0
                # Before the one to resume from, so that a killed run leaves none out.
                self._save_at_flops(metrics["step_flops"])
                self._save_if_best(validation)
                if self._is_time_to_save():
                    self.save_checkpoint()
                if self._reached_stop():
                    break
            progress.close()
        self._profiler.stop()

    def _validate(self) -> dict[str, float]:
        """Losses, and accuracy where asked for, on the held-out pairs when it is time, the
        same on every rank. Nothing random is drawn, so no step notices.
        """
        every = self._eval_every_n_steps
        is_time = (
            self._step_in_epoch + 1 == self._steps_per_epoch
            or self._reached_stop()
            or (every is not None and self._totals["steps"] % every == 0)
        )
        if self._held_out_loss is None or not is_time:
            return {}
        self._model.eval()
        metrics = self._held_out_loss(self._model)
        if self._held_out_accuracy is not None:
            # Compiled layers would be compiled again for each length of the cache.
            eager = torch.compiler.set_stance if self._compile else nullcontext
            with eager("force_eager"), gathered(self._model):
                metrics.update(self._held_out_accuracy(self._model.decoder))
        self._model.train()
        return metrics

    def _is_time_to_save(self) -> bool:
        every = self._save_every_n_steps
        return (
            self._step_in_epoch == 0
            or self._reached_stop()
            or (every is not None and self._totals["steps"] % every == 0)
        )

    def _reached_stop(self) -> bool:
        return any(self._totals[name] >= limit for name, limit in self._stop.items())

    def _metrics(
        self,
        new: PassResult,
        size: StepSize,
        replayed: PassResult | None,
        replay_size: StepSize,
        grad_norm: float,
    ) -> dict[str, float]:
        flops = size.flops + replay_size.flops
        tokens = size.tokens + replay_size.tokens
        self._totals["steps"] += 1
        self._totals["tokens"] += tokens
        self._totals["flops"] += flops
        metrics = {
            "loss": new.loss,
            "lm_loss": new.lm.sum() / max(size.labels, 1),
            "replayed": replay_size.pairs,
            "memory_size": 0 if self._replay is None else len(self._replay),
            "lr": self._optimizer.param_groups[0]["lr"],
            "grad_norm": grad_norm,
            "tokens_per_second_per_gpu": tokens / self._world_size,
            "pairs_per_second": size.pairs,
            "step_flops": flops,
            "total_flops": self._totals["flops"],
            "total_tokens": self._totals["tokens"],
        }
        if self._collator.views != "none":
            metrics["jepa_loss"] = new.jepa.mean()
            metrics["cosine_paired"] = 1 - new.jepa.mean()
            metrics["cosine_shuffled"] = new.cosine_shuffled
        metrics["replay_lm_loss"] = metrics["replay_jepa_loss"] = 0.0
        if replay_size.pairs:
            metrics["loss"] = new.loss + self._replay.weight * replayed.loss
            metrics["replay_lm_loss"] = replayed.lm.sum() / replay_size.labels
            metrics["replay_jepa_loss"] = replayed.jepa.mean()
        return metrics

    def _log(self, metrics: dict[str, Any], seconds: float, progress: tqdm) -> None:
        progress.update(1)
        validated = {k: f"{v:.4f}" for k, v in metrics.items() if k.startswith("val_")}
        is_time = validated or self._totals["steps"] % self._log_every_n_steps == 0
        if not (is_time and self._is_rank_zero):
            return
        metrics = {
            k: v.item() if isinstance(v, Tensor) else v for k, v in metrics.items()
        }
        for rate in ("tokens_per_second_per_gpu", "pairs_per_second"):
            metrics[rate] /= seconds
        if self._log_peak_memory_stats:
            metrics.update(training.get_memory_stats(device=self._device))
        progress.set_description(f"{self._epoch + 1}|loss {metrics['loss']:.4f}")
        if validated:
            progress.set_postfix(validated)
        self._metric_logger.log_dict(metrics, step=self._totals["steps"])

    # ------------------------------------------------------------- checkpoints

    def save_checkpoint(self) -> None:
        """Write weights and all that a resumed run needs; complete or absent."""
        weights, predictor = self._gather_weights()
        optimizer = training.get_full_optimizer_state_dict(
            self._model, self._optimizer, self._is_rank_zero, device=self._device
        )
        random_states: list[Any] = [None] * self._world_size
        dist.all_gather_object(random_states, random_state(self._device))
        if self._is_rank_zero:
            if self._step_in_epoch == 0:
                name = checkpoint.checkpoint_name(self._epoch - 1, None)
            else:
                name = checkpoint.checkpoint_name(self._epoch, self._step_in_epoch)
            adapter_only = self._save_adapter_weights_only
            path = checkpoint.publish(
                self._output_dir,
                name,
                lambda epoch: self._write_weights(weights, epoch, adapter_only),
                progress=self._progress(),
                predictor=predictor,
                state={
                    "seed": self._seed,
                    "examples of a step": self._sampler.examples_per_step,
                    "epoch": self._epoch,
                    "step_in_epoch": self._step_in_epoch,
                    "totals": self._totals,
                    "validation.size and .seed": self._split,
                    "best": self._best,
                    "optimizer": optimizer,
                    "lr_scheduler": self._lr_scheduler.state_dict(),
                    "replay": None
                    if self._replay is None
                    else self._replay.state_dict(),
                    "random_states": random_states,
                },
            )
            write_model_card(self._output_dir)
            log.info(f"Saved {path}.")
        dist.barrier()

    def _save_at_flops(self, step_flops: int) -> None:
        """Keep the adapter at each budget that the last step reached."""
        total = self._totals["flops"]
        reached = [
            (f"flops_{i}", budget)
            for i, budget in enumerate(self._flops_budgets)
            if total - step_flops < budget <= total
        ]
        if not reached:
            return
        weights, predictor = self._gather_weights()
        for name, budget in reached if self._is_rank_zero else ():
            # A run that was killed after writing it comes by again.
            if not (self._output_dir / name).is_dir():
                checkpoint.publish(
                    self._output_dir,
                    name,
                    lambda epoch: self._write_weights(weights, epoch, True),
                    progress={"budget": budget, **self._progress()},
                    predictor=predictor,
                )
                write_model_card(self._output_dir)
                log.info(f"Saved {self._output_dir / name}.")
        dist.barrier()

    def _save_if_best(self, validation: dict[str, float]) -> None:
        """Keep the weights that are the best so far: by accuracy, then by loss."""
        if not (self._keep_best and validation):
            return
        measured = [name for name in ("val_accuracy", "val_loss") if name in validation]
        score = [validation[name] for name in measured]
        score[-1] *= -1
        if not score > self._best.get(measured[0], [float("-inf")]):
            return
        self._best = {measured[0]: score}
        weights, predictor = self._gather_weights()
        if self._is_rank_zero:
            path = self._output_dir / checkpoint.best_name(self._totals["steps"])
            # A run that was killed after writing it comes by again.
            if not path.is_dir():
                adapter_only = self._save_adapter_weights_only
                checkpoint.publish(
                    self._output_dir,
                    path.name,
                    lambda epoch: self._write_weights(weights, epoch, adapter_only),
                    progress={**validation, **self._progress()},
                    predictor=predictor,
                )
            checkpoint.set_best(path)
            write_model_card(self._output_dir)
            log.info(f"Saved {path}: {measured[0]} {validation[measured[0]]:.4f}.")
        dist.barrier()

    def _gather_weights(self) -> tuple[dict[str, Tensor], Tensor | None]:
        """The decoder's weights and the predictor tokens' embeddings, whole on rank 0."""
        weights = training.gather_cpu_state_dict(
            self._model,
            self._is_rank_zero,
            device=self._device,
        )
        if self._device.type == "cpu":
            # On one rank they are the live weights, and merging works in place.
            weights = {name: weight.clone() for name, weight in weights.items()}
        predictor = weights.pop("predictor", None)
        return {k.removeprefix("decoder."): v for k, v in weights.items()}, predictor

    def _progress(self) -> dict[str, Any]:
        """Where the run is, for those who read its checkpoints."""
        return {
            "steps": self._totals["steps"],
            "epoch": self._epoch + self._step_in_epoch / self._steps_per_epoch,
            "total_flops": self._totals["flops"],
            "total_tokens": self._totals["tokens"],
            "train_seconds": self._totals["seconds"],
        }

    def _write_weights(
        self, weights: dict[str, Tensor], epoch: str, adapter_only: bool
    ) -> None:
        """Hand adapter and, unless only that is wanted, merged weights to the checkpointer."""
        cfg = self._adapter_cfg
        content = {
            training.ADAPTER_KEY: get_adapter_state_dict(weights),
            training.ADAPTER_CONFIG: {
                "r": cfg.lora_rank,
                "lora_alpha": cfg.lora_alpha,
                "target_modules": get_lora_module_names(
                    list(cfg.lora_attn_modules),
                    cfg.get("apply_lora_to_mlp", False),
                    cfg.get("apply_lora_to_output", False),
                ),
                "peft_type": "LORA",
            },
        }
        if not adapter_only:
            content[training.MODEL_KEY] = merge_adapters(
                weights, rank=cfg.lora_rank, alpha=cfg.lora_alpha
            )
        self._checkpointer.save_checkpoint(
            content, epoch=epoch, adapter_only=adapter_only
        )

    def _restore(self, state: dict[str, Any]) -> None:
        """Put everything but the weights back to where the checkpoint was written."""
        self._epoch, self._step_in_epoch = state["epoch"], state["step_in_epoch"]
        self._totals = state["totals"]
        self._best = state["best"]
        training.load_from_full_optimizer_state_dict(
            self._model, self._optimizer, state["optimizer"], self._device
        )
        self._lr_scheduler.load_state_dict(state["lr_scheduler"])
        if self._replay is not None and state["replay"] is not None:
            self._replay.load_state_dict(state["replay"])
        if len(state["random_states"]) == self._world_size:
            set_random_state(state["random_states"][self._rank], self._device)

    def cleanup(self) -> None:
        """Close the log and leave the process group."""
        if self._is_rank_zero:
            self._metric_logger.close()
        dist.destroy_process_group()


@erjepa.config.parse
def recipe_main(cfg: DictConfig) -> None:
    """
    Entry point for the recipe.

    Configurable parameters are read in the following order:
        - Parameters specified in config (a path, or a name such as ``llama3_2_1b_synth``)
        - Overwritten by arguments from the command-line
    """
    erjepa.config.check_keys(cfg, KEYS)
    device = utils.get_device(device=cfg.device)
    init_process_group(device)
    if cfg.get("fsdp_cpu_offload", False):
        training.set_torch_num_threads()
    config.log_config(recipe_name="LoRAFinetuneRecipeDistributedERJEPA", cfg=cfg)

    recipe = LoRAFinetuneRecipeDistributedERJEPA(cfg=cfg)
    recipe.setup(cfg=cfg)
    recipe.train()
    recipe.cleanup()


if __name__ == "__main__":
    sys.exit(recipe_main())
