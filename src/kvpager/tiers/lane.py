"""Threads that run pieces of work in the order given. They know nothing of it, and nobody collects it: each piece says
itself that it has ended. The threads are daemons: one that hangs in a system call can't keep the process from ending.
"""

from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Protocol


class Work(Protocol):
    def run(self) -> None:
        """Raises nothing."""
        ...


class Lane:
    """``max_threads``: they start with the first pieces. Any thread may call."""

    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._lock = Lock()

    def put(self, work: Work) -> None:
        self._work.put(work)
        if len(self._threads) < self._max_threads:
            with self._lock:
                if len(self._threads) < self._max_threads:
                    name = f"kvpager {self._name} {len(self._threads) + 1}"
                    thread = Thread(target=self._run, name=name, daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def end(self) -> None:
        for _ in self._threads:
            self._work.put(None)

    def join(self, stop_at: float) -> None:
        """Waits for the threads to end, until ``stop_at`` (of ``time.monotonic``)."""
        for thread in self._threads:
            thread.join(max(0.0, stop_at - monotonic()))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work.run()
