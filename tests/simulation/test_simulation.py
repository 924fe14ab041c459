"""Deterministic simulation of the cache over its tiers: 60 virtual seconds of work and faults a seed.

KVPAGER_TEST_SEED   runs the one world with this seed: the line that a failure prints
KVPAGER_TEST_SEEDS  how many seeds the heavy run takes
"""

import os
from collections import Counter

import pytest

from tests.simulation.world import World

TEST = "tests/simulation/test_simulation.py"
SEED = os.environ.get("KVPAGER_TEST_SEED")
BATCHES = 2  # tests that can run side by side
EXPECTED = {
    "arrived", "asked", "blamed", "crashed", "declined", "failed load", "failed step", "failed store",
    "freed during a step", "hit DEVICE", "hit DISK", "hit HOST", "hit REMOTE", "hung", "not worth keeping",
    "out of blocks", "promoted", "quarantined", "reopened", "resize refused", "resized", "rotten", "rotten in host",
    "stale verdict", "went up for good",
}  # fmt: skip


def run_seed(seed: int, check_every: int = 1) -> World:
    world = World(seed, check_every)
    try:
        world.run()
    except Exception as error:
        replay = f"KVPAGER_TEST_SEED={seed} python -m pytest '{TEST}' -k no_seed"
        where = f"in {world.operation}, operation {world.num_operations}, at {world.clock.now:.3f} s of seed {seed}"
        raise AssertionError(f"{type(error).__name__}: {error}\n{where}\n{world.options}\nreplay: {replay}") from error
    return world


def run_seeds(seeds: range, check_every: int = 1) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in seeds:
        happened.update(run_seed(seed, check_every).happened)
    return happened


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_seed_serves_a_wrong_byte_or_loses_count(batch: int) -> None:
    if SEED is not None:
        run_seed(int(SEED))
        return
    happened = run_seeds(range(100 * batch, 100 * batch + 100), check_every=8)
    missed = {event for event in EXPECTED if not happened[event]}
    assert not missed, f"100 seeds never met: {missed}"


@pytest.mark.heavy
@pytest.mark.timeout(0)
def test_many_seeds() -> None:
    run_seeds(range(1000, 1000 + int(os.environ.get("KVPAGER_TEST_SEEDS", 20_000))))


def test_a_seed_does_the_same_every_time() -> None:
    """However often it is checked, so that a replay meets what the run met."""
    one, other = run_seed(7), run_seed(7, check_every=8)
    assert (one.num_operations, one.clock.now, one.happened) == (other.num_operations, other.clock.now, other.happened)
