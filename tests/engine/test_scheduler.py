"""The scheduler's decisions one by one, and whole runs of random work over a world of numbers, without torch."""

import random
import subprocess
import sys
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from kvpager import KVLayout
from kvpager.engine.block_needs import Limits, holding_blocks, new_blocks, tokens_that_fit
from kvpager.engine.scheduler import (
    AGING_PASSES,
    Admission,
    AdmissionCost,
    Decision,
    Running,
    Waiting,
    decide,
    effective_rank,
)
from kvpager.memory.layout import LayerSpec
from tests.engine.scheduler_world import Job, World

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=8, page_size=16)
LIMITS = Limits(LAYOUT, max_running=8, max_batch_tokens=32, min_free=0)
CANONICAL = replace(LIMITS, chunk=64, max_batch_tokens=64)


def running(
    key: int,
    computed: int,
    known: int,
    *,
    prompt: int | None = None,
    rank: int = 0,
    copies: int = 0,
    frees: int | Callable[[Collection[int]], int] = 1,
    tail: int | None = None,
    width: int = 1,
) -> Running:
    freeable = frees if callable(frees) else lambda stopped: frees
    return Running(key, rank, key, computed, known, known if prompt is None else prompt, copies, freeable, tail, width)


def waiting(
    key: int,
    known: int,
    *,
    prefix: int = 0,
    revived: int = 0,
    blocks: int | None = None,
    rank: int = 0,
    width: int = 1,
    layout: KVLayout = LAYOUT,
) -> Waiting:
    needed = holding_blocks(layout, known + 1) - prefix // layout.page_size if blocks is None else blocks
    return Waiting(key, rank, key, known, known, width, lambda: AdmissionCost(prefix, needed, revived))


def admitted(decision: Decision) -> list[int]:
    return [admission.key for admission in decision.admitted]


# -- block arithmetic ---------------------------------------------------------------------------------------------

WINDOWED = KVLayout.mixed([LayerSpec(1, 8), LayerSpec(1, 8, window=20)], page_size=16)


@pytest.mark.parametrize(
    ("start", "stop", "blocks"), [(0, 1, 1), (0, 16, 1), (0, 17, 2), (15, 16, 0), (16, 17, 1), (17, 64, 2)]
)
def test_a_step_maps_a_block_per_page_that_it_begins(start: int, stop: int, blocks: int) -> None:
    assert new_blocks(LAYOUT, start, stop) == blocks
    assert new_blocks(WINDOWED, start, stop) == 2 * blocks


def test_windowed_groups_hold_only_their_window() -> None:
    assert [holding_blocks(LAYOUT, tokens) for tokens in (1, 16, 17, 320)] == [1, 1, 2, 20]
    assert [holding_blocks(WINDOWED, tokens) for tokens in (1, 16, 17, 320)] == [2, 2, 4, 20 + 4]
    assert holding_blocks(WINDOWED, 320, piece=64) == 20 + 7


@pytest.mark.parametrize("layout", [LAYOUT, WINDOWED], ids=["full", "windowed"])
@pytest.mark.parametrize("piece", [1, 64])
def test_the_longest_sequence_that_fits_is_the_longest(layout: KVLayout, piece: int) -> None:
    for blocks in range(1, 40):
        fits = tokens_that_fit(layout, blocks, 10_000, piece)
        assert fits == 0 or holding_blocks(layout, fits, piece) <= blocks
        assert fits == 10_000 or holding_blocks(layout, fits + 1, piece) > blocks
    assert tokens_that_fit(layout, 1000, 77) == 77


# -- running branches ---------------------------------------------------------------------------------------------


def test_with_nothing_to_do_nothing_is_decided() -> None:
    assert decide(LIMITS, [], [], 10) == Decision((), (), {})


def test_decoding_branches_get_one_token_each_and_a_prompt_what_is_left_of_the_budget() -> None:
    now = [running(1, 40, 41), running(2, 33, 34), running(3, 48, 100)]
    assert decide(LIMITS, now, [], 20).work == {1: 1, 2: 1, 3: 30}


