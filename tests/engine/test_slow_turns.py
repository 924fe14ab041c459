"""Requests that do not fit, over tiers that take no more pages: each ends within a bound, and nobody else notices."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kvpager import HostTier
from kvpager.engine import Engine, FinishReason, Request, Retention, Sampling
from kvpager.errors import TierError
from tests.engine.engines import wrapped
from tests.engine.oversized import (
    GREEDY,
    NEW,
    PAGE,
    answer,
    assert_nothing_left,
    model,
    prompt_of,
    tiers_below,
)

BOUND = 3000  # passes with nothing to wait for: some ten times as many as these requests take


def small(tmp_path: Path, kind: str = "disk", **options: object) -> Engine:
    given = {"num_blocks": 110, "page_size": PAGE, "deterministic": True, "resident_share": 0.3, **options}
    return Engine(model(), **{"tiers": tiers_below(kind, tmp_path, 400), **given})


def tier_of(engine: Engine) -> Any:
    assert engine.cache.lower is not None
    (tier,) = engine.cache.lower.migration.tiers
    return tier


@contextmanager
def refusing(engine: Engine, refuses: Callable[[list[int]], bool]) -> Iterator[None]:
    """The tier takes no more pages, whatever it promised, where ``refuses`` says so of how many each running sequence
    has there."""

    def prepare_store(original: Callable[..., Any], *args: Any) -> Any:
        below = [engine.cache.paging.num_non_resident(branch.running_sequence) for branch in engine.branches()]
        return None if refuses(below) else original(*args)

    with wrapped(tier_of(engine), "prepare_store", prepare_store):
        yield


def two_have_some(below: list[int]) -> bool:
    """Each would need some 100."""
    return sum(pages > 0 for pages in below) > 1


def run_beside_others(engine: Engine, slow: list[Request], most: int = BOUND) -> list[Request]:
    """Until these have ended, with ordinary requests that come again and again; returns the ordinary ones. ``most``:
    passes after which nothing was on its way to or from a tier. Of the others there are as many as copies take long."""
    assert engine.cache.lower is not None
    ordinary: list[Request] = []
    still = 0
    for number in count():
        if all(request.is_finished for request in slow):
            break
        if not ordinary or ordinary[-1].is_finished:
            ordinary.append(engine.submit(prompt_of(90, 40), GREEDY))
        engine.step()
        if number % 4 == 0:
            engine.check()
        still += engine.cache.lower.migration.num_open == 0
        assert still < most, f"not done after {most} passes"
    while engine.has_work:
        engine.step()
    return ordinary


def assert_unaffected(ordinary: list[Request]) -> None:
    for request in ordinary:
        done = request.completions()[0]
        assert (list(done.token_ids), done.preemptions) == (answer(90, 40).tokens, 0)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_tier_that_turns_full_ends_a_lone_request_with_the_numbers_though_others_go_on(
    deterministic: bool, tmp_path: Path
) -> None:
    with small(tmp_path, deterministic=deterministic) as engine:
        with refusing(engine, lambda below: sum(below) >= 40):
            slow = engine.submit(prompt_of(0, 500), GREEDY)
            ordinary = run_beside_others(engine, [slow])
        done = slow.completions()[0]
        assert done.finish_reason is FinishReason.ERROR
        assert "take none of its pages" in done.error
        assert "may need" in done.error
        assert "disk has" in done.error
        assert len(ordinary) > 1
        if deterministic:
            assert_unaffected(ordinary)
        assert_nothing_left(engine)
        again = engine.submit(prompt_of(0, 500), GREEDY)
        run_beside_others(engine, [again])
        assert again.completions()[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("deterministic", [True, False])
def test_two_that_fill_the_tiers_together_run_one_after_the_other(deterministic: bool, tmp_path: Path) -> None:
    with small(tmp_path, deterministic=deterministic) as engine:
        with refusing(engine, two_have_some):
            lengths = (500, 490)
            slow = [engine.submit(prompt_of(seed, length), GREEDY) for seed, length in enumerate(lengths)]
            ordinary = run_beside_others(engine, slow)
        found = [request.completions()[0] for request in slow]
        assert [done.finish_reason for done in found] == [FinishReason.LENGTH] * 2
        if deterministic:  # where the disk is slow, the second may come to it only when the first has no need any more
            assert [done.preemptions for done in found] in ([0, 1], [0, 0])
        if deterministic:
            assert [list(done.token_ids) for done in found] == [answer(s, n).tokens for s, n in enumerate(lengths)]
            assert_unaffected(ordinary)
        assert_nothing_left(engine)


def test_the_less_important_one_makes_room_and_choices_do_too(tmp_path: Path) -> None:
    with small(tmp_path, num_blocks=150) as engine:
        with refusing(engine, two_have_some):
            first = engine.submit(prompt_of(0, 500), GREEDY)
            second = engine.submit(prompt_of(1, 490), Sampling(max_tokens=NEW, n=2), priority=1)
            run_beside_others(engine, [first, second])
        assert [done.finish_reason for done in first.completions()] == [FinishReason.LENGTH]
        assert [list(done.token_ids) for done in second.completions()] == [answer(1, 490).tokens] * 2
        assert list(first.completions()[0].token_ids) == answer(0, 500).tokens
        assert_nothing_left(engine)


@contextmanager
def writes(engine: Engine, how: str) -> Iterator[None]:
    """Writes hang until the end, or fail."""
    tier, goes_on = tier_of(engine), threading.Event()

    def write(original: Callable[..., Any], slots: Any, *args: Any) -> Any:
        if how == "hang":
            goes_on.wait(60)
            return original(slots, *args)
        return [TierError("no space left") for _ in slots]

    with wrapped(tier, "write", write), ExitStack() as stack:
        stack.callback(goes_on.set)
        yield


@pytest.mark.parametrize("how", ["hang", "fail"])
def test_writes_that_hang_or_fail_are_not_waited_for_without_end(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvpager.engine.standstill.HUNG_SECONDS", 0.2)
    monkeypatch.setattr("kvpager.engine.slow_turns.HUNG_SECONDS", 0.2)
    with small(tmp_path) as engine:
        with writes(engine, how):
            slow = [engine.submit(prompt_of(seed, 500), GREEDY) for seed in range(2)]
            ordinary = run_beside_others(engine, slow, most=100_000)
        for request in slow:
            done = request.completions()[0]
            assert done.finish_reason is FinishReason.ERROR
            assert "take none" in done.error or "does not answer" in done.error
        assert_unaffected(ordinary)
        assert_nothing_left(engine)


def test_one_that_the_tiers_can_not_hold_is_let_in_and_ends_where_the_books_were_wrong(tmp_path: Path) -> None:
    with small(tmp_path, "host", tiers=[HostTier(pages=200)]) as engine:
        with refusing(engine, lambda below: sum(below) >= 20):
            slow = engine.submit(prompt_of(0, 500), GREEDY)
            run_beside_others(engine, [slow])
        assert "host has" in slow.completions()[0].error
        assert_nothing_left(engine)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_tier_that_pins_fill_ends_it_with_the_numbers_and_soon(deterministic: bool, tmp_path: Path) -> None:
    """Half of the tier's slots are pinned: what is left holds some of what has to go, each page in place of another."""
    with small(tmp_path, tiers=[HostTier(pages=100)], deterministic=deterministic) as engine:
        pinned = engine.submit(prompt_of(7, 209), GREEDY, retain=[Retention(0, 208, pin=True)])
        run_beside_others(engine, [pinned])
        slow = engine.submit(prompt_of(0, 500), GREEDY)
        ordinary = run_beside_others(engine, [slow])
        assert "host has" in slow.completions()[0].error
        assert "retentions pin 52 pages" in slow.completions()[0].error
        if deterministic:
            assert_unaffected(ordinary)
        assert_nothing_left(engine)
        engine.cache.retention.release(0)
        again = engine.submit(prompt_of(0, 500), GREEDY)
        run_beside_others(engine, [again])
        assert again.completions()[0].finish_reason is FinishReason.LENGTH


def test_a_piece_that_must_not_be_cut_is_not_given_up_again_and_again(tmp_path: Path) -> None:
    """In deterministic mode a piece is a page at least, which may be longer than what is computed beside others."""
    with small(tmp_path, num_blocks=8, page_size=128, resident_share=0.5, max_batch_tokens=256) as engine:
        engine._loop.slow.tokens_beside = engine._loop.slow._fewest
        slow = engine.submit(prompt_of(0, 1200), GREEDY)
        run_beside_others(engine, [slow])
        assert slow.completions()[0].finish_reason is FinishReason.LENGTH
        assert slow.completions()[0].is_oversized
        assert_nothing_left(engine)
