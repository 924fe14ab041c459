"""One or two telling examples of each policy: what it is there for, and what it is not."""

import numpy as np
import pytest

from kvpager.eviction.frequency_sketch import FrequencySketch
from kvpager.eviction.gdsf import GDSF
from kvpager.eviction.ghosts import Ghosts
from kvpager.eviction.lfu import LFU
from kvpager.eviction.lru_k import LRUK
from kvpager.eviction.make import make_policy
from kvpager.eviction.policy import Use
from kvpager.eviction.priority import Priority
from kvpager.eviction.ranked_leaves import RankedLeaves
from kvpager.eviction.window import Window
from tests.contracts.eviction_policy import ManualClock
from tests.eviction.tree import TreeCache

HOT = [[page] for page in range(6)]
SCAN = [[page] for page in range(100, 160)]


def cache_of(name: str, capacity: int = 20) -> TreeCache:
    return TreeCache(make_policy(name, capacity, ManualClock()), capacity)


@pytest.mark.parametrize(
    ("name", "survives"),
    [("lru", False), ("fifo", False), ("sieve", True)]
    + [(name, True) for name in ("slru", "arc", "s3fifo", "w_tinylfu", "lru_k", "lfu", "gdsf")],
)
def test_whether_a_scan_flushes_what_is_used_again_and_again(name: str, survives: bool) -> None:
    cache = cache_of(name)
    cache.replay(HOT * 4)
    # SIEVE keeps what is used at least once a round of its hand, the others what was used before
    scans = [SCAN[:14], SCAN[14:]] if name != "sieve" else [SCAN[at : at + 10] for at in range(0, 60, 10)]
    for scan in scans:
        cache.replay(scan)
        found = cache.replay(HOT)
        assert (found == len(HOT)) == survives or scan is scans[0], f"{name}: {found} of {len(HOT)}"


def test_fifo_forgets_what_came_first_however_often_it_is_used() -> None:
    cache = cache_of("fifo", capacity=4)
    cache.replay([[0], [1], [2], [3], [0], [0], [0], [4]])
    assert cache.victims == [0]


def test_old_favourites_of_lfu_age() -> None:
    cache = cache_of("lfu", capacity=4)
    cache.replay([[0]] * 20)  # worth 20, and never asked for again
    cache.replay([[page] for page in range(100, 112) for _ in range(5)])
    assert 0 not in cache.victims
    cache.replay([[page] for page in range(200, 212) for _ in range(5)])  # the cache is older than 15 by now
    assert 0 in cache.victims


def test_lfu_breaks_ties_by_recency() -> None:
    cache = cache_of("lfu", capacity=3)
    cache.replay([[0], [1], [2], [1], [0], [3], [4]])
    assert cache.victims == [2, 1]  # with the cache as old as 2 was worth, 1, 0 and 3 were worth the same


def test_the_history_of_lru_k_outlives_the_page() -> None:
    cache = cache_of("lru_k", capacity=3)
    cache.replay([[0], [1], [2], [3], [0], [4], [5]])
    assert cache.victims[0] == 0  # used once, and longest ago
    assert 0 in cache.block_of  # but twice by now, which is more than the others can say
    assert cache.victims == [0, 1, 2, 3]


def test_references_within_a_request_count_once_for_lru_k() -> None:
    policy = LRUK(4)
    policy.enter(np.array([0]), np.array([0], np.uint64))
    policy.release(np.array([0]), Use(output_tokens=500))
    cache = TreeCache(policy := LRUK(4), 4)
    cache.replay([[0, 1], [2], [2], [0, 1]])
    for page in (0, 1):
        assert policy._last_but_one[cache.block_of[page]] < policy._last_but_one[cache.block_of[2]] + 4
    cache.replay([[3], [4]])
    assert cache.victims == [3]  # used once; the others twice


def test_a_ghost_hit_moves_the_share_of_arc() -> None:
    cache = cache_of("arc", capacity=4)
    policy = cache.policy
    cache.replay([[0], [0], [1], [2], [3], [4]])
    assert cache.victims == [1]
    assert policy._share == 0.0  # type: ignore[attr-defined]
    cache.replay([[1]])  # it went too early
    assert policy._share == 1.0  # type: ignore[attr-defined]


def test_one_hit_wonders_leave_the_small_queue_of_s3fifo_first() -> None:
    cache = cache_of("s3fifo", capacity=10)
    cache.replay([[0], [0], [0]])
    cache.replay([[page] for page in range(1, 30)])
    assert 0 in cache.block_of
    assert cache.victims[:3] == [1, 2, 3]


