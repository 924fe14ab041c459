"""Open case O-23 through the engine: progress under pressure. Time is counted in steps.

(a) with prefixes that are found on the device, and with prefixes that come from the host tier. (c) delays the release
of what finished requests held. What a preempted branch held is free at once by design: the engine preempts
between two steps, where nothing can touch a block (RELIABILITY I5), and counts on it in the same pass.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.step import Step
from kvpager.engine import Engine, Request, Sampling
from kvpager.types import TierKind
from tests.engine.engines import ask, assert_idle, block_counts, checked_step, drive, first_choices, wrapped
from tests.engine.tiers import StepMover, assert_still, empty_device, host, put_below
from tests.engine.tiers import drive as drive_passes
from tests.tiny_model import random_tokens, ref, sharp_prompt, sharp_prompts, tiny_model

NEW = 60


def open_engine(**options: object) -> Engine:
    return Engine(tiny_model(), page_size=16, num_blocks=32, **options)


@pytest.fixture(scope="module")
def crowd() -> list[list[int]]:
    generator = random.Random(23)
    return sharp_prompts(generator, 50, 100, NEW)


def assert_right(requests: list[Request], prompts: list[list[int]], new_tokens: int) -> None:
    for request, prompt in zip(requests, prompts, strict=True):
        (done,) = request.completions()
        assert list(done.token_ids) == ref(prompt, new_tokens)
        assert done.preemptions <= 10


@pytest.mark.parametrize("max_batch_tokens", [512, 32])
def test_two_requests_that_hold_found_prefixes_and_need_more_both_end(max_batch_tokens: int) -> None:
    """12 pages found each, 20 needed each, at once: 40 of 32."""
    generator = random.Random(230)
    prefixes = [random_tokens(generator, 12 * 16) for _ in range(2)]
    prompts = [sharp_prompt(generator, 5 * 16, 48, prefix=prefix) for prefix in prefixes]
    with open_engine(max_batch_tokens=max_batch_tokens) as engine:
        requests = ask(engine, [[*prefix, 1] for prefix in prefixes], Sampling(max_tokens=1))
        drive(engine)
        requests = ask(engine, prompts, Sampling(max_tokens=48))
        steps = drive(engine)
        assert_right(requests, prompts, 48)
        assert [done.prefix_tokens for done in first_choices(requests)] == [192, 192]
        assert steps <= 3 * 2 * (80 // min(80, max_batch_tokens) + 1 + 48)
        assert_idle(engine)


@pytest.mark.parametrize("is_slow", [False, True], ids=["prompt", "slow"])
def test_two_requests_that_load_prefixes_and_need_more_both_end(is_slow: bool) -> None:
    """12 pages from the host each, 20 needed each, at once: 40 of 32. Loads take some passes, or none."""
    generator = random.Random(230)
    prefixes = [random_tokens(generator, 12 * 16) for _ in range(2)]
    prompts = [sharp_prompt(generator, 5 * 16, 48, prefix=prefix) for prefix in prefixes]
    with open_engine() as engine:
        passes = [0]
        put_below(engine, host(engine, 100), mover=StepMover(lambda lane: is_slow and passes[0] % 5 != 0))
        ask(engine, [[*prefix, 1] for prefix in prefixes], Sampling(max_tokens=1))
        drive_passes(engine)
        passes[0] = 0
        empty_device(engine)
        requests = ask(engine, prompts, Sampling(max_tokens=48))
        held = 0

        def between(number: int) -> None:
            nonlocal held
            passes[0] = number
            held = max(held, block_counts(engine).moving)

        steps = drive_passes(engine, between)
        assert_right(requests, prompts, 48)
        assert [done.prefix_by_tier for done in first_choices(requests)] == [{TierKind.HOST: 192}] * 2
        assert engine.cache.statistics().tiers[0].loaded.pages == 24  # none of them twice
        assert held == (12 if is_slow else 0)  # the second loads when there is room for all that it needs
        assert steps <= 3 * 2 * (1 + 48)
        assert_still(engine)


def test_two_running_requests_that_both_need_more_than_is_left_take_turns() -> None:
    """Both run with 12 pages before either needs the 20."""
    generator = random.Random(231)
    prompts = [sharp_prompt(generator, 180, 130) for _ in range(2)]
    with open_engine() as engine:
        requests = ask(engine, prompts, Sampling(max_tokens=130))
        checked_step(engine)
        assert engine.statistics().running == 2
        steps = 1 + drive(engine)
        assert_right(requests, prompts, 130)
        assert engine.statistics().preemptions == 1  # once, and not again when it comes back
        assert steps <= 2 * 131 + 2
        assert_idle(engine)


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
def test_a_crowd_ends_with_few_preemptions_in_less_than_three_times_one_by_one(
    crowd: list[list[int]], deterministic: bool
) -> None:
    prompts = crowd[:16] if deterministic else crowd
    with open_engine(deterministic=deterministic) as engine:
        requests = ask(engine, prompts, Sampling(max_tokens=NEW))
        waits = 0  # steps in a row without a token

        while engine.has_work:
            before = block_counts(engine), engine.statistics().preemptions
            events = checked_step(engine)
            waits = 0 if events else waits + 1
            assert waits < 100
            if engine.statistics().preemptions > before[1]:
                assert events, "a pass that preempts computes what it made room for"
        assert_right(requests, prompts, NEW)
        assert engine.statistics().preemptions > 0
        assert engine.statistics().steps <= 3 * len(prompts) * (1 + NEW)
        assert_idle(engine)


class LateRelease:
    """What finished requests held stays pinned for two more steps, as if a copy still read it."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._cache = engine, engine.cache
        self._held: list[tuple[int, Step]] = []
        self._step = 0
        self._is_finishing = False

    def finish(self, original: Callable[..., Any], *args: Any) -> Any:
        self._is_finishing = True
        try:
            return original(*args)
        finally:
            self._is_finishing = False

    def free(self, original: Callable[..., None], sequences: list[Any]) -> None:
        if self._is_finishing:
            hold = Step((), None, lambda *_: None)  # type: ignore[arg-type]
            for seq in sequences:
                for table in seq.tables:
                    blocks = np.array(table.mapped_blocks())
                    self._cache.pool.pin(blocks)
                    hold.held.append(blocks)
            self._cache.open_steps.append(hold)
            self._held.append((self._step + 2, hold))
        original(sequences)

    def next_step(self) -> None:
        self._step += 1
        for due, hold in [item for item in self._held if item[0] <= self._step]:
            self._cache.open_steps.remove(hold)
            for blocks in hold.held:
                self._cache.evictable.settled(self._cache.pool.unpin(blocks).cached)
            self._held.remove((due, hold))

    @property
    def is_holding(self) -> bool:
        return bool(self._held)


@pytest.mark.slow
def test_a_crowd_ends_although_blocks_come_back_two_steps_late(
    crowd: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = crowd[:25]
    with open_engine() as engine:
        assert isinstance(engine.cache, PagedCache)
        engine.cache.books.can_end = False  # every sequence goes through what is wrapped here
        late = LateRelease(engine)
        most_moving = idle = 0
        with wrapped(engine._queues, "finish", late.finish), wrapped(engine.cache, "free", late.free):
            requests = ask(engine, prompts, Sampling(max_tokens=NEW))
            while engine.has_work:
                late.next_step()
                steps = engine.statistics().steps
                engine.step()
                engine.check()
                counts = engine.cache.pool.counts()
                assert counts.free + counts.used + counts.cached + counts.moving == 32
                most_moving = max(most_moving, counts.moving)
                if engine.statistics().steps == steps:
                    idle += 1
                    assert late.is_holding  # a pass without work waits for a named event
                    assert idle <= 2
                else:
                    idle = 0
            while late.is_holding:
                late.next_step()
        assert most_moving >= 10
        assert_right(requests, prompts, NEW)
        assert engine.statistics().steps <= 3 * len(prompts) * (1 + NEW)
        assert_idle(engine)
