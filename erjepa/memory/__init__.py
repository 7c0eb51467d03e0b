"""What is in the memory of a run: ``python -m erjepa.memory RUN``."""
