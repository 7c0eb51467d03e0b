"""Training: the model, a single step, and a whole run."""
