"""Pins, priorities, times to live and quotas under random operations, against a model of who must still be there."""

from collections import Counter

import pytest

from kvpager.eviction.make import POLICIES
from tests.cache.retention_world import LAYOUTS, RetentionWorld

MILLION = 1_000_000
EXPECTED = {
    "accepted", "clipped", "refused", "request accepted", "request clipped", "request refused", "ran out", "gone",
    "seconds over", "over quota", "out of blocks", "chosen by rank", "promoted", "yielded", "swept", "not resized",
}  # fmt: skip


def run(seed: int, operations: int, check_every: int = 1) -> RetentionWorld:
    """The seed says which policy, which layout, and whether there is a tier below."""
    policy, layout = (
        POLICIES[seed % len(POLICIES)],
        "full" if seed % 2 == 0 else list(LAYOUTS)[seed // 2 % len(LAYOUTS)],
    )
    world = RetentionWorld(seed, policy, layout, is_tiered=seed % 4 >= 2, check_every=check_every)
    try:
        world.run(operations)
        world.close()
    except Exception as error:
        case = f"seed={seed} {policy} {layout}, operation {world.number}"
        raise AssertionError(f"{type(error).__name__}: {error}\n{case}") from error
    return world


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_retained_is_there_and_what_has_run_out_is_not(policy: str) -> None:
    seed = POLICIES.index(policy)
    world = run(seed, 120, check_every=8)
    assert world.num_calls > 300
    assert world.happened["gone"] > 0  # the control: something had to go


@pytest.mark.heavy
def test_under_a_million_calls() -> None:
    happened, calls = Counter[str](), 0
    for seed in range(1000, 10**6):
        world = run(seed, 1000, check_every=20)
        happened += world.happened
        calls += world.num_calls
        if calls >= MILLION:
            break
    assert calls >= MILLION
    assert set(happened) >= EXPECTED, EXPECTED - set(happened)
