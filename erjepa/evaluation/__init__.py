"""What a model does with pairs that it is not trained on: answers, predictions, losses."""
