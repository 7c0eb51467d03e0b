"""The config keys that the recipes share, and the files that configs name."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

# Every key that a recipe reads; below replay, stop and validation as well. What a component takes is
# known from its parameters.
_KEYS = """
seed device dtype trainable_dtype output_dir base_model cudnn_deterministic_mode
model tokenizer checkpointer dataset eval_dataset
shuffle batch_size max_seq_len row_length skip_too_long num_workers
loss views num_predictor_tokens predictor_tokens train_predictor_tokens train_on_input
train_end_of_turn log_replay_gradients_every_n_steps
epochs max_steps_per_epoch gradient_accumulation_steps clip_grad_norm
optimizer lr_scheduler
resume_from_checkpoint save_every_n_steps save_adapter_weights_only checkpoint_at_flops
compile enable_activation_checkpointing enable_activation_offloading
custom_sharded_layers fsdp_cpu_offload fsdp_reshard_after_forward
eval_every_n_steps keep_best
task databases eval_split checkpoint_dir base_only merged max_new_tokens eval_batch_size alignment
metric_logger log_every_n_steps log_peak_memory_stats profiler
"""
_REPLAY = """
weight budget selection neighbors neighbor_order fill
capacity on_revisit score_update_rate
address address_dim address_top_k
"""
KEYS = {
    **dict.fromkeys(_KEYS.split()),
    "replay": _REPLAY.split(),
    "stop": ["flops", "tokens", "steps"],
    "validation": ["size", "seed", "generate"],
}


def require_files(cfg: DictConfig) -> None:
    """Fail with the command that gets them where the base model's files are missing.

    Args:
        cfg (DictConfig): config of a recipe.

    Raises:
        FileNotFoundError: naming the key, the path and the ``tune download`` command.
    """
    for key in ("checkpointer.checkpoint_dir", "tokenizer.path"):
        path = OmegaConf.select(cfg, key)
        if path is not None and not Path(path).exists():
            raise FileNotFoundError(
                f"{key}={path} does not exist. Get the base model with\n"
                f"  tune download {cfg.get('base_model', '<repository>')} "
                f"--output-dir {cfg.checkpointer.checkpoint_dir}\n"
                f"or set {key} to where it is."
            )