def test_an_important_prompt_leaves_a_token_for_every_branch_that_decodes() -> None:
    now = [running(1, 40, 41), running(2, 33, 34), running(3, 48, 100, rank=5)]
    decision = decide(LIMITS, now, [], 20)
    assert list(decision.work.items()) == [(3, 30), (1, 1), (2, 1)]


def test_the_most_important_prompt_advances_even_if_decoding_takes_the_whole_budget() -> None:
    limits = replace(LIMITS, max_batch_tokens=3)
    decoding = [running(key, 40, 41) for key in range(1, 6)]
    assert decide(limits, [*decoding, running(9, 0, 50, rank=1)], [], 20).work == {9: 1, 1: 1, 2: 1}
    assert decide(limits, [*decoding, running(9, 0, 50)], [], 20).work == {1: 1, 2: 1, 3: 1}  # without rank it waits


def test_the_budget_goes_by_rank_and_then_by_arrival() -> None:
    now = [running(1, 0, 40), running(2, 0, 40, rank=1), running(3, 0, 40)]
    assert decide(LIMITS, now, [], 20).work == {2: 32}
    assert decide(LIMITS, now[::2], [], 20).work == {1: 32}


def test_no_decision_exceeds_the_token_budget() -> None:
    now = [running(key, 40, 41) for key in range(40)]
    decision = decide(replace(LIMITS, max_running=64), now, [waiting(50, 10)], 500)
    assert sum(decision.work.values()) == 32
    assert list(decision.work) == list(range(32))


def test_a_chunk_is_shortened_to_the_blocks_that_are_left() -> None:
    assert decide(LIMITS, [running(1, 8, 100)], [], 1).work == {1: 24}  # the rest of its page, and one more
    assert decide(LIMITS, [running(1, 8, 100)], [], 0).work == {1: 8}
    assert decide(LIMITS, [running(1, 8, 100, copies=1)], [], 1).work == {1: 8}  # the block goes into the copy


def test_shortening_comes_before_preempting() -> None:
    now = [running(1, 8, 100), running(2, 17, 18)]
    assert decide(LIMITS, now, [], 0) == Decision((), (), {1: 8, 2: 1})


def test_without_a_block_left_the_least_important_branch_is_preempted() -> None:
    now = [running(1, 32, 33), running(2, 20, 21), running(3, 24, 25)]
    assert decide(LIMITS, now, [], 0) == Decision((3,), (), {1: 1, 2: 1})
    assert decide(LIMITS, now, [], 1) == Decision((), (), {1: 1, 2: 1, 3: 1})  # control


def test_nobody_is_preempted_for_a_less_important_branch() -> None:
    """The prompt of higher rank has not been served when the branch that decodes runs out of blocks."""
    now = [running(1, 32, 33), running(2, 64, 100, rank=1)]
    decision = decide(LIMITS, now, [], 0)
    assert decision.preempted == (1,)
    assert decision.work == {2: 16}


def test_the_last_in_importance_sits_out_rather_than_stop_those_before_it() -> None:
    now = [running(1, 20, 21), running(2, 32, 33)]
    assert decide(LIMITS, now, [], 0) == Decision((), (), {1: 1})


def test_a_branch_for_which_all_behind_it_would_not_do_stops_nobody() -> None:
    """Canonical pieces can't be cut: 4 blocks are needed, and all the others would give 2."""
    now = [
        running(1, 20, 21, prompt=10),
        running(2, 0, 64),
        running(3, 20, 21, prompt=10),
        running(4, 20, 21, prompt=10),
    ]
    assert decide(CANONICAL, now, [], 1) == Decision((), (), {1: 1, 3: 1, 4: 1})
    assert decide(CANONICAL, now, [], 2) == Decision((4, 3), (), {1: 1, 2: 64})  # control: together they would


def test_branches_whose_end_frees_nothing_are_not_preempted() -> None:
    now = [running(1, 32, 33), running(2, 20, 21, frees=3), running(3, 24, 25, frees=0)]
    assert decide(LIMITS, now, [], 0) == Decision((2,), (), {1: 1, 3: 1})


