"""Pages come up before their requests start: who waits for what, and what becomes of loads that fail, hang or are cut.

Transfers run when the test says so, and time is counted in passes of the engine.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kvpager.engine import Engine, FinishReason, Request, Sampling
from kvpager.engine.load_or_compute import LoadOrCompute
from kvpager.engine.loading import Stage
from kvpager.tiers.tier import LowerTier
from kvpager.types import TierKind
from tests.engine.engines import ask, block_counts, first_choices, force_preemption, wrapped
from tests.engine.tiers import (
    Asked,
    BreakingHost,
    LosingHost,
    LyingHost,
    StepMover,
    VirtualClock,
    answers,
    assert_still,
    checked_pass,
    drive,
    empty_device,
    host,
    put_below,
)
from tests.tiny_model import random_tokens, ref, sharp_prompt, tiny_model

NEW = 8
GREEDY = Sampling(max_tokens=NEW)
HOST, DEVICE = TierKind.HOST, TierKind.DEVICE


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = random.Random(31)
    return [sharp_prompt(generator, 100, NEW) for _ in range(20)]


class Switch:
    """Keeps loads back while ``is_held``."""

    def __init__(self) -> None:
        self.is_held = False

    def __call__(self, lane: str) -> bool:
        return self.is_held and lane.endswith("load")


@contextmanager
def below(
    make: Callable[[Engine], LowerTier] = lambda engine: host(engine, 500),
    *,
    num_blocks: int = 100,
    deadline: float | None = None,
    **options: Any,
) -> Iterator[tuple[Engine, Switch, VirtualClock]]:
    """An engine over a tier; at the end nothing must be held any more."""
    with Engine(tiny_model(), page_size=16, num_blocks=num_blocks, **options) as engine:
        switch, clock = Switch(), VirtualClock()
        put_below(engine, make(engine), mover=StepMover(switch), clock=clock, load_deadline=deadline)
        yield engine, switch, clock
        switch.is_held = False
        assert_still(engine)


def store(engine: Engine, prompts: list[list[int]]) -> None:
    """Has the prompts' pages in the tier, and nowhere else."""
    for prompt in prompts:
        ask(engine, [prompt], Sampling(max_tokens=1))
        drive(engine)
    empty_device(engine)
    assert engine.cache.lookup(prompts[0]).num_tokens == 0


def assert_right(requests: list[Request], prompts: list[list[int]]) -> None:
    for done, prompt in zip(first_choices(requests), prompts, strict=True):
        assert list(done.token_ids) == ref(prompt, NEW)


# -- who waits ------------------------------------------------------------------------------------------------------


def test_pages_in_a_lower_tier_are_hits_of_that_tier(prompts: list[list[int]]) -> None:
    with below() as (engine, _, _):
        store(engine, prompts[:3])
        requests = ask(engine, prompts[:3], GREEDY)
        drive(engine)
        assert_right(requests, prompts[:3])
        assert [done.prefix_by_tier for done in first_choices(requests)] == [{HOST: 96}] * 3
        statistics = engine.statistics()
        assert statistics.prefix_by_tier == {HOST: 3 * 96}
        assert (statistics.loads.loaded, statistics.loads.loaded_tokens) == (3, 3 * 96)
        assert "loaded 96 of 96 tokens" in statistics.loads_explained
        assert answers(engine, prompts[:3], GREEDY) == [ref(prompt, NEW) for prompt in prompts[:3]]
        assert engine.statistics().prefix_by_tier[DEVICE] > 0  # now they are on the device


def test_others_run_on_and_start_while_a_request_waits_for_its_pages(prompts: list[list[int]]) -> None:
    with below() as (engine, switch, _):
        store(engine, prompts[:1])
        switch.is_held = True
        (first,) = ask(engine, [prompts[1]], GREEDY)
        checked_pass(engine)
        waiting, behind = ask(engine, [prompts[0], prompts[2]], GREEDY)
        for done in range(2, NEW + 1):
            checked_pass(engine)
            assert len(first.branches[0].output) == done  # not held up by a pass
            assert len(behind.branches[0].output) == done - 1
            assert engine.statistics().loading == 1
        drive(engine, lambda _: setattr(switch, "is_held", bool(engine.branches())))
        assert_right([first, waiting, behind], [prompts[1], prompts[0], prompts[2]])
        assert waiting.completions()[0].prefix_by_tier == {HOST: 96}


