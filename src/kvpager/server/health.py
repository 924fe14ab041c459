"""Whether the server can answer: one word, and why."""

from dataclasses import dataclass
from enum import Enum


class Condition(Enum):
    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"  # no sign of life for longer than the limit; it may come back
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
        return self.condition not in (Condition.FAILED, Condition.STOPPED)

    @property
    def is_ready(self) -> bool:
        return self.condition is Condition.READY
