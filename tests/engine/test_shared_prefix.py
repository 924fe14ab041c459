"""A prefix that many requests share is computed once, by the first: the others start when it is there.

The rule one by one, whole runs over the world of numbers, and the engine with a model.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpager import KVLayout
from kvpager.engine import Engine, Sampling
from kvpager.engine.block_needs import Limits, holding_blocks
from kvpager.engine.scheduler import AdmissionCost, Decision, Running, Waiting, decide
from kvpager.types import PageName
from tests.engine.engines import answers, assert_idle, checked_step, drive
from tests.engine.scheduler_world import Job, World
from tests.tiny_model import random_tokens, ref, sharp_prompt, tiny_model

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=8, page_size=16)
LIMITS = Limits(LAYOUT, max_running=8, max_batch_tokens=32, min_free=0)
A, B = PageName((b"a",)), PageName((b"b",))


def running(key: int, name: PageName | None, *, rank: int = 0, known: int = 100, is_slow: bool = False) -> Running:
    return Running(
        key, rank, key, 16, known, known, 0, lambda stopped: 1, is_slow=is_slow, is_busy=is_slow, next_page=name
    )


def waiting(key: int, name: PageName | None, *, rank: int = 0, known: int = 20, width: int = 1) -> Waiting:
    cost = AdmissionCost(0, holding_blocks(LAYOUT, known + 1), 0, name)
    return Waiting(key, rank, key, known, known, width, lambda: cost)


def admitted(decision: Decision) -> list[int]:
    return [admission.key for admission in decision.admitted]


# -- the rule -----------------------------------------------------------------------------------------------------

WIDE = replace(LIMITS, max_batch_tokens=512)


def test_who_needs_the_page_that_another_computes_waits_for_it_and_others_pass() -> None:
    queue = [waiting(2, A), waiting(3, B), waiting(4, None)]
    assert admitted(decide(WIDE, [running(1, A)], queue, 100)) == [3, 4]
    assert admitted(decide(WIDE, [running(1, None)], queue, 100)) == [2, 3, 4]  # control


def test_of_those_that_start_together_the_first_computes_the_page() -> None:
    queue = [waiting(1, A), waiting(2, A), waiting(3, B), waiting(4, B), waiting(5, A)]
    assert admitted(decide(WIDE, [], queue, 100)) == [1, 3]


def test_it_waits_only_behind_a_more_important_branch() -> None:
    assert admitted(decide(WIDE, [running(9, A)], [waiting(2, A)], 100)) == [2]  # it came before
    assert admitted(decide(WIDE, [running(1, A)], [waiting(2, A, rank=1)], 100)) == [2]  # or has waited long
    assert admitted(decide(WIDE, [running(9, A, rank=1)], [waiting(2, A)], 100)) == []


def test_it_waits_only_for_what_is_computed_in_this_pass() -> None:
    now = [replace(running(1, A), is_scored=True)]
    assert admitted(decide(replace(WIDE, max_scored=0), now, [waiting(2, A)], 100)) == [2]  # 1 sits this pass out
    assert admitted(decide(replace(WIDE, max_scored=1), now, [waiting(2, A)], 100)) == []


def test_nobody_waits_for_the_second_lane() -> None:
    assert admitted(decide(WIDE, [running(1, A, is_slow=True)], [waiting(2, A)], 100)) == [2]


def test_those_that_pass_leave_it_its_place() -> None:
    """1 needs 6 blocks and one soon, 2 needs 2 and one soon, 3 the same: 12 in all, none of them for a fourth."""
    now, queue = [running(1, A)], [waiting(2, A), waiting(3, B)]
    assert admitted(decide(WIDE, now, queue, 7 + 3 + 2)) == [3]
    assert admitted(decide(WIDE, now, queue, 7 + 3 + 1)) == []
    assert admitted(decide(replace(WIDE, max_running=2), now, queue, 100)) == []  # nor its place among those that run
    assert admitted(decide(replace(WIDE, max_running=3), now, queue, 100)) == [3]


# -- whole runs ---------------------------------------------------------------------------------------------------


def run(limits: Limits, num_blocks: int, jobs: list[Job]) -> World:
    world = World(limits, num_blocks, jobs)
    while not world.is_done:
        world.run_pass()
        assert world.passes < 5_000
    return world


def test_a_system_prompt_is_computed_once_for_all_that_wait() -> None:
    limits = replace(LIMITS, max_running=64, max_batch_tokens=512)
    jobs = [Job(0, 0, 2_000 + 20 + number, 30, common=2_000) for number in range(64)]
    world = run(limits, 1_000, jobs)
    own = sum(20 + number + 29 for number in range(64))
    assert world.computed_tokens == 2_000 + own
    assert world.preemptions == 0


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2), st.integers(0, 90), st.integers(1, 60)), min_size=2),
    st.sampled_from([8, 40, 512]),
    st.sampled_from([None, None, 8]),
    st.sampled_from([3, 16, 64]),
)
def test_no_page_is_computed_twice_where_there_is_room(
    asks: list[tuple[int, int, int, int]], budget: int, chunk: int | None, max_running: int
) -> None:
    """But for the page at the end of a prompt, whose last token is never found, or where a piece ends."""
    layout = KVLayout(layers=1, kv_heads=1, head_dim=8, page_size=4)
    limits = Limits(layout, max_running, max(budget, chunk or 1), 0, chunk)
    jobs = [Job(arrival, family, common + own, 5, common=common) for arrival, family, common, own in asks]
    world = run(limits, 10_000, jobs)
    pages = {world.key(twig, number) for twig in world.twigs for number in range(twig.job.prompt // 4)}
    unit = chunk or 4
    assert world.computed_tokens <= 4 * len(pages) + len(jobs) * (2 * unit + 4)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_and_the_end_of_all_hold_in_a_small_pool(seed: int) -> None:
    """The world's own promises, with priorities and prefixes that part at every page."""
    generator = random.Random(seed)
    jobs = [
        Job(
            generator.randrange(60),
            generator.randrange(3),
            generator.randrange(20, 300),
            generator.randrange(1, 40),
            n=generator.choice([1, 1, 3]),
            priority=generator.choice([0, 0, 2]),
            common=generator.randrange(300),
        )
        for _ in range(60)
    ]
    limits = replace(LIMITS, max_running=8, max_batch_tokens=64, chunk=64 if seed == 2 else None)
    world = run(limits, 32, jobs)
    assert world.preemptions > 0, f"seed={seed}"  # the case is about pressure


