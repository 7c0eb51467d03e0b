"""Sections of a report, and the decorator ``section`` that registers them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, ValidationInfo

from erjepa.studies.report.figures import NUM_STYLES, Figure
from erjepa.studies.report.results import Results, Unavailable
from erjepa.studies.report.table import Table
from erjepa.studies.results import Weights

Part = Table | Figure
Parts = Iterator[Part]


def _one_of(kind: str) -> AfterValidator:
    """Check that a name is one of the experiment's ``methods`` or ``datasets``."""

    def check(name: str, info: ValidationInfo) -> str:
        known = getattr(info.context, kind)
        if name not in known:
            raise ValueError(
                f"{kind[:-1]} {name!r} is none of {', '.join(known)}; with {kind} of your "
                f"own, set report=[] for the usual sections"
            )
        return name

    return AfterValidator(check)


# Types of the arguments of sections that name a method or a dataset of the experiment.
Method = Annotated[str, _one_of("methods")]
Dataset = Annotated[str, _one_of("datasets")]


@dataclass(frozen=True)
class Section:
    """A section: the function that builds it, and its requirements.

    ``build`` takes the results, the methods, further arguments of the config, and ``dataset``
    unless it covers all datasets. It raises ``Unavailable`` if the results are insufficient.
    """

    build: Callable[..., Parts]
    title: str  # heading
    task: str | None = None  # the only task that it supports; None: all
    budgets: bool = False  # whether the experiment must have budgets
    # Whether its default methods are the first of each role
    main: bool = False
    # Whether it draws a curve per method: its default methods must be few, and exclude those
    # with ``stop.tokens_of``
    curves: bool = False
    by_default: bool = False  # whether it is in reports whose config names no sections

    @property
    def arguments(self) -> dict[str, Any]:
        """Names and types of the arguments that a config may set."""
        hints = get_type_hints(self.build, include_extras=True)
        types = {
            name: hints.get(name, Any) for name in signature(self.build).parameters
        }
        types |= {"title": str, "weights": Weights, "methods": list[Method]}
        if types.pop("dataset", None) is not None:
            types["datasets"] = list[Dataset]
        del types["results"]
        return dict(sorted(types.items()))

    def datasets(
        self, results: Results, names: Sequence[str] | None = None
    ) -> Sequence[str | None]:
        """Return the datasets to build parts for; ``[None]``: one build for all together."""
        if "dataset" not in signature(self.build).parameters:
            return [None]
        # If no dataset has the task, all are returned, so that ``parts`` reports why each fails.
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
        """Build the tables and figures, named after the section and the dataset."""
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
        chosen = self._methods(results) if methods is None else list(methods)
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
        if (self.main or self.curves) and len(chosen) > NUM_STYLES:
            raise Unavailable(
                f"{len(chosen)} methods are too many for one figure; name at most "
                f"{NUM_STYLES} as `methods`"
            )
        return chosen


SECTIONS: dict[str, Section] = {}


def section(title: str, **needs: Any) -> Callable[[Callable], Callable]:
    """Register the decorated function as a section of its name; ``needs`` as in ``Section``."""

    def enter(build: Callable[..., Parts]) -> Callable[..., Parts]:
        SECTIONS[build.__name__] = Section(build, title, **needs)
        return build

    return enter