def test_an_engine_that_can_do_nothing_but_load_waits_instead_of_spinning(prompts: list[list[int]]) -> None:
    with below() as (engine, switch, _):
        store(engine, prompts[:1])
        switch.is_held = True
        steps = engine.statistics().steps
        waits: list[float] = []

        def wait(original: Callable[..., None], timeout: float, **options: bool) -> None:
            waits.append(timeout)
            assert options == {"idle": True}
            original(timeout, **options)

        with wrapped(engine.cache.lower, "wait", wait):
            ask(engine, prompts[:1], GREEDY)
            for _ in range(5):
                assert checked_pass(engine) == []
        assert engine.statistics().steps == steps
        assert len(waits) == 5
        assert 0 < min(waits) <= max(waits) <= 0.05
        switch.is_held = False
        drive(engine)


def test_a_prompt_is_looked_for_once_and_not_in_every_pass(prompts: list[list[int]]) -> None:
    with below(num_blocks=40, max_running=1) as (engine, _, _):
        store(engine, prompts[:4])
        looked: list[int] = []

        def find(original: Callable[..., Any], tokens: Any, *args: Any) -> Any:
            looked.append(tokens[0])
            return original(tokens, *args)

        with wrapped(engine.cache.lower, "find", find):
            requests = ask(engine, prompts[:4], GREEDY)
            drive(engine)
        assert_right(requests, prompts[:4])
        assert max(looked.count(prompt[0]) for prompt in prompts[:4]) <= 2


def test_a_queued_prompt_is_loaded_while_it_waits_for_its_turn(prompts: list[list[int]]) -> None:
    with below(max_running=1) as (engine, _, _):
        store(engine, prompts[:1])
        first, second = ask(engine, [prompts[1], prompts[0]], GREEDY)
        for _ in range(3):
            checked_pass(engine)
        assert not first.is_finished
        assert engine.cache.lookup(prompts[0]).num_tokens >= 96
        drive(engine)
        assert_right([first, second], [prompts[1], prompts[0]])
        assert second.completions()[0].prefix_by_tier == {HOST: 96}


def test_pages_that_went_down_while_a_request_waited_are_loaded_when_its_turn_comes(prompts: list[list[int]]) -> None:
    with below(max_running=1) as (engine, _, _):
        assert answers(engine, prompts[:1], GREEDY) == [ref(prompts[0], NEW)]
        first, second = ask(engine, [prompts[1], prompts[0]], GREEDY)
        checked_pass(engine)
        assert engine.loading.stage(second.branches[0]) is Stage.READY  # all is on the device
        empty_device(engine)
        drive(engine)
        assert_right([first, second], [prompts[1], prompts[0]])
        assert second.completions()[0].prefix_by_tier == {HOST: 96}


def test_requests_that_share_pages_load_them_once(prompts: list[list[int]]) -> None:
    with below() as (engine, switch, _):
        store(engine, prompts[:1])
        switch.is_held = True
        requests = ask(engine, [prompts[0]] * 4, GREEDY)
        for _ in range(3):
            checked_pass(engine)
        assert engine.statistics().loading == 4
        switch.is_held = False
        drive(engine)
        assert_right(requests, [prompts[0]] * 4)
        assert engine.cache.statistics().tiers[0].loaded.pages == 6
        assert [done.prefix_by_tier for done in first_choices(requests)] == [{HOST: 96}] + [{DEVICE: 96}] * 3


def test_loads_take_no_blocks_that_running_requests_need_soon(prompts: list[list[int]]) -> None:
    """Ten blocks: a request that runs holds seven, and the one whose pages are below would take seven as well."""
    with below(num_blocks=10) as (engine, _, _):
        store(engine, prompts[:1])
        first, second = ask(engine, [prompts[1], prompts[0]], GREEDY)
        while not first.is_finished:
            checked_pass(engine)
            assert block_counts(engine).moving == 0 or first.is_finished
            assert not second.branches[0].output
        drive(engine)
        assert_right([first, second], [prompts[1], prompts[0]])
        assert engine.statistics().preemptions == 0
        assert second.completions()[0].prefix_by_tier == {HOST: 96}


