"""Random work over lower tiers with a model that costs nothing: loads that come late, not at all, or wrong.

As in test_engine_fuzz.py, the books of everything are checked after every pass, and each request has to end right.
"""

import random

import pytest

from kvpager.engine import Engine, EngineStatistics
from kvpager.types import TierKind
from tests.engine.engines import force_preemption
from tests.engine.test_engine_fuzz import Client, cheap_forward, model_of, random_options
from tests.engine.tiers import (
    LosingHost,
    StepMover,
    VirtualClock,
    assert_still,
    checked_pass,
    drive,
    host,
    put_below,
)

DEADLINE = 30.0  # of a clock that ticks with each look at it


def run_random(kind: str, seed: int) -> EngineStatistics:
    generator = random.Random(f"tiers {kind} {seed}")
    options = random_options(generator) | {"prefix_cache": True}
    options["max_batch_tokens"] = max(options["max_batch_tokens"], 64)  # fewer passes with more in each
    print(f"replay: run_random({kind!r}, {seed}) with {options}")
    with Engine(model_of(kind), **options) as engine:
        engine.runner.forward = cheap_forward  # type: ignore[method-assign]
        speed = generator.choice([0.0, 0.3, 0.9])
        mover = StepMover(lambda lane: generator.random() < speed)
        failures = generator.choice([0, 0, 5, 1000])
        slots = generator.choice([3, 50, 2000])
        near, far = LosingHost(engine.layout.block_stride, slots, failures), host(engine, 500)
        far.name, far.kind = "far", TierKind.DISK
        put_below(
            engine,
            *([near, far] if generator.random() < 0.5 else [near]),
            mover=mover,
            clock=VirtualClock(1.0),
            write_back=generator.choice(["through", "back", "selective"]),
            load_deadline=DEADLINE,
            max_moving_pages=generator.choice([2, 10, 1000]),
            always_load=generator.random() < 0.7,
        )
        client = Client(engine, generator)
        client.stems = client.stems[:1]  # prompts that begin alike
        for _ in range(100):
            for _ in range(generator.choice([0, 0, 1, 1, 3])):
                if len(client.requests) < 20:
                    client.submit()
            if generator.random() < 0.05:
                client.cancel()
            if generator.random() < 0.05:
                force_preemption(engine, generator.randrange(-1, 1))
            if generator.random() < 0.05:
                engine.prefetch(generator.choice(client.stems)[:100])
            if engine.has_work:
                checked_pass(engine)
        drive(engine, most=12000)
        client.verify()
        assert engine.statistics().finished_requests == len(client.requests)
        mover.holds = lambda lane: False
        assert_still(engine)
        return engine.statistics()


@pytest.mark.parametrize("kind", ["full", "window", "mixed"])
def test_random_work_over_slow_and_losing_tiers_ends_right_with_all_books_in_order(kind: str) -> None:
    seen = [run_random(kind, seed) for seed in range(8)]
    assert sum(each.loads.loaded for each in seen) > 0  # controls: there were loads, and pressure
    assert sum(each.preemptions for each in seen) > 5


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["full", "window", "mixed"])
def test_much_random_work(kind: str) -> None:
    for seed in range(8, 200):
        run_random(kind, seed)
