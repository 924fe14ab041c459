"""Open case O-09 through the engine: n > 1."""

import random

from kvpager.engine import Engine, FinishReason, Sampling, TokenEvent
from tests.engine.engines import assert_idle, block_counts, checked_step
from tests.tiny_model import random_tokens, tiny_model

PROMPT = random_tokens(random.Random(9), 35)
CHOICES = Sampling(max_tokens=40, temperature=1.0, seed=7, n=4)


def run(sampling: Sampling) -> list[tuple[int, ...]]:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        request = engine.submit(PROMPT, sampling)
        while engine.has_work:
            checked_step(engine)
            assert block_counts(engine).used <= 14  # 2 shared and 4 x 3
        done = request.completions()
        assert [each.finish_reason for each in done] == [FinishReason.LENGTH] * sampling.n
        assert_idle(engine)
        return [each.token_ids for each in done]


def test_choices_differ_repeat_and_equal_their_single_runs() -> None:
    together = run(CHOICES)
    assert len(set(together)) > 1
    assert run(CHOICES) == together
    assert [run(CHOICES.child(choice))[0] for choice in range(4)] == together


def test_a_stream_carries_every_choice_to_its_own_end() -> None:
    together = run(CHOICES)
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        events = list(engine.stream(PROMPT, CHOICES))
    for choice, tokens in enumerate(together):
        own = [event for event in events if event.choice == choice]
        assert tuple(event.token for event in own) == tokens
        assert [event.finish_reason for event in own] == [None] * 39 + [FinishReason.LENGTH]


def test_after_the_stream_is_left_all_four_choices_stop() -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        stream = engine.stream(PROMPT, CHOICES)
        seen: list[TokenEvent] = [next(stream) for _ in range(10)]
        assert {event.choice for event in seen} == {0, 1, 2, 3}
        assert engine.statistics().running == 4
        stream.close()
        assert_idle(engine)
        assert engine.step() == []