def test_two_forks_that_share_a_page_free_it_together() -> None:
    def frees(key: int) -> Callable[[Collection[int]], int]:
        twin = {2: 3, 3: 2}[key]
        return lambda stopped: 1 if twin in stopped else 0

    now = [running(1, 32, 33), running(2, 20, 21, frees=frees(2)), running(3, 20, 21, frees=frees(3))]
    assert decide(LIMITS, now, [], 0) == Decision((3, 2), (), {1: 1})


def test_the_last_owner_of_a_shared_page_needs_no_copy() -> None:
    twins = [running(key, 20, 21, copies=1, tail=7) for key in (1, 2, 3)]
    assert decide(LIMITS, twins, [], 2).work == {1: 1, 2: 1, 3: 1}
    published = [running(key, 20, 21, copies=1) for key in (1, 2, 3)]
    assert decide(LIMITS, published, [], 2).work == {1: 1, 2: 1}  # control: each needs a block of its own


def test_a_fork_is_stopped_where_that_alone_saves_the_copy() -> None:
    twins = [running(key, 20, 21, copies=1, tail=7, frees=0) for key in (1, 2)]
    assert decide(LIMITS, twins, [], 0) == Decision((2,), (), {1: 1})


def test_as_few_as_make_room_are_preempted() -> None:
    now = [running(1, 0, 64), *(running(key, 20, 21, prompt=10, frees=key) for key in (2, 3, 4))]
    assert decide(CANONICAL, now, [], 0).preempted == (4,)
    assert decide(CANONICAL, [now[0], now[2], now[1]], [], 0).preempted == (3, 2)


# -- canonical pieces ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("computed", "prompt", "known", "count"),
    [
        (0, 200, 200, 64),
        (64, 200, 200, 64),
        (192, 200, 200, 8),
        (0, 10, 10, 10),
        (0, 64, 80, 64),
        (64, 64, 80, 1),
        (79, 64, 80, 1),
    ],
)
def test_pieces_end_at_canonical_borders_and_answers_are_computed_one_by_one(
    computed: int, prompt: int, known: int, count: int
) -> None:
    now = [running(1, computed, known, prompt=prompt)]
    assert decide(CANONICAL, now, [], 100).work == {1: count}


@pytest.mark.parametrize(
    ("computed", "prompt", "known", "count"),
    [(0, 20, 25, 20), (0, 60, 65, 32), (20, 20, 25, 1), (24, 20, 25, 1), (0, 20, 20, 20)],
)
def test_approximate_answers_are_computed_again_one_by_one(computed: int, prompt: int, known: int, count: int) -> None:
    exact = running(1, computed, known, prompt=prompt)
    assert decide(LIMITS, [replace(exact, is_exact=False)], [], 100).work == {1: count}
    assert decide(LIMITS, [exact], [], 100).work == {1: min(32, known - computed)}
    newcomer = replace(waiting(1, known, prefix=computed), prompt=prompt, is_exact=False)
    assert decide(LIMITS, [], [newcomer], 100).work == {1: count}


def test_a_piece_that_begins_within_the_budget_is_never_cut() -> None:
    """Otherwise a branch that decodes would keep a prompt from ever getting its 64 tokens."""
    now = [running(1, 100, 101, prompt=10), running(2, 0, 128), running(3, 0, 128)]
    assert decide(CANONICAL, now, [], 100).work == {1: 1, 2: 64}


def test_a_piece_waits_for_all_its_blocks() -> None:
    assert decide(CANONICAL, [running(1, 0, 128)], [], 3).work == {}
    assert decide(CANONICAL, [running(1, 0, 128)], [], 4).work == {1: 64}


# -- waiting branches ---------------------------------------------------------------------------------------------


def test_waiting_branches_start_in_their_order_until_the_budget_is_used() -> None:
    decision = decide(LIMITS, [], [waiting(1, 10), waiting(2, 10), waiting(3, 30), waiting(4, 5)], 100)
    assert admitted(decision) == [1, 2, 3]
    assert decision.work == {1: 10, 2: 10, 3: 12}


