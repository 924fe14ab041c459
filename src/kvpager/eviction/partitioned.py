"""A policy over policies: by priority first, then by who has more than a fair share, then by the chosen policy.

    priority 0  .. lowest goes first ..  100
       tenant a   tenant b                    within a priority: the tenant with the most blocks per weight
          |          |
       a policy   a policy                    within a tenant: the chosen policy, over that partition's blocks alone

A block is in the partition of its last use. Inside a partition it has a number of its own, so that what a policy keeps
is as long as its partition, and all of them together stay within a multiple of the pool. A block that changes its
partition starts anew there. It knows no quotas: whoever does asks ``used`` and ``victim_of``.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import repeat

import numpy as np

from kvpager.errors import InvariantError
from kvpager.eviction.policy import DEFAULT_PRIORITY, EvictionPolicy, JudgingPolicy, Use

MAX_PARTITIONS = 256  # tenants beyond share one partition for each priority, unless they were given a weight
_LEAST = 16  # blocks a partition has room for when it is made
_NOBODY = ""


def alike(policy: EvictionPolicy, make: Callable[[str, int], EvictionPolicy], num_blocks: int) -> EvictionPolicy:
    """A policy like this one over so many blocks, judging by what it has learned where it does judge."""
    return policy.below(num_blocks) if isinstance(policy, JudgingPolicy) else make(policy.name, num_blocks)


class _Partition:
    """The blocks of one tenant and priority. ``block_of[n]``: the block that ``policy`` calls n, or None."""

    __slots__ = ("block_of", "free", "num_offered", "number", "policy", "priority", "tenant")

    def __init__(self, priority: int, tenant: str, policy: EvictionPolicy, size: int, number: int) -> None:
        self.priority, self.tenant, self.policy, self.number = priority, tenant, policy, number
        self.block_of: list[int | None] = [None] * size
        self.free = list(range(size - 1, -1, -1))
        self.num_offered = 0

    @property
    def num_blocks(self) -> int:
        return len(self.block_of) - len(self.free)

    def take(self, block: int) -> int:
        """A number for one more block."""
        if not self.free:
            size = len(self.block_of)
            self.policy.resize(2 * size)
            self.block_of += [None] * size
            self.free += range(2 * size - 1, size - 1, -1)
        local = self.free.pop()
        self.block_of[local] = block
        return local

    def give_back(self, local: int) -> None:
        self.policy.leave(np.array([local]))
        self.block_of[local] = None
        self.free.append(local)

    def shrink(self) -> list[tuple[int, int]]:
        """Gives up room that is not used; returns the blocks that have another number now, and that."""
        size = max(_LEAST, 2 * self.num_blocks)
        low = [local for local in self.free if local < size]
        renamed = []
        for source in range(size, len(self.block_of)):
            block = self.block_of[source]
            if block is not None:
                target = low.pop()
                self.policy.move(source, target)
                self.block_of[target] = block
                renamed.append((block, target))
        del self.block_of[size:]
        self.free = low
        self.policy.resize(size)
        return renamed


class Partitioned:
    """``make``: the chosen policy over so many blocks. ``first`` may have been at work on the blocks ``members``, of
    which ``offered`` may go: it goes on as the partition of default priority and of no tenant."""

    def __init__(
        self,
        num_blocks: int,
        make: Callable[[int], EvictionPolicy],
        first: EvictionPolicy | None = None,
        members: Iterable[int] = (),
        offered: Iterable[int] = (),
    ) -> None:
        self._make = make
        sample = first or make(_LEAST)
        self.name, self.uses_keys = sample.name, sample.uses_keys
        self._parts: dict[tuple[int, str], _Partition] = {}
        self._part_of: list[_Partition | None] = [None] * num_blocks
        self._local_of = [0] * num_blocks
        self._key_of = [0] * num_blocks
        self._tenant_of: list[str | None] = [None] * num_blocks  # who pays
        self._is_offered = bytearray(num_blocks)
        self._pending: dict[int, int] = {}  # blocks that nobody let go of yet, and how often they were hit
        self._used: Counter[str] = Counter()
        self._weights: dict[str, float] = {}
        self._num_made = 0
        if first is not None:
            self._adopt(first, num_blocks, members, offered)

    def _adopt(self, policy: EvictionPolicy, num_blocks: int, members: Iterable[int], offered: Iterable[int]) -> None:
        part = self._add(DEFAULT_PRIORITY, _NOBODY, policy, num_blocks)
        taken = set(members)
        part.free = [local for local in range(num_blocks - 1, -1, -1) if local not in taken]
        for block in taken:
            part.block_of[block] = block
            self._part_of[block], self._local_of[block] = part, block
            self._charge(block, _NOBODY)
        for block in offered:
            self._is_offered[block] = True
            part.num_offered += 1

    # -- tenants ------------------------------------------------------------------------------------------------

    def set_weight(self, tenant: str, weight: float) -> None:
        """A tenant of twice the weight may have twice as much."""
        self._weights[tenant] = weight

    def charge(self, blocks: Iterable[int], tenants: Iterable[str]) -> None:
        """Who pays for these until they are let go of: from then on it is whoever did that."""
        for block, tenant in zip(blocks, tenants, strict=True):
            self._charge(block, tenant)

    def used(self, tenant: str) -> int:
        """Blocks a tenant pays for, live ones included."""
        return self._used[tenant]

    def tenant_of(self, block: int) -> str:
        return self._tenant_of[block] or _NOBODY

    def tenants(self) -> list[str]:
        return [tenant for tenant, used in self._used.items() if used]

    def victim_of(self, tenant: str) -> int | None:
        """The offered block of one tenant that should go first."""
        parts = [part for part in self._parts.values() if part.tenant == tenant and part.num_offered]
        return None if not parts else self._first_of(min(parts, key=lambda part: part.priority))

    def assign(self, block: int, priority: int, tenant: str) -> None:
        """A block has another priority or tenant from now on, without having been used."""
        old = self._part_of[block]
        if old is None:
            return  # it will be told when it is let go of
        part = self._part(priority, tenant)
        if old is not part:
            offered = bool(self._is_offered[block])
            self.release(np.array([block]), Use(priority=priority, tenant=tenant))
            if offered:
                self.offer(np.array([block]))

    # -- the protocol -------------------------------------------------------------------------------------------

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        for block, key in zip(blocks.tolist(), keys.tolist() if len(keys) else repeat(0), strict=False):
            self._forget(block)
            self._key_of[block] = key
            self._pending[block] = 0

    def hit(self, blocks: np.ndarray) -> None:
        self._set_offered(blocks, False)
        for block in blocks.tolist():
            if block in self._pending:
                self._pending[block] += 1
        for part, locals_ in self._grouped(blocks):
            part.policy.hit(locals_)

    def release(self, blocks: np.ndarray, use: Use) -> None:
        if len(blocks) == 0:
            return
        part = self._part(use.priority, use.tenant)
        for block in blocks.tolist():
            self._put(block, part)
            self._charge(block, use.tenant)
        part.policy.release(np.array([self._local_of[block] for block in blocks.tolist()]), use)

    def offer(self, blocks: np.ndarray) -> None:
        self._set_offered(blocks, True)
        for part, locals_ in self._grouped(blocks):
            part.policy.offer(locals_)

    def withdraw(self, blocks: np.ndarray) -> None:
        self._set_offered(blocks, False)
        for part, locals_ in self._grouped(blocks):
            part.policy.withdraw(locals_)

    def victim(self) -> int | None:
        best, best_rank = None, (101, 0.0, 0)
        for part in self._parts.values():
            if part.num_offered:
                share = self._used[part.tenant] / self._weights.get(part.tenant, 1.0)
                rank = (part.priority, -share, part.number)
                if best is None or rank < best_rank:
                    best, best_rank = part, rank
        return None if best is None else self._first_of(best)

    def leave(self, blocks: np.ndarray) -> None:
        for block in blocks.tolist():
            self._forget(block)

    def resize(self, num_blocks: int) -> None:
        more = num_blocks - len(self._part_of)
        self._part_of = self._part_of[:num_blocks] + [None] * more
        self._local_of = self._local_of[:num_blocks] + [0] * more
        self._key_of = self._key_of[:num_blocks] + [0] * more
        self._tenant_of = self._tenant_of[:num_blocks] + [None] * more
        self._is_offered = self._is_offered[:num_blocks] + bytearray(max(0, more))
        self._save_room()

    def move(self, source: int, target: int) -> None:
        if source == target:
            return
        part = self._part_of[source]
        if part is not None:
            part.block_of[self._local_of[source]] = target
        if source in self._pending:
            self._pending[target] = self._pending.pop(source)
        self._part_of[target], self._part_of[source] = part, None
        self._local_of[target] = self._local_of[source]
        self._key_of[target] = self._key_of[source]
        self._tenant_of[target], self._tenant_of[source] = self._tenant_of[source], None
        self._is_offered[target], self._is_offered[source] = self._is_offered[source], False

    def check(self, offered: np.ndarray) -> None:
        if sorted(offered.tolist()) != [block for block, is_offered in enumerate(self._is_offered) if is_offered]:
            raise InvariantError("a policy does not offer exactly the evictable blocks")
        if self._used + Counter() != Counter(tenant for tenant in self._tenant_of if tenant is not None):
            raise InvariantError("the blocks of the tenants are counted wrong")
        for part in self._parts.values():
            mine = {local: block for local, block in enumerate(part.block_of) if block is not None}
            for local, block in mine.items():
                if self._part_of[block] is not part or self._local_of[block] != local:
                    raise InvariantError(f"block {block} is in another partition than the one that names it")
            if sorted(part.free) != [local for local in range(len(part.block_of)) if local not in mine]:
                raise InvariantError("the free numbers of a partition are wrong")
            may_go = [local for local, block in mine.items() if self._is_offered[block]]
            if part.num_offered != len(may_go):
                raise InvariantError("the offered blocks of a partition are counted wrong")
            part.policy.check(np.array(may_go, np.int64))

    # -- inside -------------------------------------------------------------------------------------------------

    def _part(self, priority: int, tenant: str) -> _Partition:
        part = self._parts.get((priority, tenant))
        if part is None and len(self._parts) >= MAX_PARTITIONS:
            self._parts = {name: each for name, each in self._parts.items() if each.num_blocks}
            if len(self._parts) >= MAX_PARTITIONS and tenant not in self._weights:
                tenant = _NOBODY
                part = self._parts.get((priority, tenant))
        if part is None:
            part = self._add(priority, tenant, self._make(_LEAST), _LEAST)
        return part

    def _add(self, priority: int, tenant: str, policy: EvictionPolicy, size: int) -> _Partition:
        self._num_made += 1
        part = self._parts[priority, tenant] = _Partition(priority, tenant, policy, size, self._num_made)
        return part

    def _put(self, block: int, part: _Partition) -> None:
        """A block is in this partition from now on, not offered where it comes from another."""
        old = self._part_of[block]
        if old is part:
            return
        if old is not None:
            self._take_out(block, old)
        room = len(part.block_of)
        local = part.take(block)
        self._part_of[block], self._local_of[block] = part, local
        key = np.array([self._key_of[block]] if self.uses_keys else [], np.uint64)
        part.policy.enter(np.array([local]), key)
        for _ in range(self._pending.pop(block, 0)):
            part.policy.hit(np.array([local]))
        if len(part.block_of) > room:
            self._save_room()

    def _take_out(self, block: int, part: _Partition) -> None:
        if self._is_offered[block]:
            self._is_offered[block] = False
            part.num_offered -= 1
        part.give_back(self._local_of[block])
        self._part_of[block] = None

    def _forget(self, block: int) -> None:
        part = self._part_of[block]
        if part is not None:
            self._take_out(block, part)
        self._pending.pop(block, None)
        self._charge(block, None)

    def _charge(self, block: int, tenant: str | None) -> None:
        before = self._tenant_of[block]
        if before == tenant:
            return
        if before is not None:
            self._used[before] -= 1
            if not self._used[before]:
                del self._used[before]
        if tenant is not None:
            self._used[tenant] += 1
        self._tenant_of[block] = tenant

    def _save_room(self) -> None:
        """Partitions that were larger once give up what they don't use, when all have room for too much together."""
        if sum(len(part.block_of) for part in self._parts.values()) > 4 * len(self._part_of) + _LEAST * MAX_PARTITIONS:
            for part in self._parts.values():
                for block, local in part.shrink():
                    self._local_of[block] = local

    def _first_of(self, part: _Partition) -> int | None:
        local = part.policy.victim()
        return None if local is None else part.block_of[local]

    def _set_offered(self, blocks: np.ndarray, value: bool) -> None:
        for block in blocks.tolist():
            part = self._part_of[block]
            if part is not None and self._is_offered[block] != value:
                self._is_offered[block] = value
                part.num_offered += 1 if value else -1

    def _grouped(self, blocks: np.ndarray) -> list[tuple[_Partition, np.ndarray]]:
        """The blocks of each partition by their numbers there, in the order given."""
        found: dict[_Partition, list[int]] = {}
        for block in blocks.tolist():
            part = self._part_of[block]
            if part is not None:
                found.setdefault(part, []).append(self._local_of[block])
        return [(part, np.array(numbers)) for part, numbers in found.items()]
