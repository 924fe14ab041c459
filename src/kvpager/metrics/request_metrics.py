"""What is measured of requests as a client sees them. Called from the engine's thread and the event loop's alike."""

from kvpager.engine.request import FinishReason


class RequestMetrics:
    """Counts and times of requests, in seconds since each came."""

    def came(self) -> None:
        """A request was taken in."""

    def refused(self, reason: str) -> None:
        """``reason``: one of a fixed few words."""

    def first_token(self, seconds: float) -> None:
        """Of a choice, since its request came."""

    def next_token(self, seconds: float) -> None:
        """Since the token before it of the same choice."""

    def ended(self, reason: FinishReason, prompt_tokens: int, generated_tokens: int, seconds: float) -> None:
        """A choice."""