# -- loads that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LosingHost, LyingHost])
@pytest.mark.parametrize("failures", [1, 3, 100])
def test_pages_that_are_lost_after_the_look_up_are_computed(
    prompts: list[list[int]], kind: type[LosingHost], failures: int
) -> None:
    """O-17 (b): two requests share the prefix; a page is tried twice at most, whatever the tier says."""
    made: list[LosingHost] = []

    def make(engine: Engine) -> LowerTier:
        made.append(kind(engine.layout.block_stride, 500, 0))
        return made[0]

    with below(make) as (engine, _, _):
        store(engine, prompts[:1])
        made[0].failures = failures
        requests = ask(engine, [prompts[0]] * 2, GREEDY)
        passes = drive(engine)
        assert_right(requests, [prompts[0]] * 2)
        assert passes <= 2 * (1 + NEW) + 4
        assert max(made[0].attempts.values()) <= 2
        assert engine.cache.statistics().tiers[0].loaded.failed == (min(failures, 6) if kind is LosingHost else 0)
        assert all(sum(done.prefix_by_tier.values()) == done.prefix_tokens for done in first_choices(requests))


def test_a_tier_that_hangs_costs_its_deadline_and_never_a_wrong_block(prompts: list[list[int]]) -> None:
    """O-21: 20 requests, half of them in a tier that does not answer. The others are not held up by a single pass."""
    clock = VirtualClock()
    with below(lambda engine: BreakingHost(engine.layout.block_stride, 500, clock), num_blocks=200) as (engine, _, _):
        store(engine, prompts[:10])
        alone = ask(engine, prompts[10:], GREEDY)
        expected = drive(engine)
        assert_right(alone, prompts[10:])
    with below(lambda engine: BreakingHost(engine.layout.block_stride, 500, clock), num_blocks=200, deadline=0.2) as (
        engine,
        switch,
        _,
    ):
        assert engine.cache.lower is not None
        migration = engine.cache.lower.migration
        migration._clock = migration.up.clock = clock
        store(engine, prompts[:10])
        switch.is_held = True
        mixed = [prompt for pair in zip(prompts[:10], prompts[10:], strict=True) for prompt in pair]
        requests = ask(engine, mixed, GREEDY)
        others = 0
        passes = 0
        while engine.has_work:
            clock.now += 0.01
            checked_pass(engine)
            passes += 1
            if not others and all(request.is_finished for request in requests[1::2]):
                others = passes
        assert_right(requests, mixed)
        assert others <= expected + 1
        assert passes <= 20 + 2 * expected + 2  # the deadline, and then a cold run
        assert [done.prefix_tokens for done in first_choices(requests)[::2]] == [0] * 10
        assert engine.cache.statistics().migration.late > 0
        assert block_counts(engine).moving > 0  # what hangs still holds its blocks
        switch.is_held = False  # the answers come after all, into blocks that nobody else got
        assert answers(engine, mixed, GREEDY) == [ref(prompt, NEW) for prompt in mixed]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_request_can_be_cancelled_in_every_moment_of_a_load(prompts: list[list[int]], deterministic: bool) -> None:
    with below(deterministic=deterministic) as (engine, switch, _):
        store(engine, prompts[:2])
        total = block_counts(engine).total
        for held in range(4):
            for cancelled in range(6):
                empty_device(engine)
                switch.is_held = True
                request, other = ask(engine, prompts[:2], GREEDY)
                for number in range(6):
                    if number == held:
                        switch.is_held = False
                    if number == cancelled:
                        assert engine.cancel(request.id)
                        engine.check()
                    if engine.has_work:
                        checked_pass(engine)
                drive(engine)
                assert_right([other], [prompts[1]])
                assert request.completions()[0].finish_reason is FinishReason.CANCELLED
                assert_still(engine)
                counts = block_counts(engine)
                assert counts.free + counts.cached == total


# -- a tier that has to be asked ------------------------------------------------------------------------------------


def asked(engine: Engine) -> LowerTier:
    return Asked(engine.layout.block_stride, 500)


def test_a_remote_tier_is_asked_once_and_nobody_waits_for_its_answer(prompts: list[list[int]]) -> None:
    with below(asked) as (engine, switch, _):
        store(engine, prompts[:1])
        assert engine.cache.lower is not None
        tier: Any = engine.cache.lower.migration.tiers[0]
        tier.known.clear()
        tier.questions = 0
        switch.is_held = True
        requests = ask(engine, prompts[:2], GREEDY)
        for _ in range(4):
            checked_pass(engine)
        assert engine.loading.stage(requests[0].branches[0]) is Stage.ASKING
        assert engine.loading.stage(requests[1].branches[0]) is Stage.ASKING  # who knows?
        switch.is_held = False
        drive(engine)
        assert_right(requests, prompts[:2])
        assert requests[0].completions()[0].prefix_by_tier == {TierKind.REMOTE: 96}
        assert tier.questions == 2


