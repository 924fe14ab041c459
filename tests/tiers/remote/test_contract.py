from kvpager.tiers.remote.store import RemoteStore
from kvpager.tiers.tier import LowerTier
from kvpager.types import ContentKey
from tests.contracts.held_pages import HeldPagesContract
from tests.contracts.lower_tier import PAGE_BYTES
from tests.tiers.remote.fakes import DictObjects, Hand, make_store


class TestRemoteStore(HeldPagesContract):
    def make(self, num_pages: int) -> RemoteStore:
        self.objects = DictObjects()
        return make_store(self.objects, Hand(), PAGE_BYTES)

    def damage(self, tier: LowerTier, key: ContentKey) -> None:
        name = b"test/" + key.hex().encode()
        found = bytearray(self.objects.objects[name])
        found[-100] ^= 4
        self.objects.objects[name] = bytes(found)
