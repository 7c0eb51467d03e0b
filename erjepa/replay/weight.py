"""The weight of replayed pairs: fixed, or adapted to how much is forgotten."""

from erjepa.replay.state import WeightState

_RATE = 0.1  # weight of a new loss in its running mean


class ReplayWeight:
    """beta, fixed or adaptive between beta_min (``minimum``) and beta_max (``maximum``).

    With ``auto`` it is the ratio of the losses of the replayed and of the new pairs:

    .. math::
        \\beta_{t+1} = \\min\\Big(\\max\\Big(\\frac{m^r_t}{m^n_t}, \\beta_{\\min}\\Big),
        \\beta_{\\max}\\Big), \\qquad m_t = 0.9\\, m_{t-1} + 0.1\\, \\ell_t,

    where :math:`\\ell^n, \\ell^r` are the cross-entropy per label of the new and of the replayed
    pairs of a step. Until the first replay beta is 1, clamped to the bounds. Forgotten pairs have a
    larger loss, so they get more weight and are learned again, and the ratio falls.
    """

    def __init__(self, weight: float | str, minimum: float, maximum: float) -> None:
        self._fixed = None if isinstance(weight, str) else weight
        self._minimum, self._maximum = minimum, maximum
        self._means: tuple[float, float] | None = None  # new, replayed

    @property
    def is_auto(self) -> bool:
        return self._fixed is None

    @property
    def value(self) -> float:
        """beta of the next step."""
        if self._fixed is not None:
            return self._fixed
        new, replayed = self._means or (1.0, 1.0)
        ratio = replayed / new if new > 0 else 1.0
        return min(max(ratio, self._minimum), self._maximum)

    def update(self, new: float, replayed: float) -> None:
        """Update the running means with the losses of a step that replayed pairs."""
        mean_new, mean_replayed = self._means or (new, replayed)
        self._means = (
            mean_new + _RATE * (new - mean_new),
            mean_replayed + _RATE * (replayed - mean_replayed),
        )

    @property
    def state(self) -> WeightState | None:
        """The running means, if beta adapts."""
        return WeightState(self._means) if self.is_auto else None

    def restore(self, state: WeightState | None) -> None:
        """Continue from another state, if beta adapts."""
        if self.is_auto and state is not None:
            self._means = state.means
