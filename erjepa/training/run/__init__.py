"""A run of many steps: its data, memory, progress, metrics, signals and checkpoints."""
