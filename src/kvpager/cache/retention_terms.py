"""What may be asked of a cache's retentions, and what is answered. Plain values; cache/retention.py does the work."""

from dataclasses import dataclass
from enum import Enum

from kvpager.cache.quotas import TenantUsage
from kvpager.errors import ConfigError


class Verdict(Enum):
    ACCEPTED = "accepted"
    CLIPPED = "clipped"  # a part of it; the answer says which, and why not the rest
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Retention:
    """What is wanted for the tokens ``start .. stop-1`` of a sequence; ``stop`` None: as far as it goes.

    Every page that holds one of them is meant; a pin holds the pages before as well. Raises ConfigError where nothing
    is wanted or a value is out of range.
    """

    start: int = 0
    stop: int | None = None
    pin: bool = False
    priority: int | None = None
    seconds: float | None = None
    ttl: float | None = None

    def __post_init__(self) -> None:
        if self.start < 0 or (self.stop is not None and self.stop <= self.start):
            raise ConfigError(f"a retention of the tokens {self.start} to {self.stop} covers none; give start < stop")
        if not self.pin and self.priority is None and self.ttl is None:
            raise ConfigError("a retention that wants nothing: give pin, priority or ttl")
        if self.priority is not None and not 0 <= self.priority <= 100:
            raise ConfigError(f"a priority is between 0 (goes first) and 100, not {self.priority}")
        for name, value, least in (("seconds", self.seconds, "above 0"), ("ttl", self.ttl, "at least 0")):
            if value is not None and not (0 < value < float("inf") or (value == 0 and name == "ttl")):
                raise ConfigError(f"{name} of a retention must be {least} and finite, not {value}")


@dataclass(frozen=True, slots=True)
class Retained:
    """The answer: it holds for the tokens ``start .. stop-1``, which are ``pages`` whole pages, or why it does not.

    ``id``: for ``release``; None where it was refused.
    """

    id: int | None
    verdict: Verdict
    reason: str
    start: int = 0
    stop: int = 0
    pages: int = 0


@dataclass(frozen=True, slots=True)
class RetentionStatistics:
    """``pages``: that some retention names, there or not, one for each layer group. ``pinned`` of ``max_pinned``.
    ``dropped``: by times to live, by quotas, and pinned ones because nothing else was left. ``tenants``: who is known.
    """

    retentions: int
    pages: int
    pinned: int
    max_pinned: int
    dropped_by_ttl: int
    dropped_by_quota: int
    pins_yielded: int
    tenants: dict[str, TenantUsage]

    def __str__(self) -> str:
        tenants = "".join(f"; {name or '(no tenant)'} {each}" for name, each in sorted(self.tenants.items()))
        return (
            f"retain   {self.retentions} retentions of {self.pages} pages, {self.pinned} of {self.max_pinned} pinned; "
            f"dropped {self.dropped_by_ttl} by ttl, {self.dropped_by_quota} by quota, {self.pins_yielded} pins{tenants}"
        )
