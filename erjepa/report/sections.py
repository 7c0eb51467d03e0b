"""The sections of a report: a function each, entered here by the decorator ``section``."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from erjepa.report.figures import Figure
from erjepa.report.table import Table

Part = Table | Figure


@dataclass(frozen=True)
class Section:
    """A section.

    Args:
        title (str): its heading.
        build (Callable[..., Iterable[Part]]): makes its parts from the results, a dataset
            unless ``whole``, and the arguments of the config; raises ``Unavailable`` where the
            results do not allow it.
        task (str | None): the only task that it can be made for.
        budgets (bool): whether it needs the experiment to have budgets.
        whole (bool): whether it is about all datasets together.
        by_default (bool): whether a report has it when its config names no sections.
    """

    title: str
    build: Callable[..., Iterable[Part]]
    task: str | None = None
    budgets: bool = False
    whole: bool = False
    by_default: bool = True


SECTIONS: dict[str, Section] = {}


def section(title: str, **needs: object) -> Callable[[Callable], Callable]:
    """Enter a function as the section of its name; arguments as ``Section`` has them."""

    def enter(build: Callable[..., Iterable[Part]]) -> Callable[..., Iterable[Part]]:
        SECTIONS[build.__name__] = Section(title, build, **needs)
        return build

    return enter
