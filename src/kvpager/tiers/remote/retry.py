"""Calls again what failed in passing: exponential back-off with full jitter, within the time there is.

The n-th pause is uniform in [0, min(longest, first * 2^n]): processes that failed together don't come back together.
Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvpager.errors import TierError
from kvpager.tiers.remote.object_store import is_passing
from kvpager.types import Clock

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Retry:
    """``tries`` in all. ``first``, ``longest``: seconds. ``jitter`` is uniform in [0, 1)."""

    clock: Clock
    sleep: Callable[[float], None]
    jitter: Callable[[], float]
    tries: int = 3
    first: float = 0.02
    longest: float = 1.0

    def run(
        self, ask: Callable[[list[int], float], Sequence[Answer | TierError]], count: int, seconds: float
    ) -> list[Answer | TierError]:
        """The answers to questions ``0 .. count-1``, within ``seconds``.

        ``ask`` is given the numbers of questions and the seconds it has for them.
        """
        deadline = self.clock() + seconds
        answers = list(ask(list(range(count)), seconds))
        for attempt in range(self.tries - 1):
            failed = [at for at, answer in enumerate(answers) if is_passing(answer)]
            pause = self.jitter() * min(self.longest, self.first * 2**attempt)
            if not failed or self.clock() + pause >= deadline:
                break
            self.sleep(pause)
            for at, answer in zip(failed, ask(failed, deadline - self.clock()), strict=True):
                answers[at] = answer
        return answers
