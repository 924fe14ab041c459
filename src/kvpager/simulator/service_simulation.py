"""A server as discrete events: requests come, start where memory allows, advance step by step, and end.

    come -> [queue] -> start -> prompt in pieces -> one token a step -> end
              ^                                          |
              +------------- stopped (no page) ----------+    computed again from what is known

One pass: as in engine/scheduler.py, the first of the queue start while their known tokens fit; then one step computes a
token for each request that decodes and fills the token budget with pieces of prompts, in the order of arrival. Where no
page is left to grow into, the request that came last is stopped. While all decode and nothing changes, many steps are
taken at once; each still has its own cost, and the result is that of single steps.

Pure: no clock, no random numbers, no torch. Left out: shared prefixes, priorities, speculation, and the time a client
takes. What a step costs is service_cost.py, who gets memory service_memory.py.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvpager.errors import ConfigError
from kvpager.simulator.service_cost import CostModel, StepWork
from kvpager.simulator.service_memory import Memory

_MOST_STEPS = 4096  # taken at once


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """Comes ``at`` seconds with ``prompt`` tokens and wants ``output``; its last token has no K and V."""

    prompt: int
    output: int
    at: float = 0.0

    @property
    def final(self) -> int:
        return self.prompt + self.output - 1


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """``max_running`` requests at once, ``max_batch_tokens`` new tokens a step. ``is_prompt_computed``: elsewhere, and
    its K and V are there as the request starts, as where prefill and decode are served by different machines."""

    max_running: int = 256
    max_batch_tokens: int = 2048
    is_prompt_computed: bool = False
    steps_at_once: int = _MOST_STEPS


@dataclass(frozen=True, slots=True)
class ServiceResult:
    """``seconds`` from the first arrival to the last end. Means are over the time in which something ran: requests
    ``running``, tokens ``held`` in memory and ``reserved`` for them. ``largest_held`` tokens at any time."""

    seconds: float
    completed: int
    refused: int
    generated: int
    computed: int
    preemptions: int
    steps: int
    mean_running: float
    peak_running: int
    mean_held: float
    mean_reserved: float
    largest_held: int
    sent_tokens: float

    @property
    def tokens_per_second(self) -> float:
        """Generated ones; 0 where nothing ran."""
        return self.generated / self.seconds if self.seconds else 0.0

    @property
    def waste(self) -> float:
        """The share of reserved memory that holds nothing."""
        return 1 - self.mean_held / self.mean_reserved if self.mean_reserved else 0.0


def simulate(
    requests: Sequence[ServiceRequest], memory: Memory, costs: CostModel, limits: ServerLimits | None = None
) -> ServiceResult:
    """Serves all requests. One that could not even run alone is refused. ``memory`` is empty, and is empty again."""
    for request in requests:
        if request.prompt < 1 or request.output < 1 or request.at < 0:
            raise ConfigError(f"a request needs a prompt, an output and a time, not {request}")
    return _Server(requests, memory, costs, limits or ServerLimits()).run()


class _Server:
    """Requests are numbered in the order of arrival. Those that run are rows of parallel arrays in that order: their
    numbers ``_keys``, tokens ``_computed`` and ``_known``. ``_known`` of the others is in ``_knows``."""

    def __init__(
        self, requests: Sequence[ServiceRequest], memory: Memory, costs: CostModel, limits: ServerLimits
    ) -> None:
        self._requests = sorted(
            (each for each in requests if memory.can_hold(each.final)), key=lambda request: request.at
        )
        self._refused = len(requests) - len(self._requests)
        self._memory, self._costs, self._limits = memory, costs, limits
        self._coming = deque(range(len(self._requests)))
        self._queue: deque[int] = deque()
        self._keys, self._computed, self._known = (np.empty(0, np.int64) for _ in range(3))
        self._knows = [request.prompt for request in self._requests]
        self._last = np.array([request.final for request in self._requests], np.int64)
        self._clock = self._begin = self._requests[0].at if self._requests else 0.0
        self._busy = 0.0
        self._sums = np.zeros(3)  # of running, held and reserved, times seconds
        self._steps = self._completed = self._computed_tokens = self._preemptions = 0
        self._peak = self._most_held = 0
        self._sent = 0.0

    def run(self) -> ServiceResult:
        while self._coming or self._queue or len(self._keys):
            self._arrive()
            if not (self._queue or len(self._keys)):
                self._clock = self._requests[self._coming[0]].at
                continue
            self._start()
            work = self._plan()
            if (work == 1).all() and (self._known - self._computed == 1).all():
                self._decode()
            else:
                self._step(work)
            self._end()
        return self._result()

    # -- who runs -----------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        while self._coming and self._requests[self._coming[0]].at <= self._clock:
            self._queue.append(self._coming.popleft())

    def _start(self) -> None:
        promised = self._memory.promised(self._known)
        started: list[int] = []
        while self._queue and len(self._keys) + len(started) < self._limits.max_running:
            key = self._queue[0]
            known = np.array([self._knows[key]])
            if not self._memory.admit(key, self._knows[key], self._requests[key].final, promised):
                break
            promised += self._memory.promised(known)
            started.append(self._queue.popleft())
        if started:
            self._insert(np.array(started, np.int64))

    def _insert(self, keys: np.ndarray) -> None:
        known = np.array([self._knows[key] for key in keys.tolist()], np.int64)
        computed = np.zeros(len(keys), np.int64)
        if self._limits.is_prompt_computed:
            computed = np.minimum([self._requests[key].prompt for key in keys.tolist()], known - 1)
        self._memory.resize(np.zeros(len(keys), np.int64), computed)
        rows = np.concatenate([self._keys, keys])
        order = np.argsort(rows)
        self._keys = rows[order]
        self._computed = np.concatenate([self._computed, computed])[order]
        self._known = np.concatenate([self._known, known])[order]
        self._peak = max(self._peak, len(rows))

    def _plan(self) -> np.ndarray:
        """int64 [rows]: tokens of each in the next step. Stops rows, the last first, until there is room for them."""
        while True:
            left = self._known - self._computed
            decodes = left == 1
            budget = max(1, self._limits.max_batch_tokens - int(np.count_nonzero(decodes)))
            prompts = np.where(decodes, 0, left)
            before = np.cumsum(prompts) - prompts
            work: np.ndarray = np.where(decodes, 1, np.clip(budget - before, 0, prompts))
            if self._memory.needs(self._computed, self._computed + work) <= self._memory.free or len(work) == 1:
                return work
            self._preempt(len(work) - 1)

    def _preempt(self, row: int) -> None:
        key = int(self._keys[row])
        self._knows[key] = int(self._known[row])
        self._memory.release(key, int(self._computed[row]))
        self._queue.appendleft(key)  # it came before all that wait
        self._preemptions += 1
        self._drop(np.arange(len(self._keys)) != row)

    def _drop(self, kept: np.ndarray) -> None:
        self._keys, self._computed, self._known = self._keys[kept], self._computed[kept], self._known[kept]

    def _end(self) -> None:
        is_done = self._computed == self._last[self._keys]
        if not is_done.any():
            return
        for row in np.flatnonzero(is_done).tolist():
            self._memory.release(int(self._keys[row]), int(self._computed[row]))
            self._completed += 1
        self._drop(~is_done)

    # -- steps --------------------------------------------------------------------------------------------------

    def _step(self, work: np.ndarray) -> None:
        """One step in which some row computes a piece of what it knows."""
        after = self._computed + work
        decodes = (self._known - self._computed == 1) & (work == 1)
        pairs = np.sum(np.where(decodes, 0, work * (self._computed + (work + 1) / 2)))
        held = int(after.sum())
        below = max(0, held - self._memory.capacity) / max(1, held)  # the share of each request that is not resident
        step = StepWork(
            rows=float(np.count_nonzero(work)),
            tokens=float(work.sum()),
            kv_tokens=float(after[decodes].sum()),
            pairs=float(pairs),
            sent_tokens=float(after[work > 0].sum()) * below,
        )
        self._memory.resize(self._computed, after)
        self._computed_tokens += int(work.sum())
        self._advance(step, np.array([held]), np.array([self._memory.reserved]), 1)
        self._computed = after
        self._known = self._known + ((after == self._known) & (after < self._last[self._keys]))

    def _decode(self) -> None:
        """Steps of one token for each row: until one ends, another comes, or there is no page to grow into."""
        rows, lengths = len(self._keys), self._computed
        most = int(min(self._limits.steps_at_once, (self._last[self._keys] - lengths).min()))
        growth = self._memory.growth(lengths, most)
        count = max(1, int(np.searchsorted(growth, self._memory.free, side="right")))  # _plan has made room for one
        held = int(lengths.sum()) + rows * np.arange(1, count + 1)
        work = StepWork(rows, rows, held, 0.0, np.maximum(0, held - self._memory.capacity))
        if self._coming:
            ends = self._clock + np.cumsum(self._costs.seconds(work))
            count = min(count, 1 + int(np.searchsorted(ends, self._requests[self._coming[0]].at)))
            held = held[:count]
            work = StepWork(rows, rows, held, 0.0, np.maximum(0, held - self._memory.capacity))
        reserved = self._memory.reserved + growth[:count]
        self._memory.resize(lengths, lengths + count)
        self._computed_tokens += rows * count
        self._advance(work, held, reserved, count)
        self._computed = lengths + count
        self._known = np.minimum(self._computed + 1, self._last[self._keys])

    def _advance(self, work: StepWork, held: np.ndarray, reserved: np.ndarray, count: int) -> None:
        seconds = np.broadcast_to(self._costs.seconds(work), (count,))
        total = float(seconds.sum())
        self._clock += total
        self._busy += total
        self._steps += count
        self._sums += (len(self._keys) * total, float(seconds @ held), float(seconds @ reserved))
        self._most_held = max(self._most_held, int(held[-1]))
        self._sent += float(np.sum(work.sent_tokens))

    def _result(self) -> ServiceResult:
        running, held, reserved = (self._sums / self._busy if self._busy else self._sums).tolist()
        return ServiceResult(
            seconds=self._clock - self._begin,
            completed=self._completed,
            refused=self._refused,
            generated=sum(request.output for request in self._requests),
            computed=self._computed_tokens,
            preemptions=self._preemptions,
            steps=self._steps,
            mean_running=running,
            peak_running=self._peak,
            mean_held=held,
            mean_reserved=reserved,
            largest_held=self._most_held,
            sent_tokens=self._sent,
        )
