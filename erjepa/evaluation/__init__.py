"""Evaluation of a model on pairs that it is not trained on: generation, predictions, losses."""
