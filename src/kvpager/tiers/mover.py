"""Threads that move bytes. They run jobs in the order given and hand them back; they know no pages and no books.

    bookkeeping thread    submit(lane, job) ........... collect() -> jobs that have ended
    worker thread                   job.run()

A lane is a queue with threads of its own, so that a tier that hangs holds up no other, and loads don't wait behind
stores. The threads are daemons: one that hangs in a system call can't keep the process from ending.
"""

from collections.abc import Mapping
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Protocol


class Job(Protocol):
    """``run`` is called in a worker thread; ``error`` is what it raised."""

    error: BaseException | None

    def run(self) -> None: ...


class Mover(Protocol):
    """Runs jobs beside the bookkeeping, whose thread makes every call."""

    @property
    def num_open(self) -> int:
        """Jobs that were submitted and not collected yet."""
        ...

    def submit(self, lane: str, job: Job) -> None: ...

    def collect(self, timeout: float = 0.0) -> list[Job]:
        """Jobs that have ended since the last call; waits up to ``timeout`` seconds for the first of them."""
        ...

    def close(self, timeout: float) -> None:
        """Lets the threads end. Those still running after ``timeout`` seconds are abandoned. REQUIRES: all collected,
        or nobody cares any more."""
        ...


class ThreadMover:
    """``lanes``: how many threads each lane has at most. They start with the first jobs."""

    def __init__(self, lanes: Mapping[str, int]) -> None:
        self._lanes = {name: _Lane(name, count) for name, count in lanes.items()}
        self._ended: SimpleQueue[Job] = SimpleQueue()
        self.num_open = 0

    def submit(self, lane: str, job: Job) -> None:
        self.num_open += 1
        self._lanes[lane].put(job, self._ended)

    def collect(self, timeout: float = 0.0) -> list[Job]:
        ended: list[Job] = []
        try:
            if timeout > 0 and self.num_open:
                ended.append(self._ended.get(timeout=timeout))
            while True:
                ended.append(self._ended.get_nowait())
        except Empty:
            pass
        self.num_open -= len(ended)
        return ended

    def close(self, timeout: float) -> None:
        stop_at = monotonic() + timeout
        for lane in self._lanes.values():
            lane.end()
        for lane in self._lanes.values():
            lane.join(stop_at)


class _Lane:
    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def put(self, job: Job, ended: "SimpleQueue[Job]") -> None:
        self._jobs.put(job)
        if len(self._threads) < self._max_threads:  # one that hangs must not be what this job waits for
            name = f"kvpager {self._name} {len(self._threads) + 1}"
            thread = Thread(target=self._work, args=(ended,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def join(self, stop_at: float) -> None:
        for thread in self._threads:
            thread.join(max(0.0, stop_at - monotonic()))

    def _work(self, ended: "SimpleQueue[Job]") -> None:
        while (job := self._jobs.get()) is not None:
            run_job(job)
            ended.put(job)


def run_job(job: Job) -> None:
    """Runs a job and notes what it raises: whatever happens, the books must learn that it has ended."""
    try:
        job.run()
    except BaseException as error:
        job.error = error
