"""A policy that judges by what is known beforehand: how likely the content of a page is to be used again."""

from contextlib import AbstractContextManager
from unittest.mock import patch

import numpy as np

from kvpager.errors import InvariantError
from kvpager.eviction import make
from kvpager.eviction.policy import History, Use


class KnownWorth:
    """The first byte of a page's key is its kind, and the higher that, the more it is worth; uses break ties.

    ``clock``: counts the changes of all policies below one another, as their seconds.
    """

    name = "known_worth"
    uses_keys = True

    def __init__(self, num_blocks: int, clock: list[int] | None = None) -> None:
        self._clock = [0] if clock is None else clock
        self._known: dict[int, History] = {}
        self._offered: set[int] = set()
        self.hits = 0

    def _now(self) -> float:
        self._clock[0] += 1
        return float(self._clock[0])

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        for block, key in zip(blocks.tolist(), keys.tolist(), strict=True):
            if block in self._known:
                raise InvariantError("a page enters where another one is")
            self._known[block] = History(self._now(), 1, key & 0xFF)

    def hit(self, blocks: np.ndarray) -> None:
        self.withdraw(blocks)
        for block in blocks.tolist():
            self.hits += 1
            known = self._known[block]
            self._known[block] = History(self._now(), known.uses + 1, known.kind)

    def release(self, blocks: np.ndarray, use: Use) -> None:
        for block in blocks.tolist():
            known = self._known[block]
            self._known[block] = History(self._now(), known.uses, known.kind)

    def offer(self, blocks: np.ndarray) -> None:
        self._offered.update(blocks.tolist())

    def withdraw(self, blocks: np.ndarray) -> None:
        self._offered.difference_update(blocks.tolist())

    def victim(self) -> int | None:
        return min(self._offered, key=self._rank, default=None)

    def _rank(self, block: int) -> tuple[float, float]:
        return self.worth(block), self._known[block].last_used

    def leave(self, blocks: np.ndarray) -> None:
        self.withdraw(blocks)
        for block in blocks.tolist():
            del self._known[block]

    def resize(self, num_blocks: int) -> None:
        pass

    def move(self, source: int, target: int) -> None:
        self._known[target] = self._known.pop(source)
        if source in self._offered:
            self._offered.remove(source)
            self._offered.add(target)

    def check(self, offered: np.ndarray) -> None:
        if sorted(self._offered) != offered.tolist():
            raise InvariantError("a policy does not offer exactly the evictable blocks")

    def below(self, num_blocks: int) -> "KnownWorth":
        return KnownWorth(num_blocks, self._clock)

    def history(self, block: int) -> History:
        return self._known[block]

    def take_over(self, block: int, history: History) -> None:
        if block not in self._known:
            raise InvariantError("a history comes for a page that has not entered")
        self._known[block] = history

    def worth(self, block: int) -> float:
        return self.worth_of(self._known[block])

    def worth_of(self, history: History) -> float:
        return history.kind + history.uses / 1000


def registered() -> AbstractContextManager[object]:
    """While it lasts, ``open_cache(eviction="known_worth")`` can be asked for."""
    return patch.dict(make._MAKERS, {"known_worth": lambda num_blocks, clock: KnownWorth(num_blocks)})
