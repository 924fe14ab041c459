"""Whether the server can answer: one word, and why."""

from dataclasses import dataclass
from enum import Enum

HUNG_FACTOR = 6  # times the limit after which nobody waits for a stalled engine any more


class Condition(Enum):
    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"  # no sign of life for longer than the limit; it may come back by itself
    HUNG = "hung"  # no sign of life for six times the limit; only a restart helps
    DRAINING = "draining"  # finishes what it has, takes nothing more
    FAILED = "failed"  # the engine's thread has died; only a restart helps
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Health:
    condition: Condition
    reason: str = ""

    @property
    def is_alive(self) -> bool:
        """For liveness: a supervisor need not restart it."""
        return self.condition not in (Condition.HUNG, Condition.FAILED, Condition.STOPPED)

    @property
    def is_ready(self) -> bool:
        """For readiness: requests may be sent to it."""
        return self.condition is Condition.READY


def of_silence(seconds: float, limit: float) -> Health:
    """Of an engine that is open and has given no sign of life for so long. ``limit``: what is still usual."""
    if seconds <= limit:
        return Health(Condition.READY)
    condition = Condition.HUNG if seconds > HUNG_FACTOR * limit else Condition.STALLED
    return Health(condition, f"the engine has not finished a step for {seconds:.0f} s")
