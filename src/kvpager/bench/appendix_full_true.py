"""Appendix C's rows 1 to 4 with a small random model at the true context lengths: all pages exist, in the device pool.

    measured      requests that run at once at equal memory; decode steps over all of their pages by the engine; memory
                  that holds no token; bookkeeping a step; page tables
    not measured  computing the prompts, which would take days here: their pages are written by hand, random K and V
                  with token ids and content keys, and found as any cached content (bench/random_pages.py)

Two forms of each row. *Spread*: lengths of a trace (appendix_full_loads.py) and memory for a tenth of what the row's
requests reserve contiguously: as many requests as fit, in turn with as many as fit contiguously (same engine, same
kernels). *Whole*: every request fills its context, and all of them run.

Before anything is timed, pages of some requests are compared byte by byte with what was written.
"""

import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedModel

from kvpager.bench.appendix_full_loads import AppendixRow, requests_of
from kvpager.bench.million_served import write_by_hand
from kvpager.bench.random_pages import RandomPages
from kvpager.bench.report import SEED, Result
from kvpager.engine import Engine, Sampling
from kvpager.engine.request import Request
from kvpager.errors import InvariantError
from kvpager.memory.arena import HostArena
from kvpager.simulator.service_simulation import ServiceRequest

WASTE = 0.02  # at most
CONCURRENCY = 3.0  # at least
_SPARE_PAGES = 3  # a request needs beside its prompt's pages, while it is measured


@dataclass(frozen=True, slots=True)
class TrueScale:
    """``share`` of a row's requests, at least 4. ``memory``: the pool, as a share of what they reserve contiguously.
    ``steps`` timed, twice for either side."""

    share: float
    memory: float = 0.1
    steps: int = 8


@dataclass(frozen=True, slots=True)
class Decoded:
    """Medians over steps. ``waste``: the share of slots in use that hold no token."""

    running: int
    seconds: float
    bookkeeping: float
    waste: float
    table_bytes: int

    @property
    def rate(self) -> float:
        return self.running / self.seconds


