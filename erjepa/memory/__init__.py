"""What is in the memory of a run: ``erjepa memory RUN``."""