# -- with a model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"deterministic": True}, {"max_batch_tokens": 40}], ids=str)
def test_the_engine_computes_a_common_prefix_once_and_says_the_same(options: dict[str, object]) -> None:
    generator = random.Random(5)
    prefix = random_tokens(generator, 128)
    prompts = [sharp_prompt(generator, 5 + 3 * number, 6, prefix) for number in range(5)]
    with Engine(tiny_model(), num_blocks=400, page_size=16, **options) as engine:  # type: ignore[arg-type]
        assert answers(engine, prompts, Sampling(temperature=0.0, max_tokens=6)) == [ref(each, 6) for each in prompts]
        statistics = engine.statistics()
        assert statistics.prefix_tokens == 4 * 128
        assert_idle(engine)


def test_where_the_first_is_cancelled_the_next_goes_on_with_what_is_there() -> None:
    generator = random.Random(6)
    prefix = random_tokens(generator, 160)
    prompts = [sharp_prompt(generator, 9, 4, prefix) for _ in range(4)]
    with Engine(tiny_model(), num_blocks=400, page_size=16, max_batch_tokens=64) as engine:
        requests = [engine.submit(each, Sampling(temperature=0.0, max_tokens=4)) for each in prompts]
        checked_step(engine)
        assert engine.statistics().running == 1
        engine.cancel(requests[0].id)
        checked_step(engine)
        assert engine.statistics().running == 1
        drive(engine)
        said = [list(each.completions()[0].token_ids) for each in requests[1:]]
        assert said == [ref(each, 4) for each in prompts[1:]]
        assert [each.completions()[0].prefix_tokens for each in requests[1:]] == [64, 160, 160]
        assert_idle(engine)