def test_a_question_without_an_answer_costs_its_deadline(prompts: list[list[int]]) -> None:
    with below(asked, deadline=0.2) as (engine, switch, clock):
        store(engine, prompts[:1])
        assert engine.cache.lower is not None
        tier: Any = engine.cache.lower.migration.tiers[0]
        tier.known.clear()
        switch.is_held = True
        requests = ask(engine, prompts[:2], GREEDY)
        assert engine.prefetch(prompts[3]) is False  # somebody waits
        for _ in range(25):
            clock.now += 0.01
            checked_pass(engine)
        assert [len(request.branches[0].output) > 0 for request in requests] == [True, True]
        drive(engine)
        assert_right(requests, prompts[:2])


def test_nobody_waits_for_an_answer_longer_than_computing_takes(prompts: list[list[int]]) -> None:
    with below(asked) as (engine, switch, clock):
        engine.loading.model = LoadOrCompute(engine.layout.page_size, engine.layout.block_stride)
        engine.loading.model.stepped(1000, 0, 1.0)
        switch.is_held = True
        (request,) = ask(engine, prompts[:1], GREEDY)
        for _ in range(4):
            clock.now += 0.01
            checked_pass(engine)
        assert not request.branches[0].output  # 99 tokens take 0.1 s: worth waiting half of that
        clock.now += 0.02
        checked_pass(engine)
        assert len(request.branches[0].output) == 1
        drive(engine)
        assert_right([request], prompts[:1])


def test_a_request_can_be_cancelled_while_a_tier_is_asked(prompts: list[list[int]]) -> None:
    with below(asked) as (engine, switch, _):
        switch.is_held = True
        (request,) = ask(engine, prompts[:1], GREEDY)
        checked_pass(engine)
        assert engine.statistics().loading == 1
        engine.cancel(request.id)
        engine.check()
        assert not engine.has_work


def test_a_hint_asks_too(prompts: list[list[int]]) -> None:
    with below(asked) as (engine, _, _):
        store(engine, prompts[:1])
        assert engine.cache.lower is not None
        tier: Any = engine.cache.lower.migration.tiers[0]
        tier.known.clear()
        assert engine.prefetch(prompts[0])
        assert answers(engine, prompts[1:2], GREEDY) == [ref(prompts[1], NEW)]  # passes in which it is followed up
        assert engine.cache.lookup(prompts[0]).num_tokens == 96


# -- transfers that never end ---------------------------------------------------------------------------------------


def test_a_request_whose_blocks_a_hung_transfer_holds_ends_with_an_error(
    prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvpager.engine.standstill.HUNG_SECONDS", 0.0)
    with below(num_blocks=9, deadline=0.2) as (engine, switch, clock):
        store(engine, prompts[:1])
        switch.is_held = True
        request, other = ask(engine, [prompts[0], prompts[1]], Sampling(max_tokens=4))
        small = engine.submit(prompts[2][:20], Sampling(max_tokens=4))
        checked_pass(engine)
        clock.now += 1.0
        passes = drive(engine, most=200)
        assert passes < 50
        reasons = [each.completions()[0].finish_reason for each in (request, other, small)]
        assert reasons == [FinishReason.ERROR, FinishReason.ERROR, FinishReason.LENGTH]  # the small one fits
        assert "does not answer" in request.completions()[0].error
        switch.is_held = False
        assert answers(engine, prompts[1:2], GREEDY) == [ref(prompts[1], NEW)]


# -- preemption -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write_back", ["through", "back"])
def test_a_preempted_request_comes_back_from_where_its_pages_went(prompts: list[list[int]], write_back: str) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=20) as engine:
        put_below(engine, host(engine, 500), write_back=write_back)
        requests = ask(engine, prompts[:1], GREEDY)
        for _ in range(4):
            checked_pass(engine)
        assert force_preemption(engine)
        empty_device(engine)
        drive(engine)
        assert_right(requests, prompts[:1])
        resumed = engine.statistics().resumptions
        assert resumed.by_tier == {HOST: 1}
        assert resumed.tokens == {HOST: 96, TierKind.NONE: 103 - 96}
        assert requests[0].completions()[0].prefix_by_tier == {}  # hits are of the first start
        assert_still(engine)


