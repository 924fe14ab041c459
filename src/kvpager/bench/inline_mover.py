"""Transfers made at once by the thread that asks for them, and timed: what is left of its time is bookkeeping."""

import time

from kvpager.tiers.mover import Job, run_job


class InlineMover:
    """A Mover. ``seconds``: of the processor, that jobs took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ended: list[Job] = []

    @property
    def num_open(self) -> int:
        return len(self._ended)

    def submit(self, lane: str, job: Job) -> None:
        begin = time.thread_time()
        run_job(job)
        self.seconds += time.thread_time() - begin
        self._ended.append(job)

    def collect(self, timeout: float = 0.0) -> list[Job]:
        ended, self._ended = self._ended, []
        return ended

    def close(self, timeout: float) -> None:
        pass
