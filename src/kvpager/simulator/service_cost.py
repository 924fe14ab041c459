"""What one step of a server costs: a few coefficients, fitted to measured steps or taken from a data sheet.

    seconds(step) = fixed + row * rows
                  + max(weights, token * tokens)      products: streaming the weights once, or arithmetic
                  + kv * kv_tokens                    attention of decoding rows reads their K and V
                  + pair * pairs                      attention of prompts: queries times keys
    or what lower tiers must send for it, where that takes longer: sending overlaps with computing

Knows no scheduler, no memory and no torch. ``fit`` finds coefficients that are not negative, so that a disturbed
measurement can't give a step that costs less the more it does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvpager.errors import ConfigError

_KNEES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # tokens that cost as much as streaming the weights once
_ROUNDS = 4  # of weighing each step by what it costs by the fit before: by what it took, slow ones would count less
_FAR_OFF = 10.0  # a step that took more times its cost than this weighs as one of a tenth of what it took


@dataclass(frozen=True, slots=True)
class StepWork:
    """``rows`` sequences with ``tokens`` new tokens in all; ``kv_tokens``: context that decoding rows read; ``pairs``
    of query and key in the prompts; ``sent_tokens``: context that comes from a lower tier. Numbers, or arrays of one
    length for as many steps at once."""

    rows: float | np.ndarray
    tokens: float | np.ndarray
    kv_tokens: float | np.ndarray = 0.0
    pairs: float | np.ndarray = 0.0
    sent_tokens: float | np.ndarray = 0.0


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds: ``fixed`` a step, ``row`` for each sequence in it, ``weights`` to stream the model once, ``token`` of
    arithmetic, ``kv`` for each token of context read, ``pair`` of query and key, ``sent`` for each token of context
    from a lower tier."""

    fixed: float
    row: float
    weights: float
    token: float
    kv: float
    pair: float
    sent: float = 0.0

    def seconds(self, work: StepWork) -> np.ndarray:
        """Of one step, or of each."""
        products = np.maximum(self.weights, self.token * np.asarray(work.tokens, np.float64))
        attention = self.kv * np.asarray(work.kv_tokens, np.float64) + self.pair * np.asarray(work.pairs, np.float64)
        computed = self.fixed + self.row * np.asarray(work.rows, np.float64) + products + attention
        found: np.ndarray = np.maximum(computed, self.sent * np.asarray(work.sent_tokens, np.float64))
        return found


@dataclass(frozen=True, slots=True)
class Fit:
    """``error``: the median of |model / measured - 1| over the steps that were fitted."""

    costs: CostModel
    error: float


def fit(works: Sequence[StepWork], seconds: Sequence[float]) -> Fit:
    """The coefficients with the least relative error over measured steps. Raises ConfigError for fewer than 6 steps."""
    if len(works) != len(seconds) or len(works) < 6:
        raise ConfigError(f"{len(works)} steps and {len(seconds)} times: give a time for each of at least 6 steps")
    columns = {name: np.array([float(getattr(work, name)) for work in works]) for name in _FITTED}
    times = np.asarray(seconds, np.float64)
    if not (times > 0).all():
        raise ConfigError("a measured step took no time; leave it out")
    found = [_fit_with_knee(columns, times, knee) for knee in _KNEES]
    return min(found, key=lambda each: each[1])[0]


_FITTED = ("rows", "tokens", "kv_tokens", "pairs")


def _fit_with_knee(columns: dict[str, np.ndarray], times: np.ndarray, knee: int) -> tuple[Fit, float]:
    """The fit in which ``knee`` tokens cost as much as the weights, and its mean squared relative error."""
    products = np.maximum(knee, columns["tokens"])
    matrix = np.stack([np.ones_like(times), columns["rows"], products, columns["kv_tokens"], columns["pairs"]], axis=1)
    scale = times
    for _ in range(_ROUNDS):
        weights = _not_negative(matrix / scale[:, None], times / scale)
        scale = np.maximum(matrix @ weights, times / _FAR_OFF)
    errors = (matrix @ weights - times) / scale
    fixed, row, token, kv, pair = weights.tolist()
    costs = CostModel(fixed, row, knee * token, token, kv, pair)
    return Fit(costs, float(np.median(np.abs(matrix @ weights / times - 1)))), float(np.mean(errors**2))


def _not_negative(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Least squares for ``matrix @ x = wanted`` with no x below 0: the worst column is left out until none is."""
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0
    used = list(range(matrix.shape[1]))
    found = np.zeros(matrix.shape[1])
    while used:
        solved = np.linalg.lstsq(matrix[:, used] / scale[used], wanted, rcond=None)[0]
        if solved.min() >= 0:
            found[used] = solved / scale[used]
            return found
        used.pop(int(solved.argmin()))
    return found