def test_a_preempted_request_is_computed_again_where_that_is_cheaper(prompts: list[list[int]]) -> None:
    with below() as (engine, _, _):
        engine.loading.model = LoadOrCompute(engine.layout.page_size, engine.layout.block_stride)
        for _ in range(3):
            engine.loading.model.loaded(HOST, 6, 3600.0)
        requests = ask(engine, prompts[:1], GREEDY)
        for _ in range(4):
            checked_pass(engine)
        assert force_preemption(engine)
        empty_device(engine)
        drive(engine)
        assert_right(requests, prompts[:1])
        statistics = engine.statistics()
        assert statistics.resumptions.by_tier == {TierKind.NONE: 1}
        assert statistics.resumptions.tokens == {TierKind.NONE: 103}
        assert (statistics.loads.computed, statistics.loads.computed_tokens) == (1, 96)
        assert "it takes the least time" in statistics.loads_explained


# -- prefetch -------------------------------------------------------------------------------------------------------


def test_a_hint_brings_a_sessions_pages_up_and_starts_nothing(prompts: list[list[int]]) -> None:
    with below() as (engine, _, _):
        store(engine, prompts[:1])
        assert engine.prefetch(prompts[0])
        assert not engine.prefetch(prompts[0])  # it is under way
        assert not engine.prefetch(prompts[1])  # nothing is known of it
        assert not engine.has_work
        requests = ask(engine, prompts[:1], GREEDY)
        drive(engine)
        assert_right(requests, prompts[:1])
        assert requests[0].completions()[0].prefix_by_tier == {DEVICE: 96}
        assert engine.cache.statistics().tiers[0].loaded.pages == 6


def test_a_hint_does_nothing_where_the_pool_is_busy(prompts: list[list[int]]) -> None:
    with below(num_blocks=10) as (engine, _, _):
        store(engine, prompts[:1])
        requests = ask(engine, prompts[1:2], GREEDY)
        assert not engine.prefetch(prompts[0])  # somebody waits
        checked_pass(engine)
        assert not engine.prefetch(prompts[0])  # three blocks are left, six are needed
        drive(engine)
        assert_right(requests, prompts[1:2])
        assert engine.prefetch(prompts[0])  # the control


# -- shapes of a hit ------------------------------------------------------------------------------------------------


def test_a_load_ends_at_a_canonical_border_in_deterministic_mode(prompts: list[list[int]]) -> None:
    with below(deterministic=True) as (engine, _, _):
        store(engine, prompts[:1])
        requests = ask(engine, prompts[:1], GREEDY)
        drive(engine)
        assert_right(requests, prompts[:1])
        assert requests[0].completions()[0].prefix_by_tier == {HOST: 64}
        assert engine.cache.statistics().tiers[0].loaded.pages == 4


def test_a_longer_part_below_is_added_to_what_the_device_has(prompts: list[list[int]]) -> None:
    generator = random.Random(5)
    stem = random_tokens(generator, 64)
    whole = sharp_prompt(generator, 60, NEW, prefix=stem)
    with below() as (engine, _, _):
        store(engine, [whole])
        ask(engine, [[*stem, 1]], Sampling(max_tokens=1))
        drive(engine)
        requests = ask(engine, [whole], GREEDY)
        drive(engine)
        assert_right(requests, [whole])
        assert requests[0].completions()[0].prefix_by_tier == {DEVICE: 64, HOST: 48}


def test_only_the_first_pages_are_loaded_where_that_is_best(prompts: list[list[int]]) -> None:
    with below() as (engine, _, _):
        store(engine, prompts[:1])
        model = engine.loading.model = LoadOrCompute(engine.layout.page_size, engine.layout.block_stride)
        model.stepped(1000, 0, 1.0)
        model.loaded(HOST, 6, 0.0)
        with wrapped(model, "choose", lambda choose, offers, room, borders: choose(offers, 4, borders)):
            requests = ask(engine, prompts[:1], GREEDY)
            drive(engine)
        assert_right(requests, prompts[:1])
        assert requests[0].completions()[0].prefix_by_tier == {HOST: 64}
        assert engine.statistics().loads.partly == 1


def test_without_tiers_nothing_is_looked_for(prompts: list[list[int]]) -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=50) as engine:
        assert answers(engine, prompts[:2], GREEDY) == [ref(prompt, NEW) for prompt in prompts[:2]]
        assert not engine.prefetch(prompts[3])
        assert engine.statistics().loads.reasons == {}
        assert np.sum(list(engine.statistics().prefix_by_tier.values())) == 0
