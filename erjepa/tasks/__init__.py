"""Tasks: how to read an answer out of a generated text, and when it is right."""

from erjepa.tasks.task import Prediction, Task, Verdicts

__all__ = ["Prediction", "Task", "Verdicts"]
