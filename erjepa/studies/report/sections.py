"""Sections of a report: functions that the decorator ``section`` enters by their names."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from erjepa.studies.report.figures import MOST_LOOKS, Figure
from erjepa.studies.report.results import Results, Unavailable
from erjepa.studies.report.table import Table

Part = Table | Figure
Parts = Iterator[Part]


@dataclass(frozen=True)
class Section:
    """What makes a section, and what it needs.

    ``build`` takes the results, a dataset unless it is about all of them together, the methods and
    further arguments of the config; it raises ``Unavailable`` where the results do not allow it.
    """

    build: Callable[..., Parts]
    title: str  # its heading
    task: str | None = None  # the only task that it can be made for
    budgets: bool = False  # whether the experiment must have budgets
    # Whether, with no methods named, it is about the first of each role
    main: bool = False
    # Whether it draws a curve for each method, so that, with none named, there must be few, and
    # those that stop at another's tokens are left out
    curves: bool = False
    by_default: bool = True  # whether a report has it when its config names no sections

    @property
    def arguments(self) -> list[str]:
        """What a config may say about it, besides its name."""
        own = {*signature(self.build).parameters, "title", "weights"} - {"results"}
        return sorted({"datasets" if name == "dataset" else name for name in own})

    def datasets(
        self, results: Results, names: Sequence[str] | None = None
    ) -> Sequence[str | None]:
        """The datasets that it has parts for, of ``names``; None alone: all together."""
        for name in names or []:
            if name not in results.datasets:
                raise ValueError(
                    f"report: dataset {name!r} is none of {', '.join(results.datasets)}"
                )
        if "dataset" not in signature(self.build).parameters:
            return [None]
        # Of the datasets of other tasks nothing is said, unless there are no others.
        fitting = [d for d in results.datasets if self.task in (None, results.task(d))]
        return names or fitting or results.datasets

    def parts(
        self,
        results: Results,
        dataset: str | None = None,
        methods: Sequence[str] | None = None,
        weights: str | None = None,
        **arguments: Any,
    ) -> list[Part]:
        """Its tables and figures, named after it and the dataset; Unavailable, or ValueError."""
        of_which = ""
        if weights is not None:
            results = results.of_weights(weights)
            of_which = f" Of {'averaged' if weights == 'ema' else weights} weights."
        if results.runs.empty:
            raise Unavailable("nothing is scored yet")
        if self.budgets and not results.budgets:
            raise Unavailable("the experiment has no compute budgets (key `budgets`)")
        if dataset is not None:
            task = results.task(dataset)
            if task is None:
                raise Unavailable(f"nothing is scored of {dataset} yet")
            if self.task not in (None, task):
                raise Unavailable(f"{dataset} is {task}; this needs {self.task}")
            arguments["dataset"] = dataset
            arguments.pop("datasets", None)
        chosen = self._methods(results) if methods is None else results.named(methods)
        made = self.build(results, methods=chosen, **arguments)
        return [
            replace(
                part,
                name="_".join(filter(None, (self.build.__name__, part.name, dataset))),
                caption=part.caption + of_which,
            )
            for part in made
        ]

    def _methods(self, results: Results) -> list[str]:
        chosen = results.main_methods() if self.main else results.methods
        if self.curves:
            chosen = [m for m in chosen if "stop.tokens_of" not in results.own(m)]
        if (self.main or self.curves) and len(chosen) > MOST_LOOKS:
            raise Unavailable(
                f"{len(chosen)} methods are too many for one figure; name at most "
                f"{MOST_LOOKS} as `methods`"
            )
        return chosen


SECTIONS: dict[str, Section] = {}


def section(title: str, **needs: Any) -> Callable[[Callable], Callable]:
    """Enter a function as the section of its name; arguments as ``Section`` has them."""

    def enter(build: Callable[..., Parts]) -> Callable[..., Parts]:
        SECTIONS[build.__name__] = Section(build, title, **needs)
        return build

    return enter
