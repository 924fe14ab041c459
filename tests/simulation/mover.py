"""A clock that moves when it is told to, and worker threads that run when the simulation says so."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from kvpager.tiers.mover import Job, run_job

NEVER = float("inf")


class VirtualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class _Pending:
    job: Job
    lane: str
    runs_at: float  # its bytes are moved
    ends_at: float  # the bookkeeping hears of it
    has_run: bool = False


class SimulatedMover:
    """Jobs of all lanes run in any order, at any time between ``submit`` and ``collect``; some hang.

    ``delay``: says for a lane how long until a job's bytes are moved, NEVER for one that hangs. A job ends up to as
    long again after that, so that what the bookkeeping does meanwhile meets bytes that have moved and are not
    completed.
    """

    def __init__(self, clock: VirtualClock, generator: random.Random, delay: Callable[[str], float]) -> None:
        self._clock = clock
        self._random = generator
        self._delay = delay
        self._pending: list[_Pending] = []
        self.is_working = False  # inside a worker thread: the only place where tiers may read and write
        self.is_closed = False
        self.num_run = self.num_hung = 0

    @property
    def num_open(self) -> int:
        return len(self._pending)

    def submit(self, lane: str, job: Job) -> None:
        assert not self.is_closed, "a job for a mover that was closed"
        delay = self._delay(lane)
        self.num_hung += delay == NEVER
        runs_at = self._clock.now + delay
        self._pending.append(_Pending(job, lane, runs_at, runs_at + self._random.random() * delay))

    def collect(self, timeout: float = 0.0) -> list[Job]:
        if timeout > 0 and self._pending:
            self._clock.now += min(timeout, max(0.0, min(each.ends_at for each in self._pending) - self._clock.now))
        self.run_due()
        ended = [each for each in self._pending if each.has_run and each.ends_at <= self._clock.now]
        self._random.shuffle(ended)
        self._pending = [each for each in self._pending if each not in ended]
        return [each.job for each in ended]

    def run_due(self) -> None:
        """Moves the bytes of all jobs whose time has come."""
        due = [each for each in self._pending if not each.has_run and each.runs_at <= self._clock.now]
        for each in sorted(due, key=lambda each: each.runs_at):
            each.has_run = self.is_working = True
            run_job(each.job)
            self.is_working = False
            self.num_run += 1

    def release(self) -> None:
        """Whatever hangs goes on."""
        for each in self._pending:
            if each.runs_at == NEVER:
                each.runs_at = each.ends_at = self._clock.now

    def close(self, timeout: float) -> None:
        self._clock.now += timeout if any(each.runs_at == NEVER for each in self._pending) else 0.0
        self.is_closed = True
