"""What sections choose from results: methods by what they do, datasets, values of seeds."""

from collections.abc import Collection, Mapping, Sequence

from erjepa.report.figures import MOST_LOOKS
from erjepa.report.results import Result, Results, Unavailable


def methods_of(results: Results, methods: Sequence[str] | None) -> list[str]:
    """``methods``, or all of the experiment.

    Raises:
        ValueError: if one is not among the experiment's.
    """
    for method in methods or []:
        if method not in results.methods:
            raise ValueError(
                f"report: method {method!r} is none of {', '.join(results.methods)}"
            )
    return list(methods or results.methods)


def replays(results: Results, method: str) -> bool:
    """Whether a method replays stored pairs."""
    set_to = results.overrides(method)
    return (
        set_to.get("replay.weight") != 0
        and set_to.get("replay.selection") != "current_batch"
    )


def role(results: Results, method: str) -> str | None:
    """``SFT`` (neither JEPA loss nor replay), ``LLM-JEPA`` (no replay) or ``ER-JEPA``.

    Told by what the method sets; None: it replays, though not stored pairs.
    """
    set_to = results.overrides(method)
    if set_to.get("replay.weight") == 0:
        return "SFT" if set_to.get("loss.jepa_weight") == 0 else "LLM-JEPA"
    return "ER-JEPA" if replays(results, method) else None


def find_method(results: Results, role_of: str, method: str | None = None) -> str:
    """``method`` if it is given, else the first one that plays a role.

    Args:
        results (Results): of the experiment.
        role_of (str): as ``role`` names it.
        method (str | None): a method's name.

    Returns:
        str: name of the method.

    Raises:
        ValueError: if ``method`` is not among the experiment's.
        Unavailable: if none plays the role.
    """
    if method is not None:
        return methods_of(results, [method])[0]
    for name in results.methods:
        if role(results, name) == role_of:
            return name
    raise Unavailable(f"no method of the experiment is {role_of}")


def main_methods(results: Results, methods: Sequence[str] | None) -> list[str]:
    """``methods``, or the first of each role, or all if they play fewer than two roles."""
    if methods is not None:
        return methods_of(results, methods)
    found = []
    for name in ("SFT", "LLM-JEPA", "ER-JEPA"):
        try:
            found.append(find_method(results, name))
        except Unavailable:
            continue
    return found if len(found) > 1 else few_methods(results, None)


def few_methods(results: Results, methods: Sequence[str] | None) -> list[str]:
    """``methods``, or all of the experiment, if one figure can tell them apart.

    Raises:
        Unavailable: if they are not named and too many.
    """
    chosen = methods_of(results, methods)
    if methods is None and len(chosen) > MOST_LOOKS:
        raise Unavailable(
            f"{len(chosen)} methods are too many for one figure; name at most "
            f"{MOST_LOOKS} as `methods`"
        )
    return chosen


def scored_datasets(results: Results) -> list[str]:
    """Datasets that something is scored of.

    Raises:
        Unavailable: if there is none.
    """
    scored = [name for name in results.datasets if results.task(name) is not None]
    if not scored:
        raise Unavailable("nothing is scored yet")
    return scored


def accuracies(found: Mapping[int, Result]) -> dict[int, float]:
    """Seed to accuracy."""
    return {seed: row.accuracy for seed, row in found.items()}


def seeds_note(results: Results, seeds: Mapping[str, Collection[int]]) -> str:
    """A sentence on how many seeds stand behind each method's value.

    Args:
        results (Results): of the experiment.
        seeds (Mapping[str, Collection[int]]): method to the seeds it has.
    """
    planned = len(results.seeds)
    short = {name: len(one) for name, one in seeds.items() if len(one) < planned}
    if not short:
        return "One seed." if planned == 1 else f"Over {planned} seeds."
    counts = ", ".join(f"{name} {count}" for name, count in short.items())
    return f"Over {planned} seeds; fewer are finished of {counts}."
