"""Tasks: each folder is one, with its records and prompt, its answers and when they are right.

    NAME/dataset.py   ``NAME_dataset``, which builds the pairs, if the task has its own
    NAME/scorer.py    ``TASK``: how an answer is read out of a text, and when it is right

Being here registers it: ``task: NAME`` in a config finds ``TASK``, and
``erjepa.datasets.NAME_dataset`` the builder. Scoring imports no torch.
"""

from pkgutil import iter_modules

from erjepa.tasks.task import Prediction, Task, Verdicts

__all__ = ["Prediction", "Task", "Verdicts", "task_names"]


def task_names() -> list[str]:
    """The folders in this one."""
    return sorted(module.name for module in iter_modules(__path__) if module.ispkg)
