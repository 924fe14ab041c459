"""One look at a running engine, as plain numbers: what the live view draws and the comparison counts with.

Reads the engine and its cache between two steps and changes nothing. Knows no terminal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvpager.memory.block import BlockState
from kvpager.types import FaultKind

if TYPE_CHECKING:
    from kvpager.cache.statistics import CacheStatistics
    from kvpager.engine.engine import Engine
    from kvpager.engine.request import Request


@dataclass(frozen=True, slots=True)
class Cell:
    """One block of the pool. ``owner``: the request (by its place in the demonstration) that maps it, the earliest if
    several do; ``mappings``: page-table entries that name it."""

    state: BlockState
    owner: int | None = None
    mappings: int = 0


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request as it stands: ``place`` in the demonstration, ``state`` in one word, the ``text`` of its first choice
    so far, ``tokens`` generated over all choices, of at most ``limit``."""

    place: int
    state: str
    choices: int
    tokens: int
    limit: int
    prefix_tokens: int
    text: str


@dataclass(frozen=True, slots=True)
class TierView:
    """A tier below the device: ``pages`` it has now, prompt tokens found there since the start (``hits``)."""

    name: str
    pages: int
    held_bytes: int
    hits: int
    is_ok: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """The engine ``seconds`` after the start: counts of running and waiting sequences and of blocks are those of this
    moment; ``finished`` requests of the ``expected`` ones, tokens, faults and preemptions are those since the start.

    ``mapped_pages``: page-table entries now; ``used_blocks`` of the pool hold them, and ``shared_blocks`` of those are
    named by more than one. ``live_tokens``: context of the running sequences; ``waste_tokens``: slots of used blocks
    that no token fills.
    """

    seconds: float
    generated_tokens: int
    running: int
    running_requests: int
    waiting: int
    finished: int
    expected: int
    preemptions: int
    faults: dict[FaultKind, int]
    prompt_tokens: int
    hit_tokens: int
    computed_tokens: int
    reclaimed_blocks: int
    used_blocks: int
    cached_blocks: int
    shared_blocks: int
    mapped_pages: int
    live_tokens: int
    waste_tokens: int
    cells: tuple[Cell, ...]
    requests: tuple[RequestView, ...]
    moving_blocks: int = 0
    tiers: tuple[TierView, ...] = ()


def observe(engine: "Engine", requests: Sequence["Request"], expected: int, seconds: float) -> Frame:
    """A frame. ``requests`` so far, in the order of the demonstration: ``request.index`` is the place."""
    engine_now, cache_now = engine.statistics(), engine.cache.statistics()
    running = {branch.request.index for branch in engine.branches()}
    return Frame(
        seconds=seconds,
        generated_tokens=engine_now.generated_tokens,
        running=engine_now.running,
        running_requests=len(running),
        waiting=engine_now.waiting,
        finished=engine_now.finished_requests,
        expected=expected,
        preemptions=engine_now.preemptions,
        faults={kind: count.pages for kind, count in cache_now.faults.items()},
        prompt_tokens=cache_now.prefix.prompt_tokens,
        hit_tokens=cache_now.prefix.hit_tokens,
        computed_tokens=cache_now.computed_tokens,
        reclaimed_blocks=cache_now.reclaim.background + cache_now.reclaim.direct,
        used_blocks=cache_now.blocks.used,
        cached_blocks=cache_now.blocks.cached,
        shared_blocks=cache_now.shared_blocks,
        mapped_pages=int(engine.cache.pool.refcount.sum()),
        live_tokens=cache_now.tokens,
        waste_tokens=cache_now.waste_tokens,
        cells=_cells(engine),
        requests=tuple(_view(request) for request in requests),
        moving_blocks=cache_now.blocks.moving,
        tiers=_tiers(cache_now),
    )


def _tiers(now: "CacheStatistics") -> tuple[TierView, ...]:
    return tuple(
        TierView(
            tier.name,
            tier.pages,
            tier.usage.used_bytes,
            now.prefix.by_tier.get(tier.usage.kind, 0),
            tier.state == "ok",
        )
        for tier in now.tiers
    )


def _cells(engine: "Engine") -> tuple[Cell, ...]:
    owners: dict[int, int] = {}
    for branch in engine.branches():
        for table in branch.sequence.tables if branch.sequence is not None else ():
            for block in table.mapped_blocks().tolist():
                owners[block] = min(branch.request.index, owners.get(block, branch.request.index))
    pool = engine.cache.pool
    mappings = pool.refcount.tolist()
    return tuple(Cell(pool.state(block), owners.get(block), mappings[block]) for block in range(pool.num_blocks))


def _view(request: "Request") -> RequestView:
    first = request.branches[0]
    states = {branch.state.value for branch in request.branches}
    return RequestView(
        place=request.index,
        state=next(name for name in ("running", "waiting", "forking", "finished") if name in states),
        choices=len(request.branches),
        tokens=sum(len(branch.output) for branch in request.branches),
        limit=request.sampling.max_tokens * len(request.branches),
        prefix_tokens=first.prefix_tokens,
        text="".join(first.text),
    )
