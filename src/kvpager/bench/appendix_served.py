"""Requests served by an engine, and what their memory was used for meanwhile, whatever its allocation is.

    pool  [ used | future | wasted |  free  ]    tokens' room, weighted by time
            |       |        reserved and never filled: of a run behind the final length, of a last page
            |       reserved, filled before the request ends
            K and V that were computed

Times are those of ``engine.step()``: what is counted between two steps takes none.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvpager.bench.appendix_decode import PromptsElsewhere
from kvpager.bench.workloads import Ask
from kvpager.cache.runs import RunStatistics
from kvpager.engine import Engine, Sampling
from kvpager.engine.request import Branch, Request
from kvpager.errors import RequestError


@dataclass(slots=True)
class MemoryUse:
    """Sums over time: token seconds, and request seconds (``running``). ``stranded``: free while a request waits that
    may run. ``fragmented``: of that, where it would be enough for the first in the queue, but lies in pieces."""

    seconds: float = 0.0
    pool: float = 0.0
    used: float = 0.0
    future: float = 0.0
    wasted: float = 0.0
    stranded: float = 0.0
    fragmented: float = 0.0
    running: float = 0.0
    most_running: int = 0

    @property
    def reserved(self) -> float:
        return self.used + self.future + self.wasted

    @property
    def mean_running(self) -> float:
        return self.running / self.seconds

    def add(self, engine: Engine, seconds: float) -> None:
        """The state after a step of so many seconds."""
        page, branches, runs = engine.layout.page_size, engine.branches(), engine.cache.runs
        used = future = reserved = 0
        for branch in branches:
            length = branch.running_sequence.length
            room = page * (_run_blocks(engine, branch) if runs is not None else engine.layout.num_pages(length))
            used += length
            reserved += room
            future += max(0, min(_final(branch), room) - length)
        pool = page * engine.cache.pool.num_blocks
        self.seconds += seconds
        self.pool += pool * seconds
        self.used += used * seconds
        self.future += future * seconds
        self.wasted += (reserved - used - future) * seconds
        if engine.num_waiting and len(branches) < engine.options.max_running:
            self.stranded += (pool - reserved) * seconds
            if runs is not None and _is_fragmented(engine, runs.statistics()):
                self.fragmented += (pool - reserved) * seconds
        self.running += len(branches) * seconds
        self.most_running = max(self.most_running, len(branches))


@dataclass(slots=True)
class Served:
    """``outputs`` by request, None for those that were ``refused``. ``tokens``: all that were generated, in
    ``seconds``."""

    outputs: list[tuple[int, ...] | None]
    use: MemoryUse = field(default_factory=MemoryUse)
    seconds: float = 0.0
    preemptions: int = 0

    @property
    def refused(self) -> int:
        return sum(output is None for output in self.outputs)

    @property
    def tokens(self) -> int:
        return sum(len(output) for output in self.outputs if output is not None)


def serve(engine: Engine, asks: Sequence[Ask], *, prompts_elsewhere: bool = False) -> Served:
    """Greedy, each to its ``max_tokens``; all are there at the start."""
    elsewhere = PromptsElsewhere(engine) if prompts_elsewhere else None
    engine.take_prompts_from(elsewhere)
    requests = [_submitted(engine, ask) for ask in asks]
    served, written = Served([]), 0.0
    while engine.has_work:
        begin = time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - begin
        if elsewhere is not None:
            seconds -= elsewhere.seconds - written
            written = elsewhere.seconds
        served.seconds += seconds
        served.use.add(engine, seconds)
    served.outputs = [None if each is None else each.completions()[0].token_ids for each in requests]
    served.preemptions = engine.statistics().preemptions
    return served


def _submitted(engine: Engine, ask: Ask) -> Request | None:
    """None where it is refused."""
    try:
        return engine.submit(ask.prompt, Sampling(max_tokens=ask.max_tokens, ignore_eos=True))
    except RequestError:
        return None


def _is_fragmented(engine: Engine, runs: RunStatistics) -> bool:
    """External fragmentation: enough blocks are free for the first in the queue, but no run of them."""
    wanted = engine._view.needs(engine.waiting_branches()[0].request)
    return runs.free >= wanted > runs.longest


def _run_blocks(engine: Engine, branch: Branch) -> int:
    runs = engine.cache.runs
    assert runs is not None
    return runs.length(branch.running_sequence.row)


def _final(branch: Branch) -> int:
    """Tokens of K and V that it will have at its end; its last token has none."""
    return len(branch.request.prompt) + branch.request.sampling.max_tokens - 1
