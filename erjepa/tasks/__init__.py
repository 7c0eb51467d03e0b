"""Tasks: each folder is one, with its records and prompt, its answers and when they are right.

    NAME/dataset.py   builds the pairs (none for ``exact_match``, which scores any)
    NAME/scorer.py    ``TASK``: how an answer is read out of a text, and when it is right

``task: NAME`` in a config finds ``TASK``; scoring imports no torch.
"""

from erjepa.tasks.task import Prediction, Task, Verdicts

__all__ = ["Prediction", "Task", "Verdicts"]
