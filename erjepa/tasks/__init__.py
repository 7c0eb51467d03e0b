"""Tasks: each folder contains the dataset and the scorer of one task.

    NAME/dataset.py   ``NAME_dataset``, which builds the pairs; optional
    NAME/scorer.py    ``TASK``: extracts the answer from a text and decides whether it is right

A folder registers itself: ``task: NAME`` in a config finds ``TASK``, and
``erjepa.datasets.NAME_dataset`` the builder. Scoring does not import torch.
"""

from pkgutil import iter_modules

from erjepa.tasks.task import Prediction, Task, Verdicts

__all__ = ["Prediction", "Task", "Verdicts", "task_names"]


def task_names() -> list[str]:
    """Return the names of the tasks in this package, sorted."""
    return sorted(module.name for module in iter_modules(__path__) if module.ispkg)
