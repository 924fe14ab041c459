"""The native adaptive policy refuses what it can't do, and stays whole: most of use under the sanitizers."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

LAST_KEY = 2**64 - 1
NUM_KINDS = 2 * 3 * 5 * 6 * 6 * 4


def keys(*names: int) -> np.ndarray:
    return np.array(names, np.uint64)


def ids(*blocks: int) -> np.ndarray:
    return np.array(blocks, np.int64)


def filled(native: ModuleType, num_blocks: int = 8) -> Any:
    """All blocks came, were let go of and may go, block 0 first."""
    policy = native.AdaptivePolicy(num_blocks)
    policy.enter(np.arange(num_blocks), np.arange(num_blocks, dtype=np.uint64), 0.0)
    policy.release(np.arange(num_blocks), 10, 0, False, 1.0)
    policy.offer(np.arange(num_blocks))
    return policy


def check_whole(policy: Any) -> None:
    assert sorted(policy.offered()) == list(range(8))
    assert policy.victim(2.0) == 0


BATCHES: dict[str, Callable[[Any, np.ndarray], object]] = {
    "enter": lambda policy, blocks: policy.enter(blocks, np.zeros(len(blocks), np.uint64), 2.0),
    "hit": lambda policy, blocks: policy.hit(blocks, 2.0),
    "release": lambda policy, blocks: policy.release(blocks, 1, 0, True, 2.0),
    "offer": lambda policy, blocks: policy.offer(blocks),
    "withdraw": lambda policy, blocks: policy.withdraw(blocks),
    "leave": lambda policy, blocks: policy.leave(blocks),
}


@pytest.mark.parametrize("verb", BATCHES)
def test_ids_outside_of_the_blocks_are_refused(native: ModuleType, verb: str) -> None:
    policy = filled(native)
    for wrong in (-1, 8, -(2**31), 2**31 - 1, 2**31, 2**32, 2**63 - 1, -(2**63)):
        with pytest.raises(IndexError, match="blocks"):
            BATCHES[verb](policy, ids(3, wrong))
    for narrow in (-1, 8):
        with pytest.raises(IndexError, match="blocks"):
            BATCHES[verb](policy, np.array([3, narrow], np.int32))
    check_whole(policy)
    BATCHES[verb](policy, ids(3))  # which is one of them


@pytest.mark.parametrize("verb", BATCHES)
def test_other_arrays_than_ids_are_refused(native: ModuleType, verb: str) -> None:
    policy = filled(native)
    for dtype in (np.uint64, np.uint32, np.int16, np.uint8, np.float64, np.float32, bool, ">i8", "U1", object):
        with pytest.raises(TypeError):
            BATCHES[verb](policy, np.ones(1, dtype))
    with pytest.raises(TypeError):
        BATCHES[verb](policy, np.ones((1, 1), np.int64))
    check_whole(policy)


@pytest.mark.parametrize("verb", BATCHES)
def test_no_blocks_are_no_change(native: ModuleType, verb: str) -> None:
    policy = filled(native)
    for empty in (ids(), np.empty(0, np.int32), np.arange(8)[4:4]):
        BATCHES[verb](policy, empty)
    check_whole(policy)
    nothing = native.AdaptivePolicy(0)
    BATCHES[verb](nothing, ids())
    assert nothing.victim(0.0) == -1


@pytest.mark.parametrize("verb", BATCHES)
def test_arrays_with_steps_and_odd_addresses_are_read(native: ModuleType, verb: str) -> None:
    stepped, reverse = np.arange(8)[::3], np.arange(8)[6::-3]
    odd = np.frombuffer(b"\0" + ids(0, 3, 6).tobytes(), np.int64, offset=1)
    found = []
    for blocks in (ids(0, 3, 6), stepped, reverse, odd):
        policy = filled(native)
        BATCHES[verb](policy, blocks)
        found.append(sorted(policy.offered()))
    assert found == [found[0]] * 4


def test_keys_are_one_uint64_a_block(native: ModuleType) -> None:
    policy = filled(native)
    for wrong in (keys(), keys(1), keys(1, 2, 3)):
        with pytest.raises(ValueError, match="as many keys as blocks"):
            policy.enter(ids(1, 2), wrong, 2.0)
    for dtype in (np.int64, np.float64, np.uint32, ">u8"):
        with pytest.raises(TypeError):
            policy.enter(ids(1, 2), np.ones(2, dtype), 2.0)
    check_whole(policy)
    stepped = np.arange(16, dtype=np.uint64)[::4]
    policy.enter(ids(0, 1, 2, 3), stepped, 2.0)
    policy.enter(ids(4), np.frombuffer(b"\0" + keys(7).tobytes(), np.uint64, offset=1), 2.0)


@pytest.mark.parametrize("name", [0, LAST_KEY])
def test_keys_of_no_bits_and_of_all(native: ModuleType, name: int) -> None:
    policy = native.AdaptivePolicy(4)
    for turn in range(200):
        block = turn % 4
        policy.enter(ids(block, (block + 1) % 4), keys(name, turn), float(turn))
        policy.release(ids(block, (block + 1) % 4), 5, turn % 3, turn % 2 == 0, float(turn))
        policy.offer(ids(block))
        assert policy.victim(float(turn)) == block
        policy.hit(ids(block), float(turn) + 0.5)
        policy.leave(ids(block))
    policy.resize(2)
    assert policy.victim(300.0) == -1


def test_one_key_in_all_blocks_and_one_block_twice_in_a_batch(native: ModuleType) -> None:
    policy = native.AdaptivePolicy(8)
    everywhere = np.arange(8)
    for turn in range(50):
        policy.enter(everywhere, np.full(8, turn % 2, np.uint64), float(turn))
        policy.enter(ids(3, 3), keys(5, 6), float(turn))
        policy.release(ids(3, 3, *range(8)), 5, 0, True, float(turn))
        policy.offer(ids(3, 3, *range(8)))
        assert sorted(policy.offered()) == list(range(8))
        policy.hit(ids(1, 1), float(turn))
        policy.leave(ids(2, 2))
        assert policy.victim(float(turn)) not in (1, 2)


@pytest.mark.parametrize("time", [float("nan"), float("inf"), float("-inf")])
def test_a_time_that_is_none_is_refused(native: ModuleType, time: float) -> None:
    policy = filled(native)
    for call in (
        lambda: policy.enter(ids(1), keys(1), time),
        lambda: policy.hit(ids(1), time),
        lambda: policy.release(ids(1), 1, 0, False, time),
        lambda: policy.victim(time),
        lambda: policy.take_over(1, 0.0, 1, 0, time),
        lambda: policy.take_over(1, time, 1, 0, 1.0),
        lambda: policy.worth_of(time, 1, 0, 1.0),
        lambda: policy.worth_of(0.0, 1, 0, time),
    ):
        with pytest.raises(ValueError, match="finite"):
            call()
    check_whole(policy)


def test_a_clock_that_goes_back_or_very_far_stands_still(native: ModuleType) -> None:
    policy = filled(native)
    for now in (-1e9, -1e308, 1e308, 1.0, 0.0):
        policy.hit(ids(4), now)
        policy.release(ids(4), 3, 1, False, now)
        policy.offer(ids(4))
        assert policy.victim(now) == 0
    assert policy.worth_of(5e307, 1, 0, -5.0) >= 0.0


def test_histories_are_checked(native: ModuleType) -> None:
    policy = filled(native)
    for kind in (-1, NUM_KINDS, 2**31 - 1, -(2**31)):
        with pytest.raises(ValueError, match="kind"):
            policy.take_over(1, 0.0, 1, kind, 2.0)
        with pytest.raises(ValueError, match="kind"):
            policy.worth_of(0.0, 1, kind, 2.0)
    with pytest.raises(ValueError, match="uses"):
        policy.take_over(1, 0.0, -1, 0, 2.0)
    for uses in (2**31, 2**63, -(2**63)):
        with pytest.raises(TypeError):
            policy.take_over(1, 0.0, uses, 0, 2.0)
    for block in (-1, 8, 2**31, 2**62):
        with pytest.raises(IndexError):
            policy.take_over(block, 0.0, 1, 0, 2.0)
        with pytest.raises(IndexError):
            policy.history(block)
    for stop in (-1, 3, 2**31 - 1):
        with pytest.raises(ValueError, match="stop"):
            policy.release(ids(1), 1, stop, False, 2.0)
    check_whole(policy)
    policy.take_over(1, 0.0, 2**31 - 1, NUM_KINDS - 1, 2.0)  # used more often than is counted
    policy.release(ids(1), -(2**63), 2, True, 3.0)
    policy.release(ids(1), 2**63 - 1, 2, True, 4.0)
    assert policy.history(1)[1] == 65535


@pytest.mark.parametrize("size", [-1, 2**29, 2**31 - 1, 2**31, 2**62])
def test_sizes_that_cannot_be_are_refused(native: ModuleType, size: int) -> None:
    with pytest.raises(ValueError, match="num_blocks"):
        native.AdaptivePolicy(size)
    policy = filled(native)
    with pytest.raises(ValueError, match="num_blocks"):
        policy.resize(size)
    with pytest.raises(ValueError, match="num_blocks"):
        policy.below(size)
    check_whole(policy)


def test_resizing_to_fewer_and_to_none_and_back(native: ModuleType) -> None:
    policy = filled(native)
    policy.hit(ids(2), 2.0)  # live
    policy.resize(5)
    assert sorted(policy.offered()) == [0, 1, 3, 4]
    with pytest.raises(IndexError):
        policy.offer(ids(5))
    policy.resize(0)
    assert (policy.victim(3.0), policy.offered()) == (-1, [])
    with pytest.raises(IndexError):
        policy.history(0)
    policy.resize(2000)
    policy.enter(np.arange(2000), np.arange(2000, dtype=np.uint64), 4.0)
    policy.release(np.arange(2000), 1, 0, False, 5.0)
    policy.offer(np.arange(2000))
    assert policy.victim(6.0) == 0


def test_moves(native: ModuleType) -> None:
    policy = filled(native)
    policy.move(0, 0)
    policy.move(5, 5)
    check_whole(policy)
    for source, target in ((-1, 0), (0, -1), (8, 0), (0, 8), (0, 2**40)):
        with pytest.raises(IndexError):
            policy.move(source, target)
    check_whole(policy)
    policy.move(0, 3)  # what was in 3 is gone
    assert sorted(policy.offered()) == [1, 2, 3, 4, 5, 6, 7]
    assert policy.victim(2.0) == 3
    policy.move(0, 6)  # nothing is in 0
    assert sorted(policy.offered()) == [1, 2, 3, 4, 5, 7]


def test_a_policy_below_outlives_the_one_above(native: ModuleType) -> None:
    above = filled(native)
    below = above.below(4)
    del above
    below.enter(ids(0, 3), keys(0, LAST_KEY), 0.0)
    below.take_over(0, -5.0, 3, 7, 1.0)
    below.take_over(3, 0.0, 3, 7, 1.0)
    below.offer(ids(0, 3))
    assert below.victim(2.0) == 0
    below.resize(1)
    assert below.offered() == [0]


def test_an_object_that_was_never_made_is_refused(native: ModuleType) -> None:
    hollow = native.AdaptivePolicy.__new__(native.AdaptivePolicy)
    with pytest.warns(RuntimeWarning, match="uninitialized"), pytest.raises(TypeError):
        hollow.victim(0.0)


def test_random_calls_do_no_harm(native: ModuleType) -> None:
    """Whatever the order of calls: nothing live is given, and no memory is touched that is not the policy's."""
    generator = np.random.default_rng(1)
    size, now = 40, 0.0
    policy = native.AdaptivePolicy(size)
    for _ in range(4000):
        now += float(generator.choice([0.0, 0.01, 40.0, -3.0]))
        some = generator.integers(0, size, generator.integers(0, 6)) if size else ids()
        verb = generator.choice(
            [*BATCHES, "victim", "move", "resize", "take_over"], p=[*[0.14] * 6, 0.1, 0.03, 0.01, 0.02]
        )
        if verb == "enter":
            policy.enter(some, generator.integers(0, 90, len(some)).astype(np.uint64), now)
        elif verb == "hit":
            policy.hit(some, now)
        elif verb == "release":
            policy.release(some, int(generator.integers(0, 2000)), int(generator.integers(3)), True, now)
        elif verb in BATCHES:
            BATCHES[verb](policy, some)
        elif verb == "resize":
            size = int(generator.integers(0, 60))
            policy.resize(size)
        elif verb == "move" and size:
            policy.move(*generator.integers(0, size, 2).tolist())
        elif verb == "take_over" and size:
            policy.take_over(int(generator.integers(size)), now - 5.0, 3, int(generator.integers(NUM_KINDS)), now)
        victim, offered = policy.victim(now), policy.offered()
        assert victim in offered if offered else victim == -1
