"""Training: the model, one step of it, and the run of many."""
