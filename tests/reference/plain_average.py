"""The average of the weights by its equation, number by number, in float64."""


def plain_average(steps: list[list[float]], decay: float) -> list[float]:
    """Averages of weights; ``steps[t]`` are those after t updates."""
    average = [float(weight) for weight in steps[0]]
    for t in range(1, len(steps)):
        d = min(decay, (1 + t) / (10 + t))
        for i in range(len(average)):
            average[i] = d * average[i] + (1 - d) * steps[t][i]
    return average
