"""Open case O-16: a move keeps identity and bytes. Copies run in threads that take their time."""

import random
import time
from collections.abc import Callable

import pytest

from kvpager import HostTier, KVLayout, OutOfBlocks, PagedCache, open_cache
from kvpager.tiers.mover import Job, ThreadMover
from tests.stamp import Stamp, T, block_bytes, block_counts, prefill, run_step

LAYOUT = KVLayout(layers=2, kv_heads=1, head_dim=8, dtype="float32", page_size=4)
LANES = {"host load": 2, "host store": 2}


class SlowMover(ThreadMover):
    """Each copy begins ``delay()`` seconds late."""

    def __init__(self, delay: Callable[[], float]) -> None:
        super().__init__(LANES)
        self._delay = delay

    def submit(self, lane: str, job: Job) -> None:
        run = job.run

        def late() -> None:
            time.sleep(self._delay())
            run()

        job.run = late  # type: ignore[method-assign]
        super().submit(lane, job)


def opened(num_blocks: int, host_pages: int, write_back: str, delay: tuple[float, float] = (0.001, 0.02)) -> PagedCache:
    generator = random.Random(0)
    cache = open_cache(
        LAYOUT,
        num_blocks=num_blocks,
        tiers=[HostTier(pages=host_pages)],
        write_back=write_back,
        mover=SlowMover(lambda: generator.uniform(*delay)),
    )
    assert cache.lower is not None
    cache.lower.migration._max_moving_bytes = 1 << 30  # as much as there is
    return cache


def host_pages(cache: PagedCache) -> dict[bytes, bytes]:
    host = cache.lower.migration.tiers[0]
    return {page.key: host._arena.blocks[host._book._slot_of[page.key]].tobytes() for page in host.pages()}


def test_a_copy_out_begins_when_the_writer_has_ended() -> None:
    """(a) Every page in the host tier has the final bytes of its block, whatever was written to it before."""
    with opened(8, 16, "through") as cache:
        stamp = Stamp(cache)
        for first in range(0, 400, 50):
            seq = cache.sequence(T(first, first + 15))
            with cache.step({seq: 16}) as step:
                for block in step.batch.tables[0][0][:4].tolist():
                    cache.arena.blocks[block] = 0xEE  # half done
                assert cache.lower.migration.num_demotions == 0, "nothing is copied that may still be written"
                stamp.fill(step)
            pages = {cache.lower.page(block).key: block_bytes(cache, block) for block in cache.index.all_blocks()}
            seq.free()
            assert cache.lower.settle(60)
            found = host_pages(cache)
            assert set(pages) <= set(found)
            assert all(found[key] == content for key, content in pages.items())
            block_counts(cache)


def test_a_block_that_is_being_copied_out_is_not_written() -> None:
    """A page that nobody finds any more is cut and written again, while its copy is still under way."""
    with opened(8, 16, "through", delay=(0.05, 0.05)) as cache:
        stamp = Stamp(cache)
        seq = prefill(stamp, T(1, 8))
        pages = {cache.lower.page(block).key: block_bytes(cache, block) for block in cache.index.all_blocks()}
        assert cache.lower.migration.num_demotions == 1
        cache.clear_prefix()
        seq.truncate(6)
        seq.append([91, 92, 93])
        run_step(stamp, [seq])
        assert cache.lower.settle(60)
        assert host_pages(cache) == pages
        stamp.verify(seq)


def test_a_copy_in_does_not_take_a_block_that_a_step_still_reads() -> None:
    """(b) A sequence is freed while a step on it is open; what comes up meanwhile goes elsewhere, or does not come."""
    with opened(8, 16, "through") as cache:
        stamp = Stamp(cache)
        prefill(stamp, T(100, 115)).free()
        assert cache.lower.settle(60)
        reader = prefill(stamp, T(1, 19))
        cache._reclaimer.make_free(3)
        reader.append([20])
        with cache.step({reader: 1}) as step:
            blocks = step.batch.tables[0][0][:5].tolist()
            before = [block_bytes(cache, block) for block in blocks]
            reader.free()
            came = cache.sequence([*T(100, 115), 7])
            assert cache.lower.settle(60)
            assert [block_bytes(cache, block) for block in blocks[:4]] == before[:4]
            assert block_counts(cache)["moving"] == 5
            stamp.fill(step, [T(1, 20)])
        run_step(stamp, [came])
        stamp.verify(came)
        came.free()
        assert block_counts(cache)["moving"] == 0


def test_where_both_ends_stand_at_the_heads_of_their_lists_the_right_page_is_taken() -> None:
    """(c)"""
    with opened(2, 2, "back") as cache:
        stamp = Stamp(cache)
        x, y = T(1, 4), T(101, 104)
        prefill(stamp, x).free()
        prefill(stamp, y).free()
        prefill(stamp, T(201, 204)).free()  # X goes down
        assert cache.lookup([*x, 9]).num_tokens == 0
        again = cache.sequence([*x, 9])
        assert again.prefix_tokens == 4, "it was in the host tier"
        stamp.verify(again)
        block_counts(cache)


def run_random_operations(count: int, delay: tuple[float, float]) -> None:
    """(d)"""
    generator = random.Random(1)
    with opened(24, 32, "back", delay) as cache:
        stamp, live, hits = Stamp(cache), [], 0
        for _ in range(count):
            what = generator.random()
            if what < 0.5 and len(live) < 3:
                first = 100 * generator.randrange(6)
                seq = cache.sequence([*T(first, first + generator.randrange(4, 20)), generator.randrange(1000, 1003)])
                hits += sum(seq.prefix_by_tier.values()) - seq.prefix_by_tier.get(1, 0)
                live.append(seq)
                try:
                    run_step(stamp, [seq])
                except OutOfBlocks:
                    live.remove(seq)
                    seq.free()
            elif what < 0.6 and live and len(live) < 3:
                live.append(generator.choice(live).fork())
            elif what < 0.8:
                cache.lower.write_down(cache.index.all_blocks().tolist()[:3])
            elif what < 0.9:
                cache._reclaimer.make_free(generator.randrange(1, 8))
            elif live:
                live.pop(generator.randrange(len(live))).free()
            cache.lower.collect()
            cache.check()
            for seq in live:
                stamp.verify(seq)
        assert hits > count / 20
        cache.free(live)
        assert cache.lower.settle(60)
        assert block_counts(cache)["moving"] == 0


def test_random_moves_keep_every_byte() -> None:
    run_random_operations(300, (0.0, 0.002))


@pytest.mark.heavy
@pytest.mark.timeout(0)
def test_ten_thousand_random_moves_keep_every_byte() -> None:
    run_random_operations(10_000, (0.001, 0.02))
