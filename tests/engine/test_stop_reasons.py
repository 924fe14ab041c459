"""What eviction policies are told of requests when these let go of their pages: why they ended, and how they went."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kvpager.engine import Completion, Engine, FinishReason, Sampling, StopReason
from kvpager.eviction.policy import DEFAULT_PRIORITY, Use
from kvpager.prefix.hashing import Scope
from tests.engine.engines import Numbers, drive, force_preemption, wrapped
from tests.tiny_model import tiny_model

PAGE = 4
PROMPT = list(range(100, 110))  # two pages and a half
OTHER = list(range(200, 209))
NEW = 3

TOOL, TURN, UNKNOWN = StopReason.TOOL_CALL, StopReason.END_OF_TURN, StopReason.UNKNOWN


@contextmanager
def opened(**options: Any) -> Iterator[tuple[Engine, list[Use]]]:
    """An engine, and what its policy has been told so far, one for each time that something was let go."""
    uses: list[Use] = []

    def release(original: Callable[..., None], blocks: np.ndarray, use: Use) -> None:
        uses.append(use)
        original(blocks, use)

    options = {"num_blocks": 64, "page_size": PAGE, "tokenizer": Numbers(), "partial_hits": False, **options}
    options.setdefault("eviction", "adaptive")  # LRU does not ask why a request ended
    with Engine(tiny_model(), **options) as engine, wrapped(engine.cache.evictable.policy, "release", release):
        yield engine, uses


def run(engine: Engine, prompt: list[int] = PROMPT, max_tokens: int = NEW, **options: Any) -> Completion:
    request = engine.submit(prompt, Sampling(max_tokens=max_tokens), **options)
    drive(engine)
    return request.completions()[0]


# -- why it ended ---------------------------------------------------------------------------------------------------


def test_without_a_word_from_the_client_the_reason_is_unknown() -> None:
    with opened() as (engine, uses):
        run(engine)
        assert [use.stop for use in uses] == [UNKNOWN]


@pytest.mark.parametrize("stop", [TOOL, TURN])
def test_the_engine_asks_once_for_each_choice_before_its_pages_go(stop: StopReason) -> None:
    asked: list[tuple[Completion, int]] = []

    def ended(done: Completion) -> StopReason:
        asked.append((done, len(uses)))
        return stop

    with opened(ended=ended) as (engine, uses):
        done = run(engine)
        assert asked == [(done, 0)]  # the whole answer, and nothing had been let go
        assert done.finish_reason is FinishReason.LENGTH
        assert [use.stop for use in uses] == [stop]


def test_a_request_may_bring_its_own_and_tell_by_the_token_that_ended_it() -> None:
    with opened(ended=lambda done: TURN) as (engine, uses):
        close = run(engine).token_ids[-1]

        def ended(done: Completion) -> StopReason:
            return TOOL if done.token_ids[-1] == close and done.finish_reason is FinishReason.STOP else UNKNOWN

        request = engine.submit(PROMPT, Sampling(max_tokens=9, stop_token_ids=(close,)), ended=ended)
        drive(engine)
        assert request.completions()[0].finish_reason is FinishReason.STOP
        for _ in engine.generate([PROMPT], Sampling(max_tokens=1), ended=ended):
            pass
        for _ in engine.stream(PROMPT, Sampling(max_tokens=9, stop_token_ids=(close,)), ended=ended):
            pass
        assert [use.stop for use in uses] == [TURN, TOOL, UNKNOWN, TOOL]


def test_the_text_is_whole_when_the_engine_asks() -> None:
    seen: list[str] = []

    def ended(done: Completion) -> StopReason:
        seen.append(done.text)
        return UNKNOWN

    with opened() as (engine, _):
        text = run(engine).text
        held_back = f"{text.split()[-1]} x"  # the last token begins it, so its text is held back until the end
        request = engine.submit(PROMPT, Sampling(max_tokens=NEW, stop=(held_back,)), ended=ended)
        drive(engine)
        assert seen == [text] == [request.completions()[0].text]


@pytest.mark.parametrize("answer", [lambda done: 1 / 0, lambda done: "tool_calls", lambda done: None])
def test_a_function_that_fails_hurts_nobody_and_is_logged_once_without_what_it_says(
    answer: Callable[[Completion], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with opened() as (engine, _):
        expected = run(engine)
    with caplog.at_level(logging.WARNING), opened(ended=answer) as (engine, uses):
        assert run(engine) == expected
        run(engine, OTHER)
        assert [use.stop for use in uses] == [UNKNOWN, UNKNOWN]
    assert len(caplog.records) == 1
    assert "'ended' failed" in caplog.text
    assert "tool_calls" not in caplog.text
    assert "by zero" not in caplog.text


def test_requests_that_are_cancelled_preempted_or_failed_end_no_turn() -> None:
    asked: list[FinishReason] = []

    def ended(done: Completion) -> StopReason:
        asked.append(done.finish_reason)
        return TURN

    tokenizer = Numbers()
    with opened(tokenizer=tokenizer, ended=ended) as (engine, uses):
        request = engine.submit(PROMPT, Sampling(max_tokens=50))
        for _ in range(2):
            engine.step()
        assert force_preemption(engine)
        engine.step()
        engine.cancel(request.id)
        waiting = engine.submit(OTHER)
        engine.cancel(waiting.id)  # never started: there is nothing to let go of
        failing = engine.submit(OTHER)
        tokenizer.known = 0
        drive(engine)
        assert failing.completions()[0].finish_reason is FinishReason.ERROR
        assert [use.stop for use in uses] == [UNKNOWN] * 3
        assert asked == []
        tokenizer.known = 1 << 31
        run(engine)
        assert asked == [FinishReason.LENGTH]


def test_each_choice_ends_for_itself() -> None:
    reasons = iter([TOOL, TURN])
    with opened(ended=lambda done: next(reasons)) as (engine, uses):
        request = engine.submit(PROMPT, Sampling(max_tokens=NEW + 2, n=2))
        drive(engine)
        assert [branch.stop for branch in request.branches] == [TOOL, TURN]
        assert [use.stop for use in uses][-1] is TURN  # whoever is last lets go of the prompt


# -- how it went ----------------------------------------------------------------------------------------------------


def test_every_generated_token_counts_and_the_share_of_the_prompt_that_was_found() -> None:
    with opened() as (engine, uses):
        run(engine)
        run(engine, [*PROMPT[:8], 7, 7], max_tokens=6)
        assert [(use.output_tokens, use.matched) for use in uses] == [(NEW, 0.0), (6, 0.8)]


@pytest.mark.parametrize("is_found", [True, False])
def test_a_resumed_request_is_told_of_as_one_that_was_never_preempted(is_found: bool) -> None:
    """What it finds again of its own pages is no reuse, and what it had generated is no prompt."""
    with opened() as (engine, uses):
        run(engine, PROMPT[:5], max_tokens=1)
        request = engine.submit(PROMPT, Sampling(max_tokens=8))
        for _ in range(4):
            engine.step()
        assert force_preemption(engine)
        if not is_found:
            engine.cache.clear_prefix()
        drive(engine)
        assert request.completions()[0].preemptions == 1
        assert [(use.output_tokens, use.matched) for use in uses[1:]] == [(4, 0.4), (8, 0.4)]


def test_forked_choices_count_their_own_output_and_what_the_prompt_had_found() -> None:
    with opened(max_running=4) as (engine, uses):
        run(engine, PROMPT[:5], max_tokens=1)
        request = engine.submit(PROMPT, Sampling(max_tokens=8, n=2, temperature=2.0, seed=1))
        for _ in range(3):
            engine.step()
        assert force_preemption(engine)  # the second choice goes on as a sequence of its own
        drive(engine)
        assert [len(done.token_ids) for done in request.completions()] == [8, 8]
        assert {use.matched for use in uses[1:]} == {0.4}
        assert [use.output_tokens for use in uses[-2:]] == [8, 8]


def test_a_cancelled_request_counts_what_it_had_generated() -> None:
    with opened() as (engine, uses):
        request = engine.submit(PROMPT, Sampling(max_tokens=50))
        for _ in range(5):
            engine.step()
        engine.cancel(request.id)
        assert [(use.output_tokens, use.matched) for use in uses] == [(5, 0.0)]
        assert len(request.completions()[0].token_ids) == 5


def test_the_tenant_is_the_scopes_and_who_runs_first_is_not_who_is_kept() -> None:
    with opened() as (engine, uses):
        run(engine, priority=90, scope=Scope(salt="tenant"))
        assert [(use.tenant, use.priority) for use in uses] == [("tenant", DEFAULT_PRIORITY)]
