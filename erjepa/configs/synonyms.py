"""Other names of keys, for the errors about unknown ones."""

from dataclasses import fields

from erjepa.configs.schema import KEYS, Stop
from erjepa.replay import ReplaySettings

# Names that other projects and the paper use for a key.
_OTHER_NAMES = {
    "optimizer.lr": "lr learning_rate",
    "optimizer.weight_decay": "weight_decay",
    "lr_scheduler.num_warmup_steps": "warmup_steps num_warmup_steps",
    "model.lora_rank": "rank r lora_r lora_rank",
    "model.lora_alpha": "alpha lora_alpha",
    "model.lora_dropout": "dropout lora_dropout",
    "epochs": "num_epochs num_train_epochs",
    "stop.steps": "max_steps",
    "stop.patience": "early_stopping_patience",
    "batch_size": "micro_batch_size per_device_train_batch_size",
    "gradient_accumulation_steps": "grad_accum",
    "clip_grad_norm": "max_grad_norm grad_clip",
    "dtype": "precision torch_dtype bf16 fp16",
    "max_seq_len": "max_length max_seq_length",
    "save_every_n_steps": "save_steps",
    "keep_last_n": "save_total_limit keep_last_n_checkpoints",
    "eval_every_n_steps": "eval_steps",
    "log_every_n_steps": "logging_steps",
    "metric_logger": "report_to",
    "checkpointer.checkpoint_dir": "model_name_or_path",
    "enable_activation_checkpointing": "gradient_checkpointing",
    "validation.size": "val_size val_set_size val_split test_size",
    "train_on_turns": "masking_strategy mask_history roles_to_train assistant_only_loss",
    "resume_from_checkpoint": "resume",
    "ema_decay": "ema averaging_decay",
    "loss.lm_weight": "gamma lm_weight",
    "loss.jepa_weight": "lambda lbd jepa_weight",
    "loss.temperature": "temperature tau",
    "loss.distance": "distance",
    "loss.jepa_every": "jepa_every jepa_ratio",
    "loss.direction": "direction reverse_pred",
    "predictor_position": "front_pred",
    "num_predictor_tokens": "k",
    "replay.weight": "beta replay_weight",
    "replay.budget": "R replay_budget",
    "replay.neighbors": "kappa",
    "replay.capacity": "M memory_size",
    "replay.score_update_rate": "eta",
    "replay.address_dim": "S",
    "replay.address_top_k": "K",
}
SYNONYMS = {
    # Keys of a section, written without the name of the section.
    **{
        f.name: f"replay.{f.name}" for f in fields(ReplaySettings) if f.name not in KEYS
    },
    **{f.name: f"stop.{f.name}" for f in fields(Stop)},
    **{name: key for key, names in _OTHER_NAMES.items() for name in names.split()},
}
