"""How much each tenant may hold on each tier. Knows who pays for what from the partitions; decides no order.

A tenant beyond its quota loses its own cached pages, at once and by the policy's order, until it is within it or has
none left that may go: live and pinned pages stay. So a request that needs more than its tenant's quota runs, and its
pages go as far as they exceed it when they are let go of.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from kvpager.cache.retained_pages import RetainedPages
from kvpager.config import format_size
from kvpager.config.quotas import check_quota, quota_bytes
from kvpager.eviction.partitioned import Partitioned
from kvpager.types import TierKind

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache

MAX_QUOTAS = 1024


@dataclass(frozen=True, slots=True)
class Quota:
    """``capacity``: bytes, a text such as "2GiB", or a share such as "10%" of each tier; None: as much as there is."""

    capacity: int | str | None
    weight: float

    def blocks(self, num_blocks: int, block_bytes: int) -> int:
        """How many of a tier's blocks that is."""
        return _blocks(self.capacity, num_blocks, block_bytes)


@lru_cache(maxsize=4 * MAX_QUOTAS)
def _blocks(capacity: int | str | None, num_blocks: int, block_bytes: int) -> int:
    return quota_bytes(capacity, num_blocks * block_bytes) // block_bytes


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """``blocks``: what the tenant pays for, by tier; ``quota``: what it may, where it has one."""

    blocks: dict[TierKind, int]
    bytes: int  # on the device
    weight: float = 1.0
    quota: dict[TierKind, int] | None = None

    def __str__(self) -> str:
        limit = "" if self.quota is None else f" of {self.quota[TierKind.DEVICE]}"
        return f"{self.blocks[TierKind.DEVICE]}{limit} blocks ({format_size(self.bytes)})"


class Quotas:
    """Of one cache."""

    def __init__(self, cache: "PagedCache", pages: RetainedPages) -> None:
        self._cache = cache
        self._pages = pages
        self._quotas: dict[str, Quota] = {}
        self.dropped = 0  # pages of the device

    def set(self, tenant: str, capacity: int | str | None, weight: float) -> str:
        """Why it is refused, or nothing. Raises ConfigError for what is no size or weight."""
        check_quota(capacity, weight)
        quota = Quota(capacity, float(weight))
        if tenant not in self._quotas and len(self._quotas) >= MAX_QUOTAS:
            return f"{MAX_QUOTAS} tenants have quotas, which is as many as may"
        self._quotas[tenant] = quota
        self._pages.partitioned().set_weight(tenant, quota.weight)
        for _, book in self._pages.books():
            if isinstance(book.policy, Partitioned):
                book.policy.set_weight(tenant, quota.weight)
        return ""

    def enforce(self) -> None:
        """What tenants hold beyond their quotas goes, as far as it may."""
        if not self._quotas:
            return
        cache, policy = self._cache, self._pages.partitioned()
        for tenant, quota in self._quotas.items():
            if quota.capacity is None:
                continue
            used = policy.used(tenant)
            if used:
                most = quota.blocks(cache.pool.num_blocks, cache.layout.block_bytes)
                while policy.used(tenant) > most and (block := policy.victim_of(tenant)) is not None:
                    cache._reclaimer.evict(block)
                self.dropped += used - policy.used(tenant)
            for tier, book in self._pages.books():
                if isinstance(book.policy, Partitioned) and book.policy.used(tenant):
                    most = quota.blocks(book.num_slots, tier.page_bytes)
                    while book.policy.used(tenant) > most and (key := book.first_of(tenant)) is not None:
                        tier.forget([key])

    def usage(self) -> dict[str, TenantUsage]:
        """By tenant: of all who hold something or have a quota, once partitions are in use."""
        if not self._pages.is_partitioned:
            return {}
        cache, device = self._cache, self._pages.partitioned()
        books = [(tier, book, book.policy) for tier, book in self._pages.books()]
        names = {*self._quotas, *device.tenants()}
        usage = {}
        for name in names:
            held = {TierKind.DEVICE: device.used(name)}
            held |= {tier.kind: policy.used(name) for tier, _, policy in books if isinstance(policy, Partitioned)}
            quota = self._quotas.get(name)
            most = None
            if quota is not None and quota.capacity is not None:
                most = {TierKind.DEVICE: quota.blocks(cache.pool.num_blocks, cache.layout.block_bytes)}
                most |= {tier.kind: quota.blocks(book.num_slots, tier.page_bytes) for tier, book, _ in books}
            weight = 1.0 if quota is None else quota.weight
            usage[name] = TenantUsage(held, held[TierKind.DEVICE] * cache.layout.block_bytes, weight, most)
        return usage
