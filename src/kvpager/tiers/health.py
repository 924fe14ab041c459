"""Whether a tier is worth asking: a circuit breaker. Knows neither the tier nor what it was asked; one thread only.

    closed ---- failures_to_open failures in a row ----> open ---- its wait is over ----> half-open
      ^                                                   ^                                  |
      |                                                   +------- the trial failed ---------+  the wait doubles
      +------------------------------- it succeeded -----------------------------------------+

Half-open, one call is let through as a trial. A trial of which nothing is heard is given up after one more wait, so
that whoever forgets to report cannot keep a tier shut for ever.
"""

from kvpager.types import Clock


class Health:
    """``retry_after``: seconds of the first wait; it doubles with every trial that fails, up to ``longest_wait``."""

    def __init__(
        self, clock: Clock, failures_to_open: int = 5, retry_after: float = 1.0, longest_wait: float = 60.0
    ) -> None:
        assert failures_to_open > 0
        assert 0 < retry_after <= longest_wait
        self._clock = clock
        self._failures_to_open = failures_to_open
        self._first_wait = self._wait = retry_after
        self._longest_wait = longest_wait
        self._failures = 0  # in a row
        self._reason = ""  # of the last failure
        self._next_trial: float | None = None  # None: closed
        self._is_tried = False
        self.opened = 0  # how often it went from closed to open

    @property
    def is_open(self) -> bool:
        """Whether ``allows`` would say no. Asking changes nothing."""
        return self._next_trial is not None and self._clock() < self._next_trial

    @property
    def state(self) -> str:
        """ "ok", or "failing: " and the last reason."""
        return "ok" if self._next_trial is None else f"failing: {self._reason}"

    def allows(self) -> bool:
        """Whether a call may be made now. Half-open, a yes is the trial: say how it went."""
        if self._next_trial is None:
            return True
        now = self._clock()
        if now < self._next_trial:
            return False
        self._is_tried = True
        self._next_trial = now + self._wait
        return True

    def succeeded(self) -> None:
        self._failures = 0
        self._wait = self._first_wait
        self._next_trial = None
        self._is_tried = False

    def failed(self, reason: str) -> None:
        """``reason`` is shown to the operator: no keys and no secrets."""
        self._reason = reason
        self._failures += 1
        if self._next_trial is None:
            if self._failures < self._failures_to_open:
                return
            self.opened += 1
        elif self._is_tried or self._clock() >= self._next_trial:
            self._wait = min(2 * self._wait, self._longest_wait)
        else:
            return  # a call that began before it opened: nothing new
        self._is_tried = False
        self._next_trial = self._clock() + self._wait
