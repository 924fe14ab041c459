"""Tiers below an engine in tests: put there by hand, with doubles that lose, delay or withhold pages, and every check.

Transfers run when a test says so (``StepMover``), so that what happens during a load can be tried at every moment.
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from kvpager import assemble
from kvpager.engine import Engine, Sampling, TokenEvent
from kvpager.engine.load_or_compute import Choice, LoadOrCompute, Offer, Reason
from kvpager.errors import TierError
from kvpager.eviction.lru import LRU
from kvpager.tiers.health import Health
from kvpager.tiers.host import HostStore
from kvpager.tiers.migration import WriteBack
from kvpager.tiers.mover import Job, Mover, run_job
from kvpager.tiers.tier import LowerTier, Slot
from kvpager.types import ContentKey, TierKind
from tests.engine.engines import MAX_STEPS, ask, block_counts, first_choices


class VirtualClock:
    """Time passes when a test says so, or a little with each look."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class StepMover:
    """Runs jobs in the bookkeeping thread, when they are collected. ``holds(lane)`` keeps a lane's jobs back."""

    def __init__(self, holds: Callable[[str], bool] = lambda lane: False) -> None:
        self.holds = holds
        self._jobs: deque[tuple[str, Job]] = deque()

    @property
    def num_open(self) -> int:
        return len(self._jobs)

    def submit(self, lane: str, job: Job) -> None:
        self._jobs.append((lane, job))

    def collect(self, timeout: float = 0.0) -> list[Job]:
        ready: list[Job] = []
        for _ in range(len(self._jobs)):
            lane, job = self._jobs.popleft()
            if self.holds(lane):
                self._jobs.append((lane, job))
            else:
                run_job(job)
                ready.append(job)
        return ready

    def close(self, timeout: float) -> None:
        pass


class AlwaysLoad(LoadOrCompute):
    """Loads whatever fits, so that a test does not depend on how fast the machine is."""

    def choose(self, offers: Sequence[Offer], max_blocks: int, borders: object = None) -> Choice:
        choice = super().choose(offers, max_blocks, borders)  # type: ignore[arg-type]
        return Choice(len(offers), len(offers), Reason.UNKNOWN) if choice.reason is not Reason.ROOM else choice

    def patience(self, tokens: int) -> float | None:
        return None


