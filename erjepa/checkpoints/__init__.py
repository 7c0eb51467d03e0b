"""What a run writes to disk: checkpoints, memories, model cards, locks; and disk space."""
