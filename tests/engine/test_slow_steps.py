"""Steps of the second lane beside ordinary ones, where all pages fit: the engine only believes that they do not."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kvpager.cache.sequence import Sequence
from kvpager.engine import Engine, FinishReason, Request, Sampling
from kvpager.engine.block_needs import SlowLimits
from kvpager.engine.request import BranchState
from tests.engine.engines import assert_idle, first_choices, held_in_the_middle, wrapped
from tests.tiny_model import random_tokens, ref, sharp_prompt, tiny_model

NEW = 8


def believing(engine: Engine, num_blocks: int = 16) -> Engine:
    slow = SlowLimits(num_blocks, share=0.5, least=4, max_tokens=64, max_tokens_beside=32)
    engine.limits = engine._loop.limits = engine._view._limits = replace(engine.limits, slow=slow)
    original = engine.cache.sequence

    def sequence(*args: Any, resident_limit: int | None = None, non_resident: bool = False, **options: Any) -> Sequence:
        return original(*args, **options)  # all pages stay on the device

    engine.cache.sequence = sequence  # type: ignore[method-assign]
    return engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(tiny_model(), page_size=16, num_blocks=128, max_batch_tokens=64) as engine:
        yield believing(engine)
        assert_idle(engine)


def run(engine: Engine, requests: list[Request]) -> None:
    for _ in range(5000):
        if all(request.is_finished for request in requests):
            return
        engine.step()
        engine.check()
    raise AssertionError("not done")


def test_slow_requests_give_the_same_tokens(engine: Engine) -> None:
    generator = random.Random(0)
    prompts = [sharp_prompt(generator, length, NEW) for length in (300, 20, 270)]
    requests = [engine.submit(prompt, Sampling(max_tokens=NEW)) for prompt in prompts]
    run(engine, requests)
    for prompt, done in zip(prompts, first_choices(requests), strict=True):
        assert list(done.token_ids) == ref(prompt, NEW)
        assert done.is_oversized == (len(prompt) > 200)
    shown = engine.statistics()
    assert shown.oversized_requests == 2
    assert shown.slow_steps >= 300 // 32


def begun(engine: Engine, length: int = 300, **options: Any) -> Request:
    """A slow request in whose step the lane is."""
    request = engine.submit(random_tokens(random.Random(1), length), Sampling(max_tokens=NEW), **options)
    for _ in range(3):
        engine.step()
    assert engine._loop.slow.branches == (request.branches[0],)
    return request


def test_ordinary_requests_get_a_token_in_each_engine_step_while_a_slow_one_is_under_way(engine: Engine) -> None:
    generator = random.Random(2)
    prompts = [sharp_prompt(generator, 10, 24) for _ in range(2)]
    ordinary = [engine.submit(prompt, Sampling(max_tokens=24)) for prompt in prompts]
    engine.step()
    with held_in_the_middle(engine):
        slow = begun(engine)
        during = 0
        while not ordinary[0].is_finished:
            tokens = [event.request_id for event in engine.step()]
            engine.check()
            assert tokens.count(ordinary[0].id) == tokens.count(ordinary[1].id) == 1
            during += slow.branches[0] in engine._loop.slow.branches
        assert during >= 8
        assert [list(done.token_ids) for done in first_choices(ordinary)] == [ref(prompt, 24) for prompt in prompts]
        run(engine, [slow])
    assert slow.completions()[0].finish_reason is FinishReason.LENGTH


def test_cancel_in_the_middle_of_a_step_gives_everything_back_at_once(engine: Engine) -> None:
    with held_in_the_middle(engine):
        slow = begun(engine)
        assert engine.cancel(slow.id)
        assert engine._loop.slow.branches == ()
        assert slow.completions()[0].finish_reason is FinishReason.CANCELLED
        assert_idle(engine)


def test_who_is_cancelled_beside_others_loses_its_results_and_they_keep_theirs(engine: Engine) -> None:
    generator = random.Random(3)
    prompts = [sharp_prompt(generator, length, NEW) for length in (260, 280)]
    requests = [engine.submit(prompt, Sampling(max_tokens=new)) for prompt, new in zip(prompts, (60, NEW), strict=True)]
    with held_in_the_middle(engine):
        for _ in range(1000):
            engine.step()
            if len(engine._loop.slow.branches) == 2 and requests[1].branches[0].output:
                break
        else:
            raise AssertionError("never in one step")
        assert engine.cancel(requests[0].id)
        assert len(engine._loop.slow.branches) == 2  # the step goes on
        before = len(requests[0].branches[0].output)
        run(engine, requests)
    assert list(requests[1].completions()[0].token_ids) == ref(prompts[1], NEW)
    assert len(requests[0].completions()[0].token_ids) == before


def test_a_model_that_raises_in_the_lane_ends_those_of_its_step_only(engine: Engine) -> None:
    def fails(original: Callable[..., Any], *args: Any) -> Any:
        raise ValueError("broken")

    slow = engine.submit(random_tokens(random.Random(1), 300), Sampling(max_tokens=NEW))
    prompt = sharp_prompt(random.Random(4), 12, NEW)
    ordinary = engine.submit(prompt, Sampling(max_tokens=NEW))
    with wrapped(engine.runner, "slow_forward", fails), pytest.raises(ValueError, match="broken"):
        run(engine, [slow])
    engine.check()
    assert slow.branches[0].finish_reason is FinishReason.ERROR
    assert "broken" in slow.branches[0].error
    run(engine, [ordinary])
    assert list(ordinary.completions()[0].token_ids) == ref(prompt, NEW)


def test_closing_in_the_middle_of_a_step() -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=128, max_batch_tokens=64) as engine:
        believing(engine)
        with held_in_the_middle(engine):
            slow = begun(engine)
        engine.close()
        assert slow.branches[0].state is BranchState.FINISHED


def test_choices_of_a_slow_request_are_forked(engine: Engine) -> None:
    believing(engine, num_blocks=30)
    prompt = sharp_prompt(random.Random(5), 490, NEW)
    request = engine.submit(prompt, Sampling(max_tokens=NEW, n=3))
    run(engine, [request])
    assert [list(done.token_ids) for done in request.completions()] == [ref(prompt, NEW)] * 3
    assert all(done.is_oversized for done in request.completions())


def test_prompts_are_computed_in_growing_pieces_alone_and_in_small_ones_beside_others(engine: Engine) -> None:
    believing(engine, num_blocks=20)
    slow = replace(engine.limits.slow, max_tokens=512, share=1.0)  # type: ignore[type-var]
    engine._loop.limits = replace(engine.limits, slow=slow)
    slow_steps_of = engine._loop.slow
    slow_steps_of.tokens_alone = slow_steps_of.tokens_beside = 16
    counts: list[int] = []

    def begin(original: Callable[..., None], work: Any) -> None:
        counts.append(sum(count for _, count in work))
        original(work)

    prompt, other = sharp_prompt(random.Random(6), 400, NEW), sharp_prompt(random.Random(7), 12, 24)
    with wrapped(slow_steps_of, "begin", begin), held_in_the_middle(engine):
        slow = engine.submit(prompt, Sampling(max_tokens=NEW))
        while len(counts) < 4:
            engine.step()
        assert counts == [16, 32, 64, 128]
        length = slow.branches[0].running_sequence.length
        ordinary = engine.submit(other, Sampling(max_tokens=24))
        while len(counts) < 5:
            engine.step()
        assert counts[-1] <= 16 * 2  # what was begun alone was given up
        assert slow.branches[0].running_sequence.length == length
        run(engine, [slow, ordinary])
    assert list(slow.completions()[0].token_ids) == ref(prompt, NEW)
    assert list(ordinary.completions()[0].token_ids) == ref(other, 24)
