"""The same run on any number of ranks, and after a kill: weights, collectives, checkpoints."""
