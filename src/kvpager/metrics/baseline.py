"""What share of prompt tokens is usually found: a slow average, which tells a fall from what was never better.

Every token looked up counts, and counts half as much after each half-life of time; so a quiet night changes nothing,
and a single request little. Knows no alerts.
"""

HALF_LIFE_SECONDS = 6 * 3600.0


class Baseline:
    """``min_tokens``: looked up, of the weight that is left, before anything is said."""

    def __init__(self, *, min_tokens: float, half_life: float = HALF_LIFE_SECONDS) -> None:
        self._min_tokens = min_tokens
        self._half_life = half_life
        self._tokens = self._hits = 0.0

    def add(self, tokens: int, hits: int, seconds: float) -> None:
        """``hits`` of ``tokens`` were found in the ``seconds`` since the last call."""
        kept = 0.5 ** (seconds / self._half_life)
        self._tokens = kept * self._tokens + tokens
        self._hits = kept * self._hits + hits

    @property
    def hit_rate(self) -> float | None:
        """None while too little is known."""
        return self._hits / self._tokens if self._tokens >= self._min_tokens else None
