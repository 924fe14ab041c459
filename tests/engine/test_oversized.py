"""Requests whose pages do not fit on the device: the answers of all-resident ones, or a clear end."""

import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kvpager import HostTier
from kvpager.config.attend import EXACT
from kvpager.engine import Engine, FinishReason, Request, Retention, Sampling, TokenEvent, Verdict
from kvpager.engine.faults import NO_FAULTS
from kvpager.errors import ConfigError, RequestError
from tests.engine.determinism import Recorder
from tests.engine.engines import assert_idle, held_in_the_middle, wrapped
from tests.engine.oversized import (
    GREEDY,
    NEW,
    PAGE,
    answer,
    assert_nothing_left,
    failing_reads,
    model,
    prompt_of,
    steps,
    tiers_below,
)

TIERS = ("host", "disk", "host+disk", "remote")
# Each pool holds so large a share of what the longest prompt needs; a canonical piece of 64 tokens has to fit.
POOLS = {2: (310, 280, 250), 4: (620, 560), 8: (1230, 1100), 16: (2440,)}


_BY_HAND = {("remote", 16)}  # takes longest; other tiers run with so small a pool, and this one with larger ones
RUNS = [
    pytest.param(kind, share, marks=pytest.mark.heavy if (kind, share) in _BY_HAND else ())
    for kind in TIERS
    for share in POOLS
]


