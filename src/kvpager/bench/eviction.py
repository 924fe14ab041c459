"""What the eviction policies themselves cost: operations a second, and that a hundred times the blocks cost no more.

An operation is one block entered, hit, released, offered or evicted (asked for and gone). They come in the pattern of a
pool: conversations of about 25 pages a request that share a system prompt, go on, and end, over a cache that holds some
of them. Only the calls of the policy are timed. The spread of an operation in a batch is not seen: it counts as its
share of the call.
"""

import random
import time
from array import array
from collections.abc import Callable
from functools import reduce

import numpy as np

from kvpager.bench.report import SEED, Result, report
from kvpager.errors import InvariantError
from kvpager.eviction.make import POLICIES, make_policy
from kvpager.eviction.policy import NO_USE

SMALL, LARGE = 1_000, 100_000  # blocks
OPERATIONS = 1_000_000
SYSTEM_PAGES = 4
FIRST_PAGES, TURN_PAGES, LAST_PAGES = 12, 5, 40  # of a conversation: at first, more each turn, at most


def run(quick: bool = False) -> dict[str, object]:
    operations, repeats = (OPERATIONS // 10, 1) if quick else (OPERATIONS, 3)
    at_most = None if quick else 3.0  # a single run's tail is that of the machine
    results = []
    for name in POLICIES:
        small, large = (_measure(name, blocks, operations, repeats) for blocks in (SMALL, LARGE))
        results += [
            Result(f"ops_per_second_{name}", large.per_second, "operations/s", at_least=1e6),
            Result(f"p999_{name}", large.p999 * 1e6, "us"),
            Result(f"p999_ratio_{name}", large.p999 / small.p999, "ratio", at_most=at_most),
            Result(f"longest_call_{name}", large.longest * 1e3, "ms"),
        ]
    return report(
        "eviction",
        results,
        f"{LARGE:,} blocks, ratios to {SMALL:,}",
        checks=["a policy decides alike in the same situation"],
    )


class _Costs:
    """Seconds of calls, and how many operations each was."""

    def __init__(self) -> None:
        self._seconds, self._counts = array("d"), array("l")

    def timed(self, call: Callable[..., object], blocks: np.ndarray, *more: object) -> None:
        begin = time.perf_counter()
        call(blocks, *more)
        self.add(time.perf_counter() - begin, len(blocks))

    def add(self, seconds: float, count: int) -> None:
        if count:
            self._seconds.append(seconds)
            self._counts.append(count)

    def forget(self) -> None:
        del self._seconds[:], self._counts[:]

    def fastest(self, other: "_Costs") -> "_Costs":
        if self._counts != other._counts:
            raise InvariantError("a policy decided otherwise in the same situation")
        found = _Costs()
        found._counts = self._counts
        found._seconds = array("d", map(min, self._seconds, other._seconds))
        return found

    @property
    def num_operations(self) -> int:
        return sum(self._counts)

    @property
    def per_second(self) -> float:
        return self.num_operations / sum(self._seconds)

    @property
    def p999(self) -> float:
        """Of an operation."""
        counts = np.array(self._counts)
        each = np.array(self._seconds) / counts
        order = np.argsort(each)
        return float(each[order][np.searchsorted(np.cumsum(counts[order]), 0.999 * counts.sum())])

    @property
    def longest(self) -> float:
        """Of a call."""
        return max(self._seconds)


def _measure(name: str, num_blocks: int, operations: int, repeats: int) -> _Costs:
    """Of each call the fastest of ``repeats`` runs that are alike to the block: what it costs undisturbed."""
    runs = [_costs(name, num_blocks, operations) for _ in range(repeats)]
    return reduce(_Costs.fastest, runs)


def _costs(name: str, num_blocks: int, operations: int) -> _Costs:
    generator = random.Random(SEED)
    pool = _Pool(name, num_blocks)
    while pool.has_free:
        pool.request(generator)
    for _ in range(num_blocks // 20):  # until the order is that of the policy, not that of filling
        pool.request(generator)
    pool.costs.forget()
    done = 0
    while done < operations:
        done += pool.request(generator)
    return pool.costs


class _Pool:
    """What a cache knows of its pages, as far as its policy is told."""

    def __init__(self, policy: str, num_blocks: int) -> None:
        self._requests = 0
        self._policy = make_policy(policy, num_blocks, lambda: float(self._requests))
        self._free = list(range(num_blocks))
        self._block_of: dict[int, int] = {}
        self._page_in = [0] * num_blocks
        self._parent: dict[int, int] = {}
        self._num_children: dict[int, int] = {}
        self._num_pages = SYSTEM_PAGES
        self._single = np.arange(num_blocks).reshape(-1, 1)
        self._conversations: list[list[int]] = [[] for _ in range(max(8, num_blocks // 20))]
        self.costs = _Costs()

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    def request(self, generator: random.Random) -> int:
        """A turn of some conversation, recent ones more often. Returns how many operations it was."""
        self._requests += 1
        at = int(len(self._conversations) * generator.random() ** 2)
        pages = self._conversations[at]
        if len(pages) >= LAST_PAGES or not pages:
            pages = self._conversations[at] = list(range(SYSTEM_PAGES))
            self._grow(pages, FIRST_PAGES)
        else:
            self._grow(pages, TURN_PAGES)
        policy, costs, block_of = self._policy, self.costs, self._block_of
        cut = next((place for place, page in enumerate(pages) if page not in block_of), len(pages))
        costs.timed(policy.hit, self._blocks(pages[:cut]))
        entered = pages[cut:]
        evicted = 0
        for place, page in enumerate(entered, cut):
            if not self._free:
                self._evict(set(pages))
                evicted += 1
            block_of[page] = block = self._free.pop()
            self._page_in[block] = page
            self._num_children[page] = 0
            if place:
                self._parent[page] = pages[place - 1]
                self._num_children[pages[place - 1]] += 1
        keys = np.array(entered, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        costs.timed(policy.enter, self._blocks(entered), keys)
        costs.timed(policy.release, self._blocks(pages[::-1]), NO_USE)
        leaf = pages[-1]
        if self._num_children[leaf] == 0:
            costs.timed(policy.offer, self._blocks([leaf]))
        return 2 * len(pages) + 1 + 2 * evicted

    def _grow(self, pages: list[int], count: int) -> None:
        pages.extend(range(self._num_pages, self._num_pages + count))
        self._num_pages += count

    def _evict(self, live: set[int]) -> None:
        begin = time.perf_counter()
        block = self._policy.victim()
        if block is None:
            raise InvariantError("a policy found no victim in a full pool")
        self._policy.leave(self._single[block])
        self.costs.add(time.perf_counter() - begin, 1)
        page = self._page_in[block]
        del self._block_of[page], self._num_children[page]
        self._free.append(block)
        parent = self._parent.pop(page, None)
        if parent is not None:
            self._num_children[parent] -= 1
            if self._num_children[parent] == 0 and parent not in live:
                self.costs.timed(self._policy.offer, self._single[self._block_of[parent]])

    def _blocks(self, pages: list[int]) -> np.ndarray:
        return np.array([self._block_of[page] for page in pages], np.int64)
