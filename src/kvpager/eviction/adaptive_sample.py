"""Whom the adaptive policy watches to learn: pages drawn by their keys, and the ends of conversations.

Knows blocks only by their keys; csrc/adaptive_sample.h does the same.
"""

from collections import OrderedDict
from dataclasses import dataclass

from kvpager.eviction.adaptive_hazards import NUM_BINS, Hazards, bin_of

_MASK = (1 << 64) - 1
WATCHED_PER_BLOCK = 4  # and remembered conversations
WATCHED_AT_LEAST = 4096
MAX_TURNS = 250


def mix(x: int) -> int:
    """splitmix64 (Steele, Lea and Flood 2014): the hash, and with a counter the random numbers of the policy."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@dataclass(slots=True)
class _Watched:
    node: int
    since: float  # its last use
    seen: float  # the age up to which its watching has been noted
    bin: int  # of age, the one it is listed in


class ReuseSample:
    """One key in 16, as SHARDS samples (Waldspurger and others 2015), while its page is cached and, as a ghost, after.

    Pages wait in a list for each bin of age, in the order in which they came into it, so that a few steps at every
    call keep what is noted of all of them up to date. The oldest is forgotten when there are too many.
    """

    def __init__(self, num_blocks: int) -> None:
        self._limit = WATCHED_PER_BLOCK * num_blocks + WATCHED_AT_LEAST
        self._item_of: dict[int, _Watched | None] = {}  # None: watched before, and live now
        self._bins: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(NUM_BINS)]
        self._turn = 0

    @staticmethod
    def has(key: int) -> bool:
        return mix(key ^ 0x5BD1E995) >> 60 == 0

    def came_back(self, key: int, hazards: Hazards, now: float) -> None:
        """Its page is used again: seen, if it was watched. It is watched anew once it is let go."""
        item = self._item_of.get(key)
        if item is None:
            return
        age = max(0.0, now - item.since)
        hazards.watched(item.node, item.seen, age)
        hazards.used_again(item.node, age)
        del self._bins[item.bin][key]
        self._item_of[key] = None

    def watch(self, key: int, node: int, since: float, age: float, hazards: Hazards, now: float) -> None:
        """From ``age`` on, a page last used at ``since``."""
        if not self.has(key):
            return
        item = self._item_of.get(key)
        if item is not None:
            del self._bins[item.bin][key]
        elif key not in self._item_of and len(self._item_of) == self._limit and not self._forget_oldest(hazards, now):
            return
        self._item_of[key] = _Watched(node, since, age, bin_of(age))
        self._bins[bin_of(age)][key] = None

    def drop_live(self, key: int) -> None:
        """A page left that was never let go: nothing is known of it."""
        if self._item_of.get(key, 0) is None:
            del self._item_of[key]

    def advance(self, steps: int, hazards: Hazards, now: float) -> None:
        """Notes for up to ``steps`` pages that they have been watched into the next bins."""
        for _ in range(steps):
            key = next(iter(self._bins[self._turn]), None)
            item = None if key is None else self._item_of[key]
            if key is None or item is None or bin_of(now - item.since) <= self._turn:
                self._turn = (self._turn + 1) % NUM_BINS
                continue
            self._note(item, hazards, now)
            del self._bins[self._turn][key]
            item.bin = bin_of(now - item.since)
            self._bins[item.bin][key] = None

    @staticmethod
    def _note(item: _Watched, hazards: Hazards, now: float) -> None:
        hazards.watched(item.node, item.seen, now - item.since)
        item.seen = max(item.seen, now - item.since)

    def _forget_oldest(self, hazards: Hazards, now: float) -> bool:
        for waiting in reversed(self._bins):
            if waiting:
                key, _ = waiting.popitem(last=False)
                item = self._item_of.pop(key)
                if item is not None:
                    self._note(item, hazards, now)
                return True
        return False


@dataclass(frozen=True, slots=True)
class Turn:
    """``turns``: how many the conversation has had. ``when``: the last one."""

    turns: int
    when: float


class Conversations:
    """The last full page of each of the latest requests: what a next turn of the same conversation begins with.

    Remembered beyond eviction, so that a conversation is known again, and since when, by whoever comes back to it.
    """

    def __init__(self, num_blocks: int) -> None:
        limit = WATCHED_PER_BLOCK * num_blocks + WATCHED_AT_LEAST
        self._ring: list[tuple[int, Turn] | None] = [None] * limit
        self._place_of: dict[int, int] = {}
        self._next = 0

    def find(self, key: int) -> Turn | None:
        place = self._place_of.get(key)
        entry = None if place is None else self._ring[place]
        return entry[1] if entry else None

    def remember(self, key: int, turn: Turn) -> None:
        self.forget(key)
        oldest = self._ring[self._next]
        if oldest is not None:
            del self._place_of[oldest[0]]
        self._ring[self._next] = key, turn
        self._place_of[key] = self._next
        self._next = (self._next + 1) % len(self._ring)

    def forget(self, key: int) -> None:
        place = self._place_of.pop(key, None)
        if place is not None:
            self._ring[place] = None
