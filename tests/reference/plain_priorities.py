"""Prioritized selection by its definition: slots are drawn one at a time without replacement."""

import itertools


def chances_of_lists(scores: list[float], exponent: float, count: int) -> dict:
    """Return the probability of every list of ``count`` distinct slots."""
    weights = [score**exponent for score in scores]
    chances = {}
    for drawn in itertools.permutations(range(len(scores)), count):
        chance, left = 1.0, sum(weights)
        for slot in drawn:
            chance *= weights[slot] / left
            left -= weights[slot]
        chances[drawn] = chance
    return chances
