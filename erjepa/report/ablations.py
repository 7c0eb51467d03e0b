"""Sections on ablations: addressing, capacity, weight of the JEPA loss and its predictor."""

from collections.abc import Iterator, Sequence

from erjepa.analysis.statistics import spread
from erjepa.report.accuracy import accuracy_table
from erjepa.report.compute import cost_table, draw_epochs
from erjepa.report.drawing import draw_grid
from erjepa.report.figures import COLUMN, Figure, canvas
from erjepa.report.results import Results, Unavailable
from erjepa.report.select import accuracies, methods_of, replays, seeds_note
from erjepa.report.table import Column, Table

WEIGHT, TOKENS = "loss.jepa_weight", "num_predictor_tokens"


def addressing(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table]:
    """Sparse and dense addresses, all else equal."""
    if methods is None:
        methods = _varied(results, "replay.address")
    found = {
        method: accuracies(results.final(dataset, method))
        for method in methods_of(results, methods)
    }
    if not any(found.values()):
        raise Unavailable(f"no run of these methods on {dataset} has reached its end")
    note = seeds_note(results, found)
    caption = f"Sparse and dense addresses on {dataset}. {note}"
    yield accuracy_table(f"addressing_{dataset}", caption, found)


def capacity(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy over epochs, and cost, by capacity of the memory."""
    if methods is None:
        methods = _varied(results, "replay.capacity")
    chosen = methods_of(results, methods)
    found = {method: results.final(dataset, method) for method in chosen}
    found = {method: seeds for method, seeds in found.items() if seeds}
    if not found:
        raise Unavailable(f"no run of these methods on {dataset} has reached its end")
    if picture := draw_epochs(results, dataset, chosen):
        yield Figure(
            f"capacity_{dataset}",
            f"Accuracy on {dataset} over epochs by capacity of the memory: means and one "
            "sample standard deviation. Runs are not matched in compute. "
            f"{seeds_note(results, found)}",
            picture,
        )
    caption = f"Capacity of the memory on {dataset}, at the end of runs."
    yield cost_table(results, f"capacity_{dataset}", caption, found)


def lambda_k(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy by weight of the JEPA loss and number of predictor tokens."""
    values = {}
    for method in methods_of(results, methods):
        set_to = results.overrides(method)
        if WEIGHT in set_to and TOKENS in set_to and replays(results, method):
            place = set_to[WEIGHT], set_to[TOKENS]
            if place in values:
                raise Unavailable(
                    f"two methods have λ = {place[0]} and k = {place[1]}; "
                    "name those of the grid as `methods`"
                )
            values[place] = results.final(dataset, method)
    weights, tokens = ([*dict.fromkeys(sorted(p[i] for p in values))] for i in (0, 1))
    if len(values) < 2 or not any(values.values()):
        raise Unavailable(f"no two runs set both {WEIGHT} and {TOKENS}")
    grid = [
        [
            spread([row.accuracy for row in seeds.values()])
            if (seeds := values.get((weight, k)))
            else None
            for k in tokens
        ]
        for weight in weights
    ]
    means = [[one and one.mean for one in row] for row in grid]
    best = max(
        (mean, (i, j))
        for i, row in enumerate(means)
        for j, mean in enumerate(row)
        if mean is not None
    )[1]
    picture, (axes,) = canvas(COLUMN, 0.6 + 0.3 * len(weights))
    draw_grid(
        axes,
        means,
        [["—" if m is None else f"{100 * m:.2f}" for m in row] for row in means],
        [str(weight) for weight in weights],
        [str(k) for k in tokens],
        best,
    )
    axes.set(xlabel="predictor tokens k", ylabel="weight λ")
    names = {f"λ = {w}, k = {k}": seeds for (w, k), seeds in values.items()}
    caption = (
        f"Accuracy (%) on {dataset} by weight λ of the JEPA loss and number k of predictor "
        f"tokens. {seeds_note(results, names)}"
    )
    yield Figure(f"lambda_k_{dataset}", caption, picture)
    yield Table(
        f"lambda_k_{dataset}",
        caption,
        [Column("λ"), *(Column(f"k = {k}", scale=100) for k in tokens)],
        [[str(weight), *row] for weight, row in zip(weights, grid, strict=True)],
    )


def _varied(results: Results, key: str) -> list[str]:
    """Methods that set ``key``, and those that differ from one of them in nothing else."""

    def rest(method: str) -> dict:
        return {k: v for k, v in results.overrides(method).items() if k != key}

    setting = [
        m for m in results.methods if key in (results.config["methods"][m] or {})
    ]
    chosen = [m for m in results.methods if rest(m) in [rest(one) for one in setting]]
    if len(chosen) < 2:
        raise Unavailable(f"no two methods differ in {key}")
    return chosen