class LosingHost(HostStore):
    """Says that it has pages, and fails to read the next ``failures`` of them. ``attempts``: reads tried, by key."""

    def __init__(self, page_bytes: int, num_slots: int, failures: int) -> None:
        super().__init__(page_bytes, num_slots, LRU(num_slots))
        self.failures = failures
        self.attempts: dict[ContentKey, int] = {}

    def read(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> list[int | TierError]:
        found = super().read(slots, into)
        for at, slot in enumerate(slots):
            self.attempts[slot.key] = self.attempts.get(slot.key, 0) + 1
            if self.failures:
                self.failures -= 1
                into[at][:] = 0xAB  # what a failed read leaves behind is undefined
                found[at] = TierError("lost")
        return found


class LyingHost(LosingHost):
    """Does not even forget the pages that it could not give."""

    def complete_load(self, slot: Slot, error: TierError | None) -> None:
        super().complete_load(slot, None)


class Asked(HostStore):
    """A tier whose books know nothing: it has to be asked about every page."""

    kind = TierKind.REMOTE
    name = "remote"

    def __init__(self, page_bytes: int, num_slots: int) -> None:
        super().__init__(page_bytes, num_slots, LRU(num_slots))
        self.known: set[ContentKey] = set()
        self.questions = 0

    def contains(self, key: ContentKey) -> bool | None:
        return super().contains(key) if key in self.known else None

    def probe(self, keys: Sequence[ContentKey]) -> list[bool]:
        self.questions += 1
        return super().probe(keys)

    def learn(self, keys: Sequence[ContentKey], found: Sequence[bool] | None) -> None:
        if found is not None:
            self.known |= {key for key, is_there in zip(keys, found, strict=True) if is_there}


class BreakingHost(HostStore):
    """A tier with a circuit breaker: not asked any more once it was late too often."""

    def __init__(self, page_bytes: int, num_slots: int, clock: Callable[[], float]) -> None:
        super().__init__(page_bytes, num_slots, LRU(num_slots))
        self.health = Health(clock, failures_to_open=2, retry_after=1e6, longest_wait=1e6)

    def contains(self, key: ContentKey) -> bool | None:
        return not self.health.is_open and super().contains(key)

    def blame(self, reason: str) -> None:
        self.health.failed(reason)


def host(engine: Engine, num_slots: int) -> HostStore:
    return HostStore(engine.layout.block_stride, num_slots, LRU(num_slots))


def put_below(
    engine: Engine,
    *stores: LowerTier,
    mover: Mover | None = None,
    clock: Callable[[], float] | None = None,
    write_back: str = "through",
    load_deadline: float | None = None,
    max_moving_pages: int = 1 << 20,
    always_load: bool = True,
) -> None:
    """Puts tiers below an engine that was opened without any."""
    assemble.put_below(
        engine.cache,
        list(stores),
        mover or StepMover(),
        clock or VirtualClock(),
        WriteBack(write_back),
        max_moving_pages * engine.layout.block_stride,
        load_deadline,
    )
    if always_load:
        engine.loading.model = AlwaysLoad(engine.layout.page_size, engine.layout.block_stride)


def checked_pass(engine: Engine) -> list[TokenEvent]:
    """One call of ``step``, and all that must hold after it. It may have waited for transfers instead of computing."""
    before = engine.statistics()
    events = engine.step()
    engine.check()
    after = engine.statistics()
    for name in ("finished_requests", "prompt_tokens", "prefix_tokens", "generated_tokens", "preemptions"):
        assert getattr(after, name) >= getattr(before, name), f"{name} went down"
    assert after.generated_tokens - before.generated_tokens == sum(event.token is not None for event in events)
    assert sum(after.prefix_by_tier.values()) == after.prefix_tokens <= after.prompt_tokens
    block_counts(engine)
    for tier in engine.cache.statistics().tiers:
        usage = tier.usage
        assert usage.free + usage.used + usage.cached + usage.moving == usage.blocks
        assert min(usage.free, usage.used, usage.cached, usage.moving) >= 0
        assert usage.kind is TierKind.REMOTE or usage.used_bytes <= usage.capacity_bytes
    return events


def drive(engine: Engine, between: Callable[[int], object] = lambda number: None, most: int = MAX_STEPS) -> int:
    """Passes until nothing is left, ``between(number)`` before each; returns how many."""
    for number in range(most):
        between(number)
        if not engine.has_work:
            return number
        checked_pass(engine)
    raise AssertionError(f"not done after {most} passes")


def answers(engine: Engine, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[int]]:
    """The tokens of each prompt's first choice, every pass checked."""
    requests = ask(engine, prompts, sampling)
    drive(engine)
    return [list(done.token_ids) for done in first_choices(requests)]


def empty_device(engine: Engine) -> None:
    """All cached pages go down and leave the device."""
    lower = engine.cache.lower
    assert lower is not None
    lower.write_down(engine.cache.index.all_blocks().tolist())
    lower.settle(1e6)
    counts = block_counts(engine)
    while engine.cache.pool.counts().cached:
        assert engine.cache._reclaimer.make_free(engine.cache.pool.num_free + 1)
    assert counts.moving == 0


def assert_still(engine: Engine) -> None:
    """I29, once the transfers have ended."""
    assert engine.cache.lower is not None
    assert engine.cache.lower.settle(1e6)
    engine.check()
    counts, statistics = block_counts(engine), engine.statistics()
    assert (counts.used, counts.moving) == (0, 0)
    assert (statistics.running, statistics.waiting, statistics.loading) == (0, 0, 0)
    assert engine.loading.reserved == 0
    assert not engine.has_work
