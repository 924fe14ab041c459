"""The slabs of a folder as workers make them, make them shorter than planned, or lose them: what the books learn of it.

Runs in the bookkeeping thread, at the border of a step; the workers only leave their marks on slabs and extents.
"""

from kvpager.tiers.disk.extents import Extents
from kvpager.tiers.disk.slab import Slab
from kvpager.tiers.health import Health
from kvpager.tiers.slot_book import SlotBook


class Growth:
    """``health``: whether slabs can be made."""

    def __init__(self, extents: Extents, book: SlotBook, health: Health) -> None:
        self._extents = extents
        self._book = book
        self._health = health

    def stop(self, reason: str) -> None:
        """No slab can be made now: slots of planned ones are not given out."""
        self._health.failed(reason)
        for extent in self._extents.planned():
            self._book.withdraw(extent.slots)

    def tick(self) -> list[Slab]:
        """Takes over what workers found out. Slabs that are lost, whose pages are forgotten."""
        lost = []
        for extent in list(self._extents):
            slab = extent.slab
            if slab is not None and slab.lost:
                self._book.forget_slots(extent.slots)
                lost.append(slab)
                extent.slab, extent.is_settled = None, False
            elif slab is not None and not extent.is_settled:
                extent.is_settled = True
                if slab.shape.slots < extent.count:
                    self._extents.shorten(extent)
                    self.stop("ENOSPC: a slab became shorter than it was planned")
                else:
                    self._health.succeeded()
                    self._book.restore(range(self._extents.num_slots))
        if self._health.state != "ok" and (planned := self._extents.planned()) and self._health.allows():
            self._book.restore(planned[0].slots)  # the trial
        return lost
