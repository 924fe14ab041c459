from pathlib import Path

import pytest

from kvpager.tiers.disk.store import DiskStore
from kvpager.tiers.tier import LowerTier
from kvpager.types import ContentKey
from tests.contracts.held_pages import HeldPagesContract
from tests.contracts.lower_tier import PAGE_BYTES
from tests.tiers.disk.pages import open_store


class TestDiskStore(HeldPagesContract):
    direct: bool | str = False

    @pytest.fixture(autouse=True)
    def folder(self, fast_folder: Path) -> None:
        self._folder = fast_folder

    def make(self, num_pages: int) -> DiskStore:
        return open_store(self._folder / "kv", num_pages * 3 * PAGE_BYTES, PAGE_BYTES, direct=self.direct)

    def damage(self, tier: LowerTier, key: ContentKey) -> None:
        assert isinstance(tier, DiskStore)
        index = tier.book.slot(key)
        assert index is not None
        extent = tier._extents.of(index)
        assert extent.slab is not None
        path, at = self._folder / "kv" / str(extent.slab.name), extent.slab.shape.slot_at(index - extent.first) + 100
        found = bytearray(path.read_bytes())
        found[at] ^= 4
        path.write_bytes(found)


class TestDiskStoreBesideThePageCache(TestDiskStore):
    direct = "auto"
