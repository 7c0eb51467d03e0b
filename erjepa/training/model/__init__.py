"""The model of a run: how it is built, sharded and loaded, and which weights are trained."""