def measure(model: PreTrainedModel, row: AppendixRow, scale: TrueScale) -> Iterator[Result]:
    name = f"appendix_c_true_row{row.number}"
    count = max(4, round(row.requests * scale.share))
    pool = max(row.context, int(count * row.context * scale.memory))
    requests = requests_of(row)[:count]
    yield Result(f"{name}_requests", float(count), "requests")
    with _Row(model, requests, pool, page_size=16) as spread:
        many = spread.fitting
        few = min(pool // row.context, many)
        one, two, three = (spread.decode(number, scale.steps) for number in (few, many, few))
    rate = (one.rate + three.rate) / 2
    at_once = Result(f"{name}_concurrency_vs_contiguous", many / (pool // row.context), "ratio", at_least=CONCURRENCY)
    yield at_once
    yield Result(f"{name}_decode_vs_contiguous", two.rate / rate, "ratio")
    yield Result(f"{name}_waste_share", two.waste, "share", at_most=WASTE)
    yield Result(f"{name}_running", float(many), "requests")
    yield Result(f"{name}_decode", two.rate, "tokens/s")
    yield Result(f"{name}_bookkeeping", 1e6 * two.bookkeeping / many, "us")
    whole = [ServiceRequest(row.context - 64, 32)] * count
    with _Row(model, whole, int(count * (row.context + 256) * 1.03), page_size=64) as all_of_them:
        found = all_of_them.decode(count, scale.steps)
        yield Result(f"{name}_whole_kv", all_of_them.kv_bytes / 2**30, "GiB")
    yield Result(f"{name}_whole_running", float(found.running), "requests")
    yield Result(f"{name}_whole_decode", found.rate, "tokens/s")
    yield Result(f"{name}_whole_bookkeeping", 1e6 * found.bookkeeping / found.running, "us")
    yield Result(f"{name}_whole_waste_share", found.waste, "share")
    yield Result(f"{name}_whole_table_bytes", float(found.table_bytes), "bytes")


class _Row:
    """A context: an engine over a pool of ``capacity`` tokens, with the pages of as many requests as fit."""

    def __init__(
        self, model: PreTrainedModel, requests: list[ServiceRequest], capacity: int, *, page_size: int
    ) -> None:
        self._stack = ExitStack()
        blocks = capacity // page_size
        self._engine = self._stack.enter_context(
            Engine(
                model,
                num_blocks=blocks,
                page_size=page_size,
                max_running=len(requests),
                max_waiting=len(requests),
                max_batch_tokens=2048,
                partial_hits=False,  # random prompts may begin with the same token
            )
        )
        self._page_size = page_size
        self._running: list[Request] = []
        needed = np.cumsum([-(-request.prompt // page_size) + _SPARE_PAGES for request in requests])
        self.fitting = int(np.searchsorted(needed, blocks * 0.99, side="right"))  # the engine keeps some free
        draw = np.random.default_rng(SEED)
        self._prompts = [
            array("i", draw.integers(0, self._engine.vocab_size, request.prompt, np.int32).tobytes())
            for request in requests[: self.fitting]
        ]
        self._write()

    def __enter__(self) -> "_Row":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def kv_bytes(self) -> int:
        return sum(map(len, self._prompts)) * self._engine.layout.bytes_per_token

    def _write(self) -> None:
        pages, first = RandomPages(self._engine.layout), 0
        for number, prompt in enumerate(self._prompts):
            until = (len(prompt) - 1) // self._page_size * self._page_size
            if until and write_by_hand(self._engine, prompt, until, pages, first) != until:  # type: ignore[arg-type]
                raise InvariantError("two random prompts begin alike")
            if until and number in (0, len(self._prompts) // 2, len(self._prompts) - 1):
                self._check(prompt, until, pages, first)
            first += until // self._page_size

    def _check(self, prompt: "array[int]", until: int, pages: RandomPages, first: int) -> None:
        cache = self._engine.cache
        assert isinstance(cache.arena, HostArena)
        rows = cache.arena.blocks.view(np.uint16)
        seq = cache.sequence(prompt[: until + 1])  # the last token of a sequence is never found
        table = seq.tables[0].snapshot()
        if seq.length != until:
            raise InvariantError(f"{seq.length} of {until} tokens were found again; nothing was timed")
        for page in range(until // self._page_size):
            if not np.array_equal(rows[table[page]], pages.content(first + page)):
                raise InvariantError(f"page {page} holds other bytes than were written; nothing was timed")
        seq.free()

    def decode(self, count: int, steps: int) -> Decoded:
        """The first ``count`` requests together; the others are stopped, and their pages stay cached."""
        for request in self._running[count:]:
            self._engine.cancel(request.id)
        del self._running[count:]
        for prompt in self._prompts[len(self._running) : count]:
            self._running.append(self._engine.submit(prompt, Sampling(max_tokens=64, ignore_eos=True)))
        while not all(request.branches[0].output for request in self._running):
            self._engine.step()
        return self._timed(steps)

    def _timed(self, steps: int) -> Decoded:
        engine, seconds, books = self._engine, [], []
        for _ in range(steps):
            before, begin = engine.statistics().bookkeeping_seconds, time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - begin)
            books.append(engine.statistics().bookkeeping_seconds - before)
        statistics = engine.statistics()
        if statistics.running != len(self._running) or statistics.preemptions:
            raise InvariantError(f"{statistics.running} requests run of {len(self._running)}")
        lengths = [seq.length for seq in engine.cache.sequences.values()]
        slots = engine.cache.pool.counts().used * self._page_size
        return Decoded(
            statistics.running,
            float(np.median(seconds)),
            float(np.median(books)),
            1 - sum(lengths) / slots,
            engine.cache.statistics().table_bytes,
        )
