"""How long a prompt takes to compute on this machine, and how much of one fits into a time.

seconds(n tokens) = a n + b n^2          products of the weights, and attention to all tokens before
seconds(t tokens behind N) = (a + 2 b N) t
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillRate:
    """``linear``: seconds a token. ``quadratic``: seconds a token and token before it, halved."""

    linear: float
    quadratic: float

    @classmethod
    def of(cls, short: tuple[int, float], long: tuple[int, float]) -> "PrefillRate":
        """From (tokens, seconds) of two prompts of different lengths."""
        (n, s), (m, t) = short, long
        quadratic = max(0.0, (t / m - s / n) / (m - n))
        return cls(max(0.0, s / n - quadratic * n), quadratic)

    def seconds(self, tokens: int, behind: int = 0) -> float:
        return tokens * (self.linear + self.quadratic * (tokens + 2 * behind))

    def fitting(self, seconds: float, behind: int, candidates: list[int]) -> int:
        """The largest of ``candidates`` that takes no longer, and at least the smallest."""
        return max((each for each in candidates if self.seconds(each, behind) <= seconds), default=min(candidates))
