"""Slow branches among ordinary ones: what they may keep, who waits, who stops; and random worlds in which all end."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvpager.engine.block_needs import (
    Limits,
    SlowLimits,
    blocks_of_request,
    holding_blocks,
    max_slow_tokens,
    new_blocks,
    slow_share,
)
from kvpager.engine.scheduler import AdmissionCost, Decision, Running, Waiting, decide, needed_soon, num_kept
from kvpager.memory.layout import KVLayout

PAGE = 16
LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=8, page_size=PAGE)
SLOW = SlowLimits(num_blocks=64, share=0.5, least=4, max_tokens=128, max_tokens_beside=32)
LIMITS = Limits(LAYOUT, max_running=8, max_batch_tokens=64, min_free=0, slow=SLOW)


def slow(key: int, computed: int, known: int, keeps: int = 32, held: int | None = None, **more: object) -> Running:
    held = min(keeps, LAYOUT.num_pages(computed)) if held is None else held
    view = Running(key, 0, key, computed, known, known, 0, lambda stopped: held, keeps=keeps, held=held, is_slow=True)
    return replace(view, **more)


def ordinary(key: int, computed: int, known: int) -> Running:
    return Running(key, 0, key, computed, known, known, 0, lambda stopped: LAYOUT.num_pages(computed))


def waits(key: int, known: int, needs: int, width: int = 1) -> Waiting:
    def cost() -> AdmissionCost:
        return AdmissionCost(0, holding_blocks(LAYOUT, known + 1), 0)

    return Waiting(key, 0, key, known, known, width, cost, needs)


def test_who_fits_is_ordinary_and_who_does_not_is_slow() -> None:
    decision = decide(LIMITS, [], [waits(1, 60, needs=64), waits(2, 2000, needs=65)], available=64)
    first, second = decision.admitted
    assert (first.key, first.prefix_tokens, first.keeps) == (1, 0, None)
    assert (second.key, second.prefix_tokens, second.keeps) == (2, None, 32)
    assert decision.work == {1: 60}
    assert decision.slow == {}  # what is found for it comes first


def test_without_slow_limits_nobody_is_slow() -> None:
    decision = decide(replace(LIMITS, slow=None), [], [waits(1, 60, needs=1000)], available=64)
    assert decision.admitted[0].keeps is None


def test_each_slow_branch_may_keep_a_share_of_what_those_before_it_left() -> None:
    kept, shares = 0, []
    while (keeps := slow_share(SLOW, 1, kept)) >= SLOW.least:
        shares.append(keeps)
        kept += keeps
    assert shares == [32, 16, 8, 4]
    assert SLOW.num_blocks - kept >= SLOW.least  # for the others
    assert slow_share(replace(SLOW, share=1.0), 1, 0) == 60
    assert slow_share(SLOW, 1, 0, width=3) == 10
    assert slow_share(SLOW, 3, 0) == 30  # whole pages of all groups
    assert slow_share(SLOW, 1, 64) == 0


def test_as_many_slow_ones_start_as_may_keep_the_least_and_the_others_wait() -> None:
    queue = [waits(key, 2000, needs=200) for key in range(1, 9)]
    decision = decide(LIMITS, [], queue, available=64)
    assert [admission.keeps for admission in decision.admitted] == [32, 16, 8, 4]


def test_slow_ones_that_the_tiers_could_not_hold_together_wait_for_each_other() -> None:
    limits = replace(LIMITS, slow=replace(SLOW, num_below=300))
    queue = [waits(key, 2000, needs=200) for key in range(1, 4)]
    assert len(decide(limits, [], queue, available=64).admitted) == 1
    assert len(decide(LIMITS, [], queue, available=64).admitted) == 3
    running = [slow(1, 600, 1000, needs=200)]
    assert not decide(limits, running, queue[1:], available=32).admitted
    assert decide(limits, [slow(1, 600, 1000, needs=100)], queue[1:2], available=32).admitted


def test_who_fits_alone_but_not_beside_slow_ones_is_slow_too() -> None:
    running = [slow(1, 600, 1000)]
    (admission,) = decide(LIMITS, running, [waits(2, 500, needs=40)], available=32).admitted
    assert admission.keeps == 16
    (admission,) = decide(LIMITS, running, [waits(2, 500, needs=32)], available=32).admitted
    assert admission.keeps is None


def test_a_slow_newcomer_waits_until_there_is_room_for_all_that_it_may_keep() -> None:
    running = [ordinary(1, 600, 601)]
    assert not decide(LIMITS, running, [waits(2, 2000, needs=200)], available=32).admitted  # 1 grows into one of them
    assert decide(LIMITS, running, [waits(2, 2000, needs=200)], available=33).admitted


def test_slow_work_has_a_budget_of_its_own() -> None:
    decision = decide(LIMITS, [ordinary(1, 40, 41), slow(2, 600, 1000)], [], available=40)
    assert decision.work == {1: 1}
    assert decision.slow == {2: 32}  # beside others
    assert decide(LIMITS, [slow(2, 600, 1000)], [], available=40).slow == {2: 128}
    together = decide(LIMITS, [slow(2, 600, 1000), slow(3, 640, 641, keeps=16)], [], available=40)
    assert together.slow == {2: 127, 3: 1}  # a token is kept for who decodes


def test_a_slow_branch_computes_no_more_at_once_than_it_may_keep() -> None:
    assert max_slow_tokens(LAYOUT, 5) == 2 * PAGE
    assert max_slow_tokens(LAYOUT, 1) == PAGE
    assert decide(LIMITS, [slow(1, 600, 1000, keeps=5)], [], available=0).slow == {1: 2 * PAGE}


def test_at_its_limit_a_slow_branch_takes_no_more_blocks() -> None:
    assert decide(LIMITS, [slow(1, 640, 1000, keeps=8)], [], available=0).slow == {1: 80}
    assert decide(LIMITS, [slow(1, 640, 1000, keeps=8, held=6)], [], available=0).slow == {}
    assert decide(LIMITS, [slow(1, 640, 1000, keeps=8, held=6)], [], available=2).slow == {1: 80}
    assert needed_soon(LAYOUT, slow(1, 640, 1000, keeps=8, held=6)) == 2
    assert needed_soon(LAYOUT, slow(1, 640, 1000, keeps=8, held=6, width=3)) == 18


def test_a_busy_branch_is_neither_served_nor_stopped() -> None:
    busy = slow(2, 600, 1000, is_busy=True)
    decision = decide(LIMITS, [ordinary(1, 32, 33), busy], [], available=0)
    assert (decision.work, decision.slow, decision.preempted) == ({}, {}, ())
    decision = decide(LIMITS, [ordinary(1, 32, 33), replace(busy, is_busy=False)], [], available=0)
    assert (decision.work, decision.preempted) == ({1: 1}, (2,))


def test_in_canonical_pieces_every_slow_branch_gets_a_whole_one() -> None:
    limits = replace(LIMITS, chunk=64)
    decision = decide(limits, [slow(1, 640, 1000), slow(2, 700, 1000, keeps=16), slow(3, 500, 501)], [], available=40)
    assert decision.slow == {1: 64, 2: 4, 3: 1}


def test_the_blocks_of_a_request() -> None:
    assert blocks_of_request(LIMITS, 100, 1, 10_000) == 7
    assert blocks_of_request(LIMITS, 100, 29, 10_000) == 8  # the last token has no K and V
    assert blocks_of_request(LIMITS, 100, 30, 10_000) == 9
    assert blocks_of_request(LIMITS, 100, 10_000, 200) == 13


# -- random worlds ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Twig:
    key: int
    prompt: int
    answer: int
    answered: int = 0
    computed: int = 0
    blocks: int = 0
    keeps: int | None = None
    state: str = "waiting"
    busy_for: int = 0  # passes until its slow step ends
    step: int = 0  # tokens of that

    @property
    def known(self) -> int:
        return self.prompt + self.answered


class World:
    """Blocks are numbers: no sharing, no prefixes. Slow steps take some passes, in which their branches are busy."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        chunk = self.random.choice([None, 64])
        self.num_blocks = self.random.randrange(20, 40)
        least = LAYOUT.num_pages(chunk or 1) + 3
        share = self.random.choice([0.2, 0.5, 1.0])
        tokens = 64
        found = SlowLimits(self.num_blocks, max(share, (least + 0.5) / self.num_blocks), least, tokens, tokens // 2)
        self.limits = Limits(LAYOUT, 6, 64, 0, chunk, slow=found)
        longest = 4 * self.num_blocks * PAGE
        self.twigs = [
            Twig(key, self.random.choice([self.random.randrange(1, 200), self.random.randrange(1, longest)]), answer)
            for key, answer in enumerate(self.random.randrange(1, 150) for _ in range(8))
        ]
        self.seen: set[str] = set()

    @property
    def available(self) -> int:
        return self.num_blocks - sum(twig.blocks for twig in self.twigs)

    def views(self) -> list[Running]:
        return [
            Running(
                twig.key, 0, twig.key, twig.computed, twig.known, twig.prompt, 0, self.freeable(twig),
                keeps=twig.keeps, held=twig.blocks, is_slow=twig.keeps is not None, is_busy=twig.busy_for > 0,
            )
            for twig in self.twigs
            if twig.state == "running"
        ]  # fmt: skip

    def freeable(self, twig: Twig) -> Callable[[object], int]:
        return lambda stopped: twig.blocks

    def queue(self) -> list[Waiting]:
        limit = 5 * self.num_blocks * PAGE
        return [
            replace(waits(t.key, t.known, blocks_of_request(self.limits, t.prompt, t.answer, limit)), prompt=t.prompt)
            for t in self.twigs
            if t.state == "waiting"
        ]

    def run_pass(self) -> None:
        running = self.views()
        decision = decide(self.limits, running, self.queue(), self.available)
        self.judge(decision, running)
        for key in decision.preempted:
            twig = self.twigs[key]
            assert not twig.busy_for
            twig.state, twig.blocks, twig.computed, twig.keeps = "waiting", 0, 0, None
            self.seen.add("preempted")
        for admission in decision.admitted:
            twig = self.twigs[admission.key]
            twig.state, twig.keeps = "running", admission.keeps
            self.seen.add("slow" if admission.keeps else "ordinary")
        for key, count in decision.slow.items():
            twig = self.twigs[key]
            self.grow(twig, count)
            twig.busy_for, twig.step = self.random.randrange(1, 6), count
        for key, count in decision.work.items():
            self.grow(self.twigs[key], count)
            self.compute(self.twigs[key], count)
        for twig in self.twigs:
            if twig.busy_for:
                twig.busy_for -= 1
                if not twig.busy_for:
                    self.compute(twig, twig.step)
        assert self.available >= 0

    def judge(self, decision: Decision, running: list[Running]) -> None:
        kept = num_kept(running) + sum(each.keeps or 0 for each in decision.admitted)
        slow_limits = self.limits.slow
        assert slow_limits is not None
        assert kept == 0 or self.num_blocks - kept >= slow_limits.least
        for view in running:
            if view.is_busy:
                assert view.key not in {*decision.work, *decision.slow, *decision.preempted}
            assert view.key not in (decision.slow if not view.is_slow else decision.work)
        if running:
            first = min(running, key=lambda view: view.importance)
            advances = first.is_busy or first.key in {*decision.work, *decision.slow}
            assert advances or any(view.is_busy for view in running), "the most important one stands still"
        elif self.queue():
            assert decision.admitted

    def grow(self, twig: Twig, count: int) -> None:
        new = new_blocks(LAYOUT, twig.computed, twig.computed + count)
        twig.blocks = twig.blocks + new if twig.keeps is None else min(twig.keeps, twig.blocks + new)

    def compute(self, twig: Twig, count: int) -> None:
        twig.computed += count
        if twig.computed == twig.known:
            twig.answered += 1
            if twig.answered == twig.answer:
                twig.state, twig.blocks = "finished", 0


def test_in_random_worlds_everybody_ends() -> None:
    seen: set[str] = set()
    for seed in range(10):
        world = World(seed)
        for _ in range(20_000):
            if all(twig.state == "finished" for twig in world.twigs):
                break
            world.run_pass()
        else:
            raise AssertionError(f"not done; replay: World({seed})")
        seen |= world.seen
    assert seen == {"slow", "ordinary", "preempted"}
