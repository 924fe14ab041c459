"""What a disk can't do at the moment: three circuit breakers (tiers/health.py), and which of them a failure concerns.

disk      it answers with errors: nothing is read or written
writes    the slabs that are there can't be written: it is full below us
growth    no slab can be made: there is no room for one
"""

from kvpager.errors import TierError, TierFull, WrongContent
from kvpager.tiers.disk.extents import Place
from kvpager.tiers.disk.faults import describe_full
from kvpager.tiers.health import Health
from kvpager.types import Clock


class Breakers:
    def __init__(self, clock: Clock) -> None:
        self.disk = Health(clock)
        self.writes = Health(clock, failures_to_open=1)
        self.growth = Health(clock, failures_to_open=1)

    @property
    def state(self) -> str:
        if self.disk.state != "ok":
            return self.disk.state
        for each in (self.writes, self.growth):
            if each.state != "ok":
                return describe_full(each.state.removeprefix("failing: "))
        return "ok"

    def allows_write(self) -> bool:
        return self.writes.allows() and self.disk.allows()

    def stored(self) -> None:
        self.disk.succeeded()
        self.writes.succeeded()

    def blame_for_store(self, place: Place, error: TierError) -> bool:
        """Whether no slab can be made now, which ``growth`` has still to be told."""
        if isinstance(error, WrongContent):
            return False  # it came so
        if not isinstance(error, TierFull):
            self.disk.failed(str(error))
            return False
        if place.used is not None:
            self.writes.failed(str(error))
            return False
        return place.extent.slab is None