def test_the_hand_of_sieve_gives_a_used_page_one_more_round() -> None:
    cache = cache_of("sieve", capacity=3)
    cache.replay([[0], [1], [2], [0], [3], [4], [5]])
    assert cache.victims == [1, 2, 3]
    cache.replay([[4], [6], [7], [8]])
    assert 0 in cache.block_of  # until the hand has been at the newest


def test_a_newcomer_of_w_tinylfu_has_to_be_wanted_more_often() -> None:
    cache = cache_of("w_tinylfu", capacity=10)
    cache.replay([[page] for page in range(10) for _ in range(3)])
    cache.replay([[50], [51]])
    assert cache.victims[-1] == 50
    cache.replay([[52], [53]] * 8)  # seen more often than some that are there
    assert {52, 53} & set(cache.block_of) == {52, 53}


def test_deep_pages_are_dearer_to_gdsf() -> None:
    cache = TreeCache(policy := GDSF(2000), 2000)
    long = range(1500)
    cache.replay([long, [5000], [5001]])
    assert [policy._depth[cache.block_of[page]] for page in long] == list(long)
    cache.replay([[page] for page in range(6000, 6600)])
    assert cache.victims[0] == 5000  # though it was used after the long prompt
    assert not set(long) & set(cache.victims[:100])


def test_the_window_expires_by_the_clock() -> None:
    clock = ManualClock()
    cache = TreeCache(Window(3, clock, seconds=60.0), 3)
    cache.replay([[0], [0], [0], [1], [2]])
    cache.replay([[3]])
    assert cache.victims == [1]  # 0 was used most, of the others this is the less recent
    clock.now = 61.0
    cache.replay([[2], [3], [4]])
    assert cache.victims == [1, 0]  # its uses are long ago


def test_priorities_go_before_recency() -> None:
    cache = TreeCache(Priority(4), 4)
    for page, priority in ((0, 50), (1, 0), (2, 100), (3, 0)):
        cache.replay([[page]], Use(priority=priority))
    cache.replay([[1]], Use(priority=0))
    cache.replay([[4]], Use(priority=100))
    cache.replay([[5]], Use(priority=100))
    cache.replay([[6]], Use(priority=100))
    assert cache.victims == [3, 1, 0]


def test_a_sketch_counts_halves_and_is_resized() -> None:
    sketch = FrequencySketch(16)

    def cells(*keys: int) -> np.ndarray:
        return sketch.cells(np.array(keys, np.uint64))

    def estimates(*keys: int) -> list[int]:
        return [sketch.estimate(each) for each in cells(*keys).tolist()]

    for _ in range(100):
        sketch.count(cells(1))
    sketch.count(cells(2, 2))  # in one batch: once
    assert estimates(1, 2, 3) == [15, 1, 0]
    for capacity in (64, 16):
        sketch.resize(capacity)
        assert estimates(1) == [15]
    sketch.count(cells(*[4] * 58))
    assert estimates(1) == [7]


def test_ghosts_are_bounded_and_the_oldest_goes() -> None:
    ghosts = Ghosts(2)
    for key in (1, 2, 1, 3):
        ghosts.add(key)
    assert list(ghosts) == [1, 3]
    ghosts.resize(1)
    assert list(ghosts) == [3]


def test_ranks_that_rise_and_fall() -> None:
    leaves = RankedLeaves()
    for block in range(5):
        leaves.offer(block, 10)
    assert leaves.lowest() == 0  # ties: the lower number
    leaves.offer(0, 30)
    leaves.offer(3, 5)
    assert leaves.lowest() == 3
    leaves.offer(3, 40)
    leaves.withdraw(1)
    assert leaves.lowest() == 2
    for turn in range(1000):
        leaves.offer(4, 1000 - turn)
    leaves.check(np.array([0, 2, 3, 4]))


def test_many_ranks_in_any_order() -> None:
    leaves, expected = RankedLeaves(), dict[int, int]()
    generator = np.random.default_rng(0)
    for phase, share in enumerate((0.8, 0.1, 0.6, 0.0)):  # of offers: they grow, shrink, grow again and go
        for block, rank in generator.integers(0, (3000, 10**6), (6000, 2)).tolist():
            if generator.random() < share:
                leaves.offer(block, rank)
                expected[block] = rank
            else:
                leaves.withdraw(block)
                expected.pop(block, None)
        leaves.check(np.array(list(expected)))
        assert len(leaves._runs) < 10 + len(expected) / 16, phase
        while share == 0.0 and expected:
            lowest = min(expected, key=lambda block: (expected[block], block))
            assert leaves.lowest() == lowest
            leaves.withdraw(lowest)
            del expected[lowest]


def test_lfu_uses_are_forgotten_with_the_page() -> None:
    cache = TreeCache(policy := LFU(2), 2)
    cache.replay([[0], [0], [1], [1], [1], [2], [0]])
    assert policy._uses[cache.block_of[0]] == 1
