"""How far the adaptive policy may depart from LRU, so that it finds no less; csrc/adaptive_guard.h does the same.

Beside the cache runs LRU itself, as a list of as many keys as there are blocks: what it would hold and find is known
exactly (set duelling, Qureshi and others 2007, with the whole of one side for a leader). The difference is the policy's
*credit*, in pages:

    credit += found by the policy - found by LRU + TOLERANCE * found by LRU     at every request, bounded from above

*Strays* are cached pages that LRU would have dropped; for each of them LRU holds a page that is missing here. If the
policy had to become LRU now, about ``share`` of those would be missed once more, where share is the share of all pages
that LRU finds lately. So strays have a price, and the policy chooses freely only while

    strays * share * max(0, 1 - gain / SURE_GAIN)  <=  credit          gain: found lately, over LRU's, less 1

else it evicts strays, and while its credit is below zero and there are none, what LRU evicts. That is a bound on the
regret rather than a bet: a policy that gains nothing stays near LRU, one that clearly gains is free.

Knows no ranks, and blocks only as numbers that belong to keys.
"""

from collections import OrderedDict
from collections.abc import Callable

TOLERANCE = 0.004  # of LRU's hits, that may be lost to trials
SURE_GAIN = 0.05
LEAST_SHARE = 0.1  # of the blocks, that credit may always amount to


class Credit:
    def __init__(self) -> None:
        self._found = self._lru_found = self._pages = 0.0  # lately
        self._ever = 0.0  # pages LRU found
        self._price = self._credit = 0.0

    def count(self, found: int, lru_found: int, pages: int, num_blocks: int) -> None:
        """A request of ``pages`` pages found so many of them, and would have found ``lru_found`` under LRU."""
        self._found += found
        self._lru_found += lru_found
        self._pages += pages
        if self._pages > 8.0 * num_blocks + 1000.0:
            self._found *= 0.5
            self._lru_found *= 0.5
            self._pages *= 0.5
        self._ever += lru_found
        share = self._lru_found / (self._pages + 1.0)
        gain = self._found / self._lru_found - 1.0 if self._lru_found > 0.0 else SURE_GAIN
        self._price = share * max(0.0, 1.0 - gain / SURE_GAIN)
        most = max(share, LEAST_SHARE) * num_blocks + TOLERANCE * self._ever
        self._credit = min(most, self._credit + found - lru_found + TOLERANCE * lru_found)

    @property
    def is_spent(self) -> bool:
        return self._credit < 0.0

    def covers(self, num_strays: int) -> bool:
        return num_strays * self._price <= self._credit


class ShadowLRU:
    """The keys LRU would hold, the oldest first, each with the block that holds its page here, if one does."""

    def __init__(self, num_blocks: int) -> None:
        self._block_of: OrderedDict[int, int | None] = OrderedDict()
        self._limit = max(1, num_blocks)

    def __contains__(self, key: int) -> bool:
        return key in self._block_of

    def block_of(self, key: int) -> int | None:
        return self._block_of.get(key)

    def set_block(self, key: int, block: int | None) -> None:
        self._block_of[key] = block

    def use(self, key: int, block: int) -> int | None:
        """``key`` is used now. Returns the block of the one that LRU drops for it, if that has one."""
        dropped = None
        if key not in self._block_of and len(self._block_of) == self._limit:
            _, dropped = self._block_of.popitem(last=False)
        self._block_of[key] = block
        self._block_of.move_to_end(key)
        return dropped

    def oldest(self, may_go: Callable[[int], bool]) -> int | None:
        """The block LRU would evict of those that may go."""
        return next((block for block in self._block_of.values() if block is not None and may_go(block)), None)
