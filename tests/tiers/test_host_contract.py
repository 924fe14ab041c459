from kvpager.eviction.lru import LRU
from kvpager.tiers.host import HostStore
from kvpager.tiers.tier import LowerTier
from kvpager.types import ContentKey
from tests.contracts.held_pages import HeldPagesContract
from tests.contracts.lower_tier import PAGE_BYTES


class TestHostStore(HeldPagesContract):
    def make(self, num_pages: int) -> HostStore:
        return HostStore(PAGE_BYTES, num_pages, LRU(num_pages))

    def damage(self, tier: LowerTier, key: ContentKey) -> None:
        slot = tier.prepare_load(key)
        assert slot is not None
        assert slot.memory is not None
        slot.memory[100] ^= 4
        tier.complete_load(slot, None)
