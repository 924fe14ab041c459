"""The adaptive policy of csrc/adaptive.h under the protocol of all policies. What it does: adaptive.py."""

from types import ModuleType
from typing import Any

import numpy as np

from kvpager.errors import InvariantError
from kvpager.eviction.policy import History, Use
from kvpager.types import Clock


class NativeAdaptive:
    name = "adaptive"
    uses_keys = True

    def __init__(self, num_blocks: int, clock: Clock, kernels: ModuleType) -> None:
        self._clock = clock
        self._core: Any = kernels.AdaptivePolicy(num_blocks)

    def below(self, num_blocks: int) -> "NativeAdaptive":
        lower = object.__new__(NativeAdaptive)
        lower._clock = self._clock
        lower._core = self._core.below(num_blocks)
        return lower

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        self._core.enter(blocks, keys, self._clock())

    def hit(self, blocks: np.ndarray) -> None:
        self._core.hit(blocks, self._clock())

    def release(self, blocks: np.ndarray, use: Use) -> None:
        self._core.release(blocks, use.output_tokens, int(use.stop), use.partial_tail, self._clock())

    def offer(self, blocks: np.ndarray) -> None:
        self._core.offer(blocks)

    def withdraw(self, blocks: np.ndarray) -> None:
        self._core.withdraw(blocks)

    def victim(self) -> int | None:
        block: int = self._core.victim(self._clock())
        return None if block < 0 else block

    def leave(self, blocks: np.ndarray) -> None:
        self._core.leave(blocks)

    def resize(self, num_blocks: int) -> None:
        self._core.resize(num_blocks)

    def move(self, source: int, target: int) -> None:
        self._core.move(source, target)

    def history(self, block: int) -> History:
        return History(*self._core.history(block))

    def take_over(self, block: int, history: History) -> None:
        self._core.take_over(block, history.last_used, history.uses, history.kind, self._clock())

    def worth(self, block: int) -> float:
        return self.worth_of(self.history(block))

    def worth_of(self, history: History) -> float:
        worth: float = self._core.worth_of(history.last_used, history.uses, history.kind, self._clock())
        return worth

    def check(self, offered: np.ndarray) -> None:
        if sorted(self._core.offered()) != sorted(offered.tolist()):
            raise InvariantError("the adaptive policy does not offer exactly the evictable blocks")