def test_the_first_that_does_not_fit_is_not_overtaken() -> None:
    queue = [waiting(1, 10), waiting(2, 100), waiting(3, 5)]
    assert admitted(decide(LIMITS, [], queue, 5)) == [1]
    assert admitted(decide(LIMITS, [], [queue[0], queue[2]], 5)) == [1, 3]  # control


def test_with_nothing_running_the_first_always_starts() -> None:
    limits = replace(LIMITS, min_free=4)
    assert decide(limits, [], [waiting(1, 64, blocks=5)], 4) == Decision((), (Admission(1, 0),), {1: 32})
    assert decide(limits, [running(9, 20, 21)], [waiting(1, 64, blocks=5)], 4).admitted == ()  # control


def test_an_admission_leaves_what_running_branches_will_need_soon() -> None:
    now = [running(9, 16, 60)]  # 4 pages for its tokens and the next: 4 more than its 1
    assert admitted(decide(LIMITS, now, [waiting(1, 10)], 5)) == []
    assert admitted(decide(replace(LIMITS, max_batch_tokens=64), now, [waiting(1, 10)], 5)) == [1]


def test_an_admission_leaves_the_next_page_of_those_admitted_before_it() -> None:
    queue = [waiting(1, 31), waiting(2, 150)]  # 2 and 10 blocks, and 1 needs a third at its second token
    limits = replace(LIMITS, max_batch_tokens=512)
    assert admitted(decide(limits, [], queue, 12)) == [1]
    assert admitted(decide(limits, [], queue, 13)) == [1, 2]


def test_an_admission_leaves_min_free_blocks() -> None:
    limits, now = replace(LIMITS, min_free=2), [running(9, 20, 21)]
    assert admitted(decide(limits, now, [waiting(1, 10)], 3)) == []
    assert admitted(decide(limits, now, [waiting(1, 10)], 4)) == [1]


def test_no_more_than_max_running_run() -> None:
    limits = replace(LIMITS, max_running=3)
    now = [running(8, 20, 21), running(9, 20, 21)]
    assert admitted(decide(limits, now, [waiting(1, 3), waiting(2, 3)], 100)) == [1]


def test_forks_count_from_the_start() -> None:
    limits = replace(LIMITS, max_running=6)
    assert admitted(decide(limits, [], [waiting(1, 3, width=4), waiting(2, 3, width=4)], 100)) == [1]
    assert admitted(decide(limits, [running(9, 0, 100, width=4)], [waiting(1, 3, width=4)], 100)) == []
    assert admitted(decide(limits, [running(9, 0, 20, width=4)], [waiting(1, 3, width=2)], 100)) == [1]


def test_a_pass_that_preempts_starts_nobody() -> None:
    now = [running(1, 32, 33), running(2, 20, 21, frees=50)]
    assert decide(LIMITS, now, [waiting(3, 5)], 0) == Decision((2,), (), {1: 1})


def test_a_hit_is_told_on_and_only_the_rest_is_computed() -> None:
    decision = decide(LIMITS, [], [waiting(1, 60, prefix=48, revived=3)], 4)
    assert decision == Decision((), (Admission(1, 48),), {1: 12})


def test_revived_pages_are_not_given_out_twice() -> None:
    """Of 5 blocks the hit takes 3: what is left holds 2 pages, not 5."""
    decision = decide(replace(LIMITS, max_batch_tokens=512), [], [waiting(1, 200, prefix=48, revived=3)], 5)
    assert decision.work == {1: 32}


def test_a_hit_that_ends_inside_a_page_pays_for_the_copy() -> None:
    queue = [waiting(1, 60, prefix=56, revived=4, blocks=5)]
    assert decide(LIMITS, [], queue, 5).work == {1: 4}
    assert decide(LIMITS, [], queue, 4).admitted == ()


def test_a_lookup_is_made_only_for_those_that_might_start() -> None:
    asked: list[int] = []

    def cost(key: int) -> AdmissionCost:
        asked.append(key)
        return AdmissionCost(0, 1 if key == 1 else 100, 0)

    queue = (Waiting(key, 0, key, 5, 5, 1, lambda key=key: cost(key)) for key in range(1, 1000))
    assert admitted(decide(LIMITS, [], queue, 10)) == [1]
    assert asked == [1, 2]


