"""The model of a run: built, sharded, with its trainable weights, on its devices."""
