"""Prompts served by the engine over a pool that holds a part of one of them: submitted, or first written by hand where
computing them would take too long. Times tokens; knows no figures.

    head       computed by the engine, as a prompt of its own
    middle     written by hand: pages with token ids, content keys and checksums, that go to the disk like others
    tail       computed by the engine when the whole prompt comes, behind the pages that it finds on the disk
"""

import time
from dataclasses import dataclass

from kvpager.bench.random_pages import RandomPages
from kvpager.engine import Engine, Sampling
from kvpager.engine.request import Request
from kvpager.errors import InvariantError

_PAGES_AT_ONCE = 32
_SETTLE_SECONDS = 300.0


@dataclass(slots=True)
class Served:
    """What became of prompts that were submitted together. ``first``: seconds until each had its first token; ``rest``:
    from then until each had its last one. ``faults``, ``bytes`` and ``stalled`` seconds: of the tiers, for them.
    ``table_bytes``, ``pages``: of their page tables, as they had their first tokens."""

    outputs: list[list[int]]
    first: float
    rest: float
    faults: int
    bytes: int
    stalled: float
    table_bytes: int
    pages: int

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens behind the first ones."""
        return sum(len(output) - 1 for output in self.outputs) / self.rest


def serve(engine: Engine, prompts: list[list[int]], tokens: int, attend: str = "exact") -> Served:
    """Greedy; ``tokens`` of each prompt, at least 2."""
    sampling = Sampling(max_tokens=tokens, ignore_eos=True)
    before = engine.statistics().faults
    begin = time.perf_counter()
    requests = [engine.submit(prompt, sampling, attend=attend) for prompt in prompts]
    while not all(request.branches[0].output or request.is_finished for request in requests):
        engine.step()
    first = time.perf_counter()
    table_bytes = engine.cache.statistics().table_bytes
    pages = sum(len(table) for seq in engine.cache.sequences.values() for table in seq.tables)
    while not all(request.is_finished for request in requests):
        engine.step()
    end = time.perf_counter()
    faults = engine.statistics().faults
    return Served(
        [_output(request) for request in requests],
        first - begin,
        end - first,
        faults.major - before.major,
        faults.bytes - before.bytes,
        faults.stalled_seconds - before.stalled_seconds,
        table_bytes,
        pages,
    )


def write_by_hand(engine: Engine, prompt: list[int], until: int, pages: RandomPages, first_number: int) -> int:
    """Writes pages of ``prompt`` up to ``until``, a page border, behind what is found of it, and waits until the tiers
    have them. Returns how many tokens that were."""
    cache, at_once, limit = engine.cache, _PAGES_AT_ONCE, None
    if cache.lower is not None:
        limit = int(cache.pool.num_blocks * engine.options.resident_share)
        at_once = min(at_once, limit // 2)
    seq = cache.sequence(prompt[:until], resident_limit=limit, non_resident=limit is not None)
    found = seq.length
    pages.extend(cache, seq, until, at_once, first_number)
    if cache.lower is not None and not cache.lower.settle(_SETTLE_SECONDS):
        raise InvariantError("pages do not reach the disk")
    seq.free()
    return until - found


def _output(request: Request) -> list[int]:
    branch = request.branches[0]
    if branch.error:
        raise InvariantError(f"a request failed: {branch.error}")
    return list(branch.output)
