"""Passes without a decision: each does what ``decide`` would have said, until anything else happens."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvpager.engine import Engine, Sampling
from kvpager.engine.piece import Piece
from kvpager.engine.scheduler_view import queue_order
from tests.engine.engines import assert_idle, checked_step, drive, force_preemption
from tests.tiny_model import random_tokens, tiny_model


@contextmanager
def compared(engine: Engine) -> Iterator[list[int]]:
    """Each piece that was not decided is compared with what would have been; gives the widths of these pieces."""
    widths: list[int] = []
    original = engine._loop._again

    def again() -> Piece | None:
        piece = original()
        if piece is not None:
            queues = engine._queues
            decision = engine._loop._decide(engine._view.running(queues.running), queue_order(queues.waiting.values()))
            work = [(queues.running[key], count) for key, count in decision.work.items()]
            assert (decision.preempted, decision.admitted, decision.slow) == ((), (), {})
            asked = Piece.of(work)
            assert (piece.branches, piece.sequences, piece.tokens) == (asked.branches, asked.sequences, asked.tokens)
            assert (piece.due, piece.num_prefill, piece.scored) == (asked.due, asked.num_prefill, asked.scored)
            assert piece.counts.tolist() == asked.counts.tolist()
            assert piece.logits_at.tolist() == asked.logits_at.tolist()
            widths.append(len(piece.branches))
        return piece

    engine._loop._again = again  # type: ignore[method-assign]
    yield widths


@pytest.mark.parametrize(
    ("num_blocks", "options"),
    [
        (400, {}),
        (40, {}),  # blocks get short, branches are stopped
        (400, {"max_running": 4}),  # others wait all the time
        (400, {"max_batch_tokens": 5}),  # fewer than decode
    ],
    ids=["room", "pressure", "queue", "budget"],
)
def test_it_is_what_would_have_been_decided(num_blocks: int, options: dict[str, object]) -> None:
    generator = random.Random(num_blocks)

    def ask(number: int) -> None:
        if number % 6 == 0 and number < 20:
            for _ in range(3):
                sampling = Sampling(
                    temperature=generator.choice([0.0, 1.0]),
                    max_tokens=generator.randrange(1, 25),
                    n=generator.choice([1, 1, 1, 3]),
                    seed=3,
                )
                prompt = random_tokens(generator, generator.randrange(1, 60))
                engine.submit(prompt, sampling, priority=generator.choice([0, 0, 1]))
        if number == 15:
            engine.cancel(generator.choice(engine.branches()).request.id)
        if number == 20:
            force_preemption(engine, 0)

    with (
        Engine(tiny_model(), num_blocks=num_blocks, page_size=4, **options) as engine,  # type: ignore[arg-type]
        compared(engine) as widths,
    ):
        steps = 0
        while engine.has_work or steps < 20:
            ask(steps)
            engine.step()
            steps += 1
        assert_idle(engine)
        assert engine.step() == []
    if num_blocks == 40 or "max_batch_tokens" in options:
        assert 0 < len(widths) < steps  # some passes stop somebody, or serve only some
    else:
        assert len(widths) > steps / 3
        assert len(set(widths)) > 3  # some ended, and the others went on


def test_whoever_comes_starts_in_the_next_pass() -> None:
    with Engine(tiny_model(), num_blocks=100) as engine, compared(engine) as widths:
        engine.submit([1, 2, 3], Sampling(temperature=0.0, max_tokens=50))
        for _ in range(5):
            checked_step(engine)
        assert widths == [1] * 3  # the prompt, one pass that is decided
        engine.submit([4, 5], Sampling(temperature=0.0, max_tokens=50))
        assert len(checked_step(engine)) == 2
        checked_step(engine)
        assert widths == [1] * 3
        checked_step(engine)
        assert widths == [1] * 3 + [2]


def test_deterministic_engines_decide_each_pass() -> None:
    with Engine(tiny_model(), num_blocks=100, deterministic=True) as engine, compared(engine) as widths:
        engine.submit([1, 2, 3], Sampling(temperature=0.0, max_tokens=9))
        drive(engine)
        assert widths == []
