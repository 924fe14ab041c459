"""Open case O-22 through the engine: a request that can never fit is refused at once, and delays nobody."""

import random
import time

import pytest

from kvpager.engine import Engine, FinishReason, Request, Sampling
from kvpager.errors import RequestError
from tests.engine.engines import assert_idle, checked_step, drive
from tests.tiny_model import ref, sharp_prompt, tiny_model

NEIGHBOUR_NEW = 20


@pytest.fixture(scope="module")
def neighbour() -> list[int]:
    return sharp_prompt(random.Random(22), 20, NEIGHBOUR_NEW)


def open_engine() -> Engine:
    return Engine(tiny_model(), page_size=16, num_blocks=8)  # 128 tokens


def start(engine: Engine, neighbour: list[int]) -> Request:
    request = engine.submit(neighbour, Sampling(max_tokens=NEIGHBOUR_NEW))
    checked_step(engine)
    return request


def steps_until(engine: Engine, request: Request) -> int:
    steps = 0
    while not request.is_finished:
        checked_step(engine)  # every step computes something: no busy loop
        steps += 1
    return steps


def assert_not_delayed(engine: Engine, request: Request, neighbour: list[int]) -> None:
    assert steps_until(engine, request) <= NEIGHBOUR_NEW - 1 + 1  # one was made; one more is allowed
    done = request.completions()[0]
    assert (list(done.token_ids), done.preemptions) == (ref(neighbour, NEIGHBOUR_NEW), 0)


def test_a_prompt_longer_than_the_pool_is_refused_at_once_with_both_numbers(neighbour: list[int]) -> None:
    with open_engine() as engine:
        beside = start(engine, neighbour)
        begin = time.thread_time()
        with pytest.raises(RequestError, match=r"129 tokens, but at most 128 fit"):
            engine.submit([1] * 129, Sampling(max_tokens=1))
        assert time.thread_time() - begin < 0.1
        assert_not_delayed(engine, beside, neighbour)
        later = engine.submit(neighbour, Sampling(max_tokens=NEIGHBOUR_NEW))  # and those that come after
        assert steps_until(engine, later) == NEIGHBOUR_NEW
        assert_idle(engine)


@pytest.mark.parametrize(
    ("length", "new_tokens", "given"), [(120, 100, 9), (127, 1, 1), (127, 2, 2), (128, 5, 1)], ids=lambda v: str(v)
)
def test_an_answer_longer_than_the_pool_ends_at_its_length(
    neighbour: list[int], length: int, new_tokens: int, given: int
) -> None:
    """128 tokens have K and V; the token chosen after the last of them is given too."""
    prompt = sharp_prompt(random.Random(length), length, given)
    with open_engine() as engine:
        beside = start(engine, neighbour)
        request = engine.submit(prompt, Sampling(max_tokens=new_tokens))
        assert_not_delayed(engine, beside, neighbour)
        drive(engine)
        done = request.completions()[0]
        assert list(done.token_ids) == ref(prompt, given)
        assert done.finish_reason is FinishReason.LENGTH
        assert_idle(engine)


@pytest.mark.parametrize("new_tokens", [20, 60])
def test_nine_choices_of_a_prompt_of_sixty_tokens_take_turns(neighbour: list[int], new_tokens: int) -> None:
    prompt = sharp_prompt(random.Random(60), 60, new_tokens)
    with open_engine() as engine:
        beside = start(engine, neighbour)
        request = engine.submit(prompt, Sampling(max_tokens=new_tokens, n=9))
        assert_not_delayed(engine, beside, neighbour)
        drive(engine)
        for done in request.completions():
            assert list(done.token_ids) == ref(prompt, new_tokens)
            assert done.preemptions <= 10
        assert_idle(engine)


def test_nine_sampled_choices_equal_their_single_runs_though_they_take_turns() -> None:
    """Their texts differ, so that they share the prompt only."""
    prompt = sharp_prompt(random.Random(60), 60, 20)
    sampling = Sampling(max_tokens=40, temperature=1.0, seed=3, n=9)
    with open_engine() as engine:
        request = engine.submit(prompt, sampling)
        drive(engine)
        together = [done.token_ids for done in request.completions()]
        assert engine.statistics().preemptions > 0
        assert max(done.preemptions for done in request.completions()) <= 10
        for choice, tokens in enumerate(together):
            (alone,) = engine.generate([prompt], sampling.child(choice))
            assert alone.token_ids == tokens
        assert_idle(engine)
