"""A training run: its data, memory, progress, metrics, signals and checkpoints."""
