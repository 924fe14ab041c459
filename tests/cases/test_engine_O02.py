"""Open case O-02 through the engine: no block is given out while a step that may write it is still running.

The engine has no overlapped steps, so the model's step is run in a thread and delayed, as the case allows: by 0 to 50
ms in one round of 25, without delay in the others, so that the 500 rounds of the case, done by hand, stay quick. For
the same reason all books are checked in one round of five, the identity ID after every step of every round. While the
thread works, the engine's own thread looks on: all blocks of the step are in use, and a request that is cancelled
just then keeps its blocks until the step has ended.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvpager.engine import Engine, FinishReason, Sampling
from tests.engine.engines import assert_idle, block_counts, checked_step, wrapped
from tests.tiny_model import ref, sharp_prompt, tiny_model

DELAYED = 25  # every so many rounds
CHECKED = 5


class Device:
    """Runs the forward pass in a thread, late."""

    def __init__(self, engine: Engine, generator: random.Random) -> None:
        self._engine, self._generator = engine, generator
        self.is_late = False
        self.meanwhile: Callable[[], object] = lambda: None

    def forward(self, original: Callable[..., Any], *args: Any) -> Any:
        result: list[Any] = []
        delay = self._generator.uniform(0, 0.05) if self.is_late else 0.0

        def work() -> None:
            if delay:
                time.sleep(delay)
            result.append(original(*args))

        thread = threading.Thread(target=work)
        mapped = {
            block for seq in self._engine.cache.sequences.values() for block in seq.tables[0].mapped_blocks().tolist()
        }
        thread.start()
        self.meanwhile()
        counts = block_counts(self._engine)
        assert counts.used == len(mapped)
        free = self._engine.cache.pool._free[: self._engine.cache.pool.num_free].tolist()
        assert not mapped & set(free)
        assert len(set(free)) == len(free)
        thread.join(timeout=60)
        assert not thread.is_alive()
        return result[0]


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [200, pytest.param(500, marks=pytest.mark.heavy)])
def test_a_request_that_waits_for_the_blocks_of_another_gets_them_whole(rounds: int) -> None:
    generator = random.Random(2)
    pairs = []
    for _ in range(5):
        a, b = sharp_prompt(generator, 31, 3), sharp_prompt(generator, 150, 8)
        if ref(a, 3)[2] not in ref(a, 2):
            pairs.append((a, b))
    model = tiny_model()
    with Engine(model, page_size=16, num_blocks=12, partial_hits=False) as engine:
        device = Device(engine, generator)
        with wrapped(engine.runner, "forward", device.forward):
            for number in range(rounds):
                where = f"seed=2 round={number}"
                a_prompt, b_prompt = pairs[number % len(pairs)]
                device.is_late = number % DELAYED == 0
                stop = Sampling(max_tokens=100, stop_token_ids=(ref(a_prompt, 3)[2],))
                a = engine.submit(a_prompt, stop)
                b = engine.submit(b_prompt, Sampling(max_tokens=8))
                step = checked_step if number % CHECKED == 0 else Engine.step
                while not a.is_finished:
                    step(engine)
                    block_counts(engine)
                    assert a.is_finished or not b.branches[0].output, where  # b waits: it does not fit beside a
                while engine.has_work:
                    step(engine)
                    block_counts(engine)
                assert list(a.completions()[0].token_ids) == ref(a_prompt, 3), where
                assert a.completions()[0].finish_reason is FinishReason.STOP, where
                assert list(b.completions()[0].token_ids) == ref(b_prompt, 8), where
        assert_idle(engine)


def test_a_request_cancelled_while_its_step_runs_keeps_its_blocks_until_then() -> None:
    generator = random.Random(3)
    a_prompt, b_prompt = sharp_prompt(generator, 31, 3), sharp_prompt(generator, 150, 8)
    with Engine(tiny_model(), page_size=16, num_blocks=12, prefix_cache=False) as engine:
        device = Device(engine, generator)
        with wrapped(engine.runner, "forward", device.forward):
            for number in range(60):
                device.is_late = number % 10 == 0
                a = engine.submit(a_prompt, Sampling(max_tokens=100))
                for _ in range(number % 4):
                    checked_step(engine)
                b = engine.submit(b_prompt, Sampling(max_tokens=8))
                device.meanwhile = lambda a=a: engine.cancel(a.id)  # type: ignore[misc]
                engine.step()  # its blocks are seen in use while it runs, and are back when it has ended
                device.meanwhile = lambda: None
                engine.check()
                assert a.is_finished
                assert engine.statistics().running == 0
                assert block_counts(engine).free == 12
                while engine.has_work:
                    checked_step(engine)
                assert list(b.completions()[0].token_ids) == ref(b_prompt, 8), f"seed=3 round={number}"
        assert_idle(engine)