@pytest.mark.parametrize(("kind", "share"), RUNS)
def test_the_answers_are_bit_equal_over_small_pools_and_every_tier(kind: str, share: int, tmp_path: Path) -> None:
    """8 prompts a tier, 32 in all, one of them by hand."""
    lengths = POOLS[share]
    pages = -(-(max(lengths) + NEW) // PAGE)
    options = {"num_blocks": pages // share, "page_size": PAGE, "deterministic": True, "resident_share": 0.6}
    with Engine(model(), tiers=tiers_below(kind, tmp_path / str(share), pages), **options) as engine:
        recorder = Recorder()
        with recorder.rows_of(engine):
            requests = [engine.submit(prompt_of(seed, length), GREEDY) for seed, length in enumerate(lengths)]
            steps(engine, requests)
        for seed, (request, length) in enumerate(zip(requests, lengths, strict=True)):
            done, expected = request.completions()[0], answer(seed, length)
            what = f"{kind}, 1/{share}, {length} tokens"
            assert list(done.token_ids) == expected.tokens, what
            assert recorder.rows[request.branches[0].key] == expected.rows, what
            assert (done.is_oversized, done.attention) == (True, "exact"), what
            assert done.faults.major > 0, what
        shown = engine.statistics()
        assert shown.oversized_requests == len(lengths)
        assert shown.faults.major == sum(request.completions()[0].faults.major for request in requests)
        assert shown.approximate_requests == {}
        assert_nothing_left(engine)


def small(tmp_path: Path, kind: str = "disk", **options: object) -> Engine:
    """A pool of 60 pages, which holds 240 tokens."""
    given = {"num_blocks": 60, "page_size": PAGE, "deterministic": True, **options}
    return Engine(model(), **{"tiers": tiers_below(kind, tmp_path, 400), **given})


# -- several at once, and beside others ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["host", "disk"])
def test_several_too_large_ones_and_ordinary_ones_compete_without_deadlock(kind: str, tmp_path: Path) -> None:
    lengths = (500, 30, 420, 100, 610, 150, 20, 300)
    with small(tmp_path, kind, num_blocks=110, resident_share=0.3) as engine:
        requests = [engine.submit(prompt_of(seed, length), GREEDY) for seed, length in enumerate(lengths)]
        most = 0
        while any(not request.is_finished for request in requests):
            engine.step()
            slow = [branch for branch in engine.branches() if branch.is_slow]
            most = max(most, len(slow))
            assert sum(branch.keeps or 0 for branch in slow) <= 110 - 19
        for seed, (request, length) in enumerate(zip(requests, lengths, strict=True)):
            done = request.completions()[0]
            assert list(done.token_ids) == answer(seed, length).tokens
            assert done.is_oversized or length < 430
        assert most >= 2
        assert_nothing_left(engine)


def test_choices_of_an_oversized_request(tmp_path: Path) -> None:
    with small(tmp_path, num_blocks=150, resident_share=0.8) as engine:
        request = engine.submit(prompt_of(0, 620), Sampling(max_tokens=NEW, n=3))
        steps(engine, [request])
        assert [list(done.token_ids) for done in request.completions()] == [answer(0, 620).tokens] * 3
        assert_nothing_left(engine)


def test_a_second_question_about_a_long_prompt_finds_it_where_it_lies(tmp_path: Path) -> None:
    with small(tmp_path) as engine:
        first = engine.submit(prompt_of(0, 500), GREEDY)
        steps(engine, [first])
        again = engine.submit(prompt_of(0, 500), GREEDY)
        steps(engine, [again])
        done = again.completions()[0]
        assert done.token_ids == first.completions()[0].token_ids
        assert done.prefix_tokens == 448  # canonical pieces
        assert sum(tokens for tier, tokens in done.prefix_by_tier.items() if tier.name == "DISK") > 300
        assert_nothing_left(engine)


@pytest.mark.parametrize("choices", [1, 2])
def test_pins_of_an_oversized_request_go_below_after_its_other_pages(choices: int, tmp_path: Path) -> None:
    """Half of the pool may be pinned: more than the request may keep there, so that nothing of it would ever go."""
    sampling = Sampling(max_tokens=NEW, n=choices)
    with small(tmp_path, "host", num_blocks=110, resident_share=0.4) as engine:
        request = engine.submit(prompt_of(0, 500), sampling, retain=[Retention(0, 400, pin=True)])
        steps(engine, [request])
        for done in request.completions():
            assert list(done.token_ids) == answer(0, 500).tokens, done.error
            assert done.retained[0].verdict is Verdict.CLIPPED  # 55 of 100 pages
        shown = engine.cache.statistics().retention
        assert shown is not None
        assert shown.pinned == 55
        assert shown.pins_yielded >= 11  # it may keep 44
        assert_nothing_left(engine)


# -- when reading fails -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["error", "wrong"])
@pytest.mark.parametrize("number", [1, 40, 333])
def test_a_part_that_can_not_be_read_costs_time_and_nobody_else_notices(how: str, number: int, tmp_path: Path) -> None:
    with small(tmp_path, num_blocks=110, resident_share=0.4) as engine, engine_reads(engine, how, number) as spoilt:
        lengths = (500, 480, 90)
        requests = [engine.submit(prompt_of(seed, length), GREEDY) for seed, length in enumerate(lengths)]
        steps(engine, requests)
        assert spoilt == [number]
        found = [request.completions()[0] for request in requests]
        assert [list(done.token_ids) for done in found] == [answer(s, n).tokens for s, n in enumerate(lengths)]
        assert sorted(done.preemptions for done in found) == [0, 0, 1]
        assert_nothing_left(engine)


def engine_reads(engine: Engine, how: str, *numbers: int) -> AbstractContextManager[list[int]]:
    return failing_reads(engine, lambda number: how if number in numbers else "")


def test_a_tier_that_never_gives_anything_back_ends_the_request_and_no_other(tmp_path: Path) -> None:
    with small(tmp_path) as engine, failing_reads(engine, lambda number: "error"):
        prompt = prompt_of(1, 40)
        slow, ordinary = engine.submit(prompt_of(0, 500), GREEDY), engine.submit(prompt, GREEDY)
        steps(engine, [slow, ordinary])
        done = slow.completions()[0]
        assert done.finish_reason is FinishReason.ERROR
        assert "lost 3 times" in done.error
        assert list(ordinary.completions()[0].token_ids) == answer(1, 40).tokens
        assert_nothing_left(engine)


def test_tiers_that_take_nothing_end_the_request_with_the_reason(tmp_path: Path) -> None:
    with small(tmp_path) as engine:
        assert engine.cache.lower is not None
        (disk,) = engine.cache.lower.migration.tiers
        with wrapped(disk, "prepare_store", lambda original, page: None):
            slow, ordinary = engine.submit(prompt_of(0, 500), GREEDY), engine.submit(prompt_of(1, 40), GREEDY)
            steps(engine, [slow, ordinary])
        assert slow.completions()[0].finish_reason is FinishReason.ERROR
        assert "take none of its pages" in slow.completions()[0].error
        assert list(ordinary.completions()[0].token_ids) == answer(1, 40).tokens
        assert_nothing_left(engine)


# -- ends in the middle -------------------------------------------------------------------------------------------


def in_mid_step(engine: Engine, request: Request) -> None:
    for _ in range(10_000):
        if request.branches[0] in engine._loop.slow.branches and request.branches[0].running_sequence.length > 300:
            return
        engine.step()
    raise AssertionError("never in a step of the second lane")


def test_cancel_in_the_middle_of_a_step_gives_blocks_and_slots_back(tmp_path: Path) -> None:
    with small(tmp_path) as engine:
        with held_in_the_middle(engine):
            slow = engine.submit(prompt_of(0, 500), GREEDY)
            in_mid_step(engine, slow)
            assert engine.cancel(slow.id)
            assert engine._loop.slow.branches == ()
        assert slow.completions()[0].finish_reason is FinishReason.CANCELLED
        assert_nothing_left(engine)
        again = engine.submit(prompt_of(0, 500), GREEDY)
        steps(engine, [again])
        assert list(again.completions()[0].token_ids) == answer(0, 500).tokens


def test_close_in_the_middle_of_a_step(tmp_path: Path) -> None:
    with small(tmp_path) as engine:
        with held_in_the_middle(engine):
            slow = engine.submit(prompt_of(0, 500), GREEDY)
            in_mid_step(engine, slow)
        engine.close()
        assert slow.is_finished
    assert not any(thread.name == "kvpager-slow-lane" for thread in threading.enumerate())


def test_preempted_between_two_steps_it_goes_on_from_its_pages_below(tmp_path: Path) -> None:
    with small(tmp_path) as engine:
        slow = engine.submit(prompt_of(0, 500), GREEDY)
        preempted = 0
        for number in range(10_000):
            if slow.is_finished:
                break
            branch = slow.branches[0]
            if number % 7 == 6 and branch.sequence is not None and not engine._loop.slow.branches and preempted < 3:
                engine._queues.preempt(branch)
                preempted += 1
            engine.step()
        done = slow.completions()[0]
        assert (list(done.token_ids), done.preemptions) == (answer(0, 500).tokens, 3)
        assert_nothing_left(engine)


# -- what is refused, and what is said ----------------------------------------------------------------------------


def test_what_can_never_fit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with small(tmp_path, "host", tiers=[HostTier(pages=100)]) as engine:
        assert engine.max_tokens == 240
        assert engine.max_request_tokens == (30 + 100) * PAGE
        engine.submit(prompt_of(0, 520), GREEDY)
        with pytest.raises(
            RequestError, match=r"521 tokens, but at most 520 fit .*keep 30, and the tiers below hold 100"
        ):
            engine.submit(prompt_of(0, 521), GREEDY)
        with pytest.raises(RequestError, match=r"n=2 choices .* needs 19 blocks of the pool, but may keep 15"):
            engine.submit(prompt_of(0, 500), Sampling(n=2))
    for options, reason in (
        ({"demand_paging": "off"}, "demand_paging is off"),
        ({"resident_share": 0.2}, "needs 19 blocks of the pool, but may keep 12"),
        ({"tiers": []}, "no tier below"),
        ({"kv_dtype": "int8"}, "int8"),
    ):
        with small(tmp_path, **options) as engine, pytest.raises(RequestError, match=reason):
            engine.submit(prompt_of(0, 500), GREEDY)
    with pytest.raises(ConfigError, match="one layer of 2,048 tokens"):
        small(tmp_path, window="100KiB")


def test_ordinary_requests_on_such_an_engine_never_see_the_second_lane(tmp_path: Path) -> None:
    with small(tmp_path) as engine:
        request = engine.submit(prompt_of(0, 230), GREEDY)
        steps(engine, [request])
        done, shown = request.completions()[0], engine.statistics()
        assert (done.is_oversized, done.faults, done.attention) == (False, NO_FAULTS, "exact")
        assert (shown.slow_steps, shown.oversized_requests, shown.faults) == (0, 0, NO_FAULTS)
        assert engine._loop.slow.lane._thread is None


APPROXIMATE = "sinks-and-window:window=64,sinks=4"


def test_approximate_attention_is_off_unless_asked_for_and_named_where_it_is_on(tmp_path: Path) -> None:
    with small(tmp_path, num_blocks=400) as engine:
        prompt = prompt_of(0, 500)
        exact, approximate = engine.submit(prompt, GREEDY), engine.submit(prompt, GREEDY, attend=APPROXIMATE)
        events: list[TokenEvent] = []
        while engine.has_work:
            events += engine.step()
        assert exact.completions()[0].attention == "exact"
        assert list(exact.completions()[0].token_ids) == answer(0, 500).tokens
        assert approximate.completions()[0].attention == APPROXIMATE
        assert approximate.completions()[0].token_ids != exact.completions()[0].token_ids
        assert {(event.request_id, event.attention) for event in events} == {(0, "exact"), (1, APPROXIMATE)}
        assert engine.statistics().approximate_requests == {APPROXIMATE: 1}
        with pytest.raises(ConfigError, match="not known"):
            engine.submit(prompt, GREEDY, attend="guess")
        assert_nothing_left(engine)


def test_the_engines_own_way_to_attend_is_an_option(tmp_path: Path) -> None:
    with small(tmp_path, attend="sinks-and-window:window=64", num_blocks=400) as engine:
        (done,) = engine.generate([prompt_of(0, 300)], GREEDY)
        assert done.attention == APPROXIMATE
        (done,) = engine.generate([prompt_of(0, 300)], GREEDY, attend=EXACT)
        assert (done.attention, list(done.token_ids)) == ("exact", answer(0, 300).tokens)


@pytest.mark.parametrize("attend", ["sinks-and-window:window=64", "heavy-hitters:budget=80,recent=32"])
def test_who_gives_pages_back_fits_however_long_it_is(attend: str) -> None:
    with Engine(model(), num_blocks=60, page_size=PAGE, max_batch_tokens=64) as engine:
        requests = [engine.submit(prompt_of(seed, 900), GREEDY, attend=attend) for seed in range(2)]
        steps(engine, requests)
        for request in requests:
            done = request.completions()[0]
            assert (done.finish_reason, done.is_oversized, done.preemptions) == (FinishReason.LENGTH, False, 0)
        with pytest.raises(RequestError, match="at most 240 fit"):
            engine.submit(prompt_of(0, 900), GREEDY, attend="sinks-and-window:window=500")
        assert_idle(engine)