def test_waiting_raises_the_rank_by_one_every_so_many_passes() -> None:
    assert [effective_rank(3, waited) for waited in (0, AGING_PASSES - 1, AGING_PASSES, 5 * AGING_PASSES)] == [
        3,
        3,
        4,
        8,
    ]


def test_a_decision_is_pure() -> None:
    now = [running(1, 32, 33), running(2, 0, 50, rank=2), running(3, 24, 25)]
    queue = [waiting(4, 20), waiting(5, 30)]
    before = deepcopy((LIMITS, now, queue))
    first = decide(LIMITS, now, queue, 3)
    assert decide(LIMITS, now[::-1], queue, 3) == first  # the order of the running ones does not matter
    assert repr((LIMITS, now, queue)).split(" at 0x")[0] == repr(before).split(" at 0x")[0]
    assert [view.importance for view in now] == [view.importance for view in before[1]]


def test_the_scheduler_imports_no_torch() -> None:
    code = "import sys, kvpager.engine.scheduler; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- whole runs ---------------------------------------------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Limits, int, list[Job]]:
    page = draw(st.sampled_from([1, 4, 16]))
    chunk = draw(st.sampled_from([None, None, page, 4 * page]))
    budget = draw(st.sampled_from([1, 2, 7, 32, 512])) if chunk is None else draw(st.integers(chunk, 3 * chunk))
    num_blocks = draw(st.integers((chunk or page) // page, 24))
    most = num_blocks * page
    max_running = draw(st.sampled_from([1, 2, 4, 16]))
    layout = KVLayout(layers=1, kv_heads=1, head_dim=8, page_size=page)
    limits = Limits(layout, max_running, budget, draw(st.sampled_from([0, 0, 2])), chunk)
    jobs = []
    for _ in range(draw(st.integers(1, 12))):
        prompt = draw(st.integers(1, most))
        jobs.append(
            Job(
                arrival=draw(st.integers(0, 20)),
                family=draw(st.integers(0, 3)),
                prompt=prompt,
                answer=draw(st.integers(1, min(40, most - prompt + 1))),
                n=draw(st.integers(1, min(4, max_running))),
                priority=draw(st.sampled_from([0, 0, 0, 1, 5])),
                common=draw(st.sampled_from([prompt, prompt, prompt // 2, 0])),
            )
        )
    return limits, num_blocks, jobs


def steps_one_by_one(limits: Limits, jobs: list[Job]) -> int:
    """Passes that the jobs take alone, one after the other, forks too."""
    piece = limits.chunk or limits.max_batch_tokens
    return sum(job.n * (-(-job.prompt // piece) + job.answer) for job in jobs)


def run(limits: Limits, num_blocks: int, jobs: list[Job]) -> World:
    """To the end, every promise checked in every pass."""
    world = World(limits, num_blocks, jobs)
    last_arrival = max(job.arrival for job in jobs)
    bound = last_arrival + 3 * steps_one_by_one(limits, jobs) + 10
    while not world.is_done:
        world.run_pass()
        assert world.passes <= bound, f"not done after {bound} passes"
    assert world.available == num_blocks
    return world


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workloads())
def test_all_work_ends_within_three_times_its_length(workload: tuple[Limits, int, list[Job]]) -> None:
    limits, num_blocks, jobs = workload
    note(f"replay: run({limits}, {num_blocks}, {jobs})")
    world = run(limits, num_blocks, jobs)
    assert max(twig.preemptions for twig in world.twigs) <= 10


@pytest.mark.parametrize("seed", range(6))
def test_crowds_of_long_answers_end_with_few_preemptions(seed: int) -> None:
    """Open case O-23 (b) in numbers: 50 requests of 100 + 60 tokens, 32 blocks of 16."""
    generator = random.Random(seed)
    limits = replace(LIMITS, max_running=256, max_batch_tokens=512, chunk=64 if seed % 2 else None)
    jobs = [Job(generator.randint(0, seed * 20), family, 100, 60) for family in range(50)]
    world = run(limits, 32, jobs)
    assert world.preemptions > 0, f"seed={seed}"  # the case is about pressure
    assert max(twig.preemptions for twig in world.twigs) <= 10, f"seed={seed}"


def test_forks_in_a_pool_that_holds_one_of_them_take_turns() -> None:
    limits = replace(LIMITS, max_running=16)
    world = run(limits, 4, [Job(0, 0, 50, 15, n=9)])
    assert world.preemptions > 0


@pytest.mark.parametrize("urgency", [1, 3])
def test_a_patient_request_waits_at_most_for_the_urgent_ones_of_a_bounded_time(urgency: int) -> None:
    """Three times as much urgent work comes as can be done. Those that came ``urgency`` levels later go after it."""
    limits = replace(LIMITS, max_running=1)
    urgent = [Job(arrival, 1 + arrival, 30, 11, priority=urgency) for arrival in range(0, 4000, 4)]
    world = World(limits, 8, [Job(1, 0, 30, 11), *urgent])
    while world.passes < 2 or world.twigs[1].admitted_at is None:
        world.run_pass()
        assert world.passes <= urgency * AGING_PASSES // 4 * 12 + 30
    assert world.twigs[1].job.priority == 0
    assert world.passes >= urgency * AGING_PASSES  # control: it did wait for its rank to rise


def test_short_prompts_that_keep_coming_do_not_starve_a_long_one_of_its_pieces() -> None:
    """A piece needs the whole budget, of which every branch that decodes takes a token."""
    short = [Job(arrival, 1 + arrival, 5, 20) for arrival in range(1, 400, 2)]
    world = World(CANONICAL, 200, [Job(0, 0, 320, 5), *short])
    for _ in range(60):
        world.run_pass()
    assert world.twigs[0].state == "finished"
    assert len(world.in_state("running")) > 3  # control: others did decode


# -- the world itself finds broken schedulers ---------------------------------------------------------------------


def _idle(limits: Limits, running: list[Running], waiting: object, available: int) -> Decision:
    return Decision((), (), {})


def _greedy(limits: Limits, running: list[Running], waiting: object, available: int) -> Decision:
    return decide(limits, running, waiting, available + 3)


def _eager(limits: Limits, running: list[Running], waiting: object, available: int) -> Decision:
    if len(running) > 1:
        most, *_, least = sorted(running, key=lambda view: view.importance)
        return Decision((least.key,), (), {most.key: 1})
    return decide(limits, running, waiting, available)


def _rude(limits: Limits, running: list[Running], waiting: object, available: int) -> Decision:
    return decide(limits, running, reversed(list(waiting)), available)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (_idle, "without work"),
        (_greedy, "more blocks were promised"),
        (_eager, "blocks were enough"),
        (_rude, "overtaken"),
    ],
)
def test_the_world_notices_a_broken_scheduler(broken: Callable[..., Decision], complaint: str) -> None:
    world = World(LIMITS, 8, [Job(0, family, 30, 20) for family in range(6)], broken)

    def run_it() -> None:
        for _ in range(200):
            world.run_pass()

    with pytest.raises(AssertionError, match=complaint):
        run_it()


def test_newcomers_leave_the_blocks_that_are_reserved_for_branches_being_loaded() -> None:
    newcomer = [waiting(2, 64, blocks=5)]
    assert decide(LIMITS, [running(1, 16, 17)], newcomer, 12, reserved=6).admitted == ()
    assert decide(LIMITS, [running(1, 16, 17)], newcomer, 12, reserved=5).admitted == (Admission(2, 0),)
    assert decide(LIMITS, [], newcomer, 7, reserved=3).admitted == ()  # though nothing runs
    assert decide(LIMITS, [], newcomer, 3, reserved=0).admitted == (Admission(2, 0),)  # the control
    assert decide(LIMITS, [running(1, 16, 17)], [], 1, reserved=9).work == {1: 1}  # running ones may take them
