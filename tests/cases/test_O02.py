"""Open case O-02, library part: no block is given out while a step that may write it is still running."""

import random
import threading
import time

import pytest

from kvpager import KVLayout, OutOfBlocks, open_cache
from kvpager.cache.step import Step
from tests.stamp import Stamp, T, block_counts

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=4, dtype="float32", page_size=16)
ROUNDS = 500


class LateWriter:
    """The device: a thread that writes the rows of a step some time after it was opened."""

    def __init__(self, stamp: Stamp, step: Step, delay: float) -> None:
        tokens = [list(seq.tokens) for seq in step.sequences]
        self._thread = threading.Thread(target=self._work, args=(stamp, step, tokens, delay))
        self._thread.start()

    def _work(self, stamp: Stamp, step: Step, tokens: list[list[int]], delay: float) -> None:
        time.sleep(delay)
        stamp.fill(step, tokens)

    def wait(self) -> None:
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("seed", [0])
def test_a_request_that_ends_while_its_next_step_runs_keeps_its_blocks_until_then(seed: int) -> None:
    generator = random.Random(seed)
    with open_cache(LAYOUT, num_blocks=12) as cache:
        stamp = Stamp(cache)
        for number in range(ROUNDS):
            where = f"seed={seed} round={number}"
            a = cache.sequence([10_000 + number, *T(1, 32)])  # 31 tokens and two more that it generates
            b = cache.sequence([20_000 + number, *T(1, 156)])  # 157 tokens: needs 10 blocks, there are 12
            first = cache.step({a: 31})
            writer = LateWriter(stamp, first, generator.uniform(0, 0.003))
            second = cache.step({a: 2})  # dispatched before the first has ended
            late = LateWriter(stamp, second, generator.uniform(0, 0.004))
            writer.wait()
            with first:
                pass
            stamp.verify(a)
            a.free()  # it hit its stop token in the first step
            counts = block_counts(cache)
            assert counts["moving"] == 3, where
            with pytest.raises(OutOfBlocks) as caught:
                cache.step({b: 157})
            assert caught.value.pinned == 3, where
            late.wait()
            with second:
                pass
            assert block_counts(cache)["moving"] == 0, where
            with cache.step({b: 157}) as third:
                stamp.fill(third)
            block_counts(cache)
            stamp.verify(b)
            b.free()
            block_counts(cache)
            free = cache.pool._free[: cache.pool.num_free].tolist()
            assert len(set(free)) == len(free), where
        cache.clear_prefix()
        assert block_counts(cache)["free"] == 12
