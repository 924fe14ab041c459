"""What is in the slots of a tier, and who uses them. SlotBook writes it; the order of dropping reads it."""

from collections import defaultdict
from dataclasses import dataclass, field

from kvpager.tiers.tier import Page
from kvpager.types import ContentKey


@dataclass(frozen=True, slots=True)
class Slots:
    """``page_of``, ``slot_of``: pages that are there or on their way; the latter are in ``writing``. ``readers``:
    transfers that read a slot, ``holds``: sequences that use it where it lies; a slot without any is in neither."""

    page_of: dict[int, Page] = field(default_factory=dict)
    slot_of: dict[ContentKey, int] = field(default_factory=dict)
    writing: set[int] = field(default_factory=set)
    readers: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    holds: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def found(self, key: ContentKey) -> int | None:
        """Where a page is that can be found."""
        slot = self.slot_of.get(key)
        return None if slot in self.writing else slot

    def all_found(self) -> list[int]:
        """In the order in which their pages came."""
        return [slot for slot in self.slot_of.values() if slot not in self.writing]

    def is_busy(self, slot: int) -> bool:
        return slot in self.readers or slot in self.holds
