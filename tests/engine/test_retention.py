"""Retentions through the engine: answers with the completion, times from the end of a request, and progress always."""

from collections.abc import Iterator

import pytest

from kvpager.engine import Engine, Retention, Sampling, Verdict
from kvpager.prefix.hashing import Scope
from kvpager.types import TierKind
from tests.contracts.eviction_policy import ManualClock
from tests.engine.engines import answers, assert_idle, block_counts, drive, force_preemption
from tests.tiny_model import tiny_model

FOUR = Sampling(max_tokens=4)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> Iterator[Engine]:
    with Engine(tiny_model(), page_size=16, num_blocks=16, max_batch_tokens=64, quotas=["small=25%"]) as engine:
        engine.cache.retention._clock = clock
        yield engine
        assert_idle(engine)


def prompt(base: int, length: int) -> list[int]:
    return [(base + step) % 90 + 1 for step in range(length)]


def test_a_completion_says_what_became_of_its_retentions(engine: Engine, clock: ManualClock) -> None:
    wishes = [Retention(0, 16, pin=True), Retention(16, ttl=5), Retention(40, pin=True)]
    request = engine.submit(prompt(0, 40), Sampling(max_tokens=16), retain=wishes)
    drive(engine)
    pinned, dies, late = request.completions()[0].retained
    assert (pinned.verdict, pinned.stop, dies.verdict, dies.start, dies.stop) == (
        Verdict.ACCEPTED, 16, Verdict.ACCEPTED, 16, 48,
    )  # fmt: skip
    assert (late.verdict, late.stop) == (Verdict.ACCEPTED, 48)  # pinned with the answer
    assert block_counts(engine).cached == 3
    assert late.id is not None
    engine.cache.retention.release(late.id)
    clock.now = 5
    assert engine.step() == []  # an idle engine notices too
    assert block_counts(engine).cached == 1


def test_streams_and_lists_of_prompts_take_retentions(engine: Engine) -> None:
    for done in engine.generate([prompt(0, 20), prompt(50, 20)], FOUR, retain=[Retention(ttl=0)]):
        assert done.retained[0].verdict is Verdict.ACCEPTED
    assert len(list(engine.stream(prompt(0, 20), FOUR, retain=[Retention(ttl=0)]))) == 4
    assert block_counts(engine).free == 16
    list(engine.stream(prompt(0, 20), FOUR))
    assert block_counts(engine).cached == 1  # the control


def test_all_choices_of_a_request_run_out(engine: Engine) -> None:
    request = engine.submit(prompt(0, 20), Sampling(max_tokens=20, n=3, seed=1), retain=[Retention(ttl=0)])
    drive(engine)
    assert [len(done.retained) for done in request.completions()] == [1, 1, 1]
    assert block_counts(engine).free == 16


def test_a_preempted_request_keeps_one_retention_and_one_that_is_cancelled_then_runs_out(
    engine: Engine, clock: ManualClock
) -> None:
    one = engine.submit(prompt(0, 20), FOUR, retain=[Retention(pin=True), Retention(priority=90), Retention(ttl=3)])
    engine.step()
    assert force_preemption(engine)
    assert engine.cache.retention.num_pinned == 0
    drive(engine)
    shown = engine.cache.statistics().retention
    assert shown is not None
    assert (shown.retentions, shown.pinned) == (3, 1)  # the pin, and a time to live for each time it let go
    assert one.completions()[0].preemptions == 1
    two = engine.submit(prompt(50, 20), FOUR, retain=[Retention(ttl=3)])
    engine.step()
    force_preemption(engine)
    engine.cancel(two.id)
    clock.now = 3
    engine.step()
    assert block_counts(engine).cached == 1  # the pinned one
    engine.cache.retention.release(one.completions()[0].retained[0].id or 0)
    assert block_counts(engine).cached == 0


def test_pins_make_requests_wait_for_each_other_and_yield_to_one_that_nothing_else_helps(engine: Engine) -> None:
    plain = answers(engine, [prompt(30, 60), prompt(60, 60), prompt(0, 200)], Sampling(max_tokens=30))
    engine.cache.clear_prefix()
    engine.cache.retention.retain(prompt(10, 128), pin=True)
    answers(engine, [prompt(10, 129)], FOUR)
    assert block_counts(engine).cached == 8
    assert answers(engine, [prompt(30, 60), prompt(60, 60)], Sampling(max_tokens=30)) == plain[:2]
    assert engine.cache.lookup([*prompt(10, 128), 1]).num_tokens == 128  # they took turns
    assert answers(engine, [prompt(0, 200)], Sampling(max_tokens=30)) == plain[2:]  # needs 15 of 16 blocks
    assert engine.cache.lookup([*prompt(10, 128), 1]).num_tokens < 128
    assert engine.cache.statistics().retention.pins_yielded >= 7  # type: ignore[union-attr]


def test_the_option_quotas_holds_for_the_scope_of_a_request(engine: Engine) -> None:
    small = Scope(salt="small")
    list(engine.generate([prompt(0, 100), prompt(30, 100)], FOUR, scope=small))
    shown = engine.cache.statistics().retention
    assert shown is not None
    assert shown.tenants["small"].blocks == {TierKind.DEVICE: 4}
    assert block_counts(engine).cached == 4
    list(engine.generate([prompt(0, 100)], FOUR))
    assert block_counts(engine).cached == 10
