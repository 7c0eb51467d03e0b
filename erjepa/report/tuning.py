"""The section of a grid that chooses settings on validation pairs."""

from collections.abc import Iterator, Sequence

from erjepa.analysis.statistics import spread
from erjepa.report.results import Results, Unavailable
from erjepa.report.select import accuracies, methods_of, role, seeds_note
from erjepa.report.table import Column, Table

_ROLES = ("SFT", "LLM-JEPA", "ER-JEPA")


def chosen(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table]:
    """Of each role the setting with the best mean on validation pairs, and all its trials."""
    names = methods_of(results, methods)
    found = {method: results.final(dataset, method) for method in names}
    rows = [row for seeds in found.values() for row in seeds.values()]
    if tested := sorted({row.method for row in rows if row.split != "validation"}):
        raise Unavailable(
            f"{', '.join(tested)}: scored on the test pairs, which nothing may be chosen by "
            "(score_on: validation)"
        )
    trials = {
        name: {
            method: accuracies(found[method])
            for method in names
            if role(results, method) == name
            and len(found[method]) == len(results.seeds)
        }
        for name in _ROLES
    }
    if not any(trials.values()):
        raise Unavailable(f"no setting has all its seeds scored on {dataset}")
    note = seeds_note(results, found)
    best = {
        name: max(settings, key=lambda m: spread(list(settings[m].values())).mean)  # noqa: B023
        for name, settings in trials.items()
        if settings
    }
    accuracy = Column("Validation accuracy (%)", scale=100)
    yield Table(
        f"chosen_{dataset}",
        f"The setting of each method with the best mean accuracy on validation pairs of "
        f"{dataset}, which are held out of the training pairs; test pairs take no part. {note}",
        [
            *(Column("Method"), Column("Chosen"), accuracy, Column("Trials")),
            Column("Overrides"),
        ],
        [
            [
                *(name, method, spread(list(trials[name][method].values()))),
                *(len(trials[name]), _overrides(results, method)),
            ]
            for name, method in best.items()
        ],
    )
    yield Table(
        f"trials_{dataset}",
        f"Every setting on validation pairs of {dataset}. {note}",
        [
            *(Column("Method"), Column("Setting"), accuracy),
            *(Column("Min", scale=100), Column("Max", scale=100), Column("Chosen")),
        ],
        [
            [
                *(name, method, one, one.least, one.most),
                "yes" if method == best[name] else "",
            ]
            for name, settings in trials.items()
            for method, seeds in settings.items()
            for one in [spread(list(seeds.values()))]
        ],
    )


def _overrides(results: Results, method: str) -> str:
    """What the method sets, as one types it."""
    set_to = results.config["methods"][method] or {}
    return " ".join(f"{key}={value}" for key, value in set_to.items())
