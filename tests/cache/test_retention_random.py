"""Pins, priorities, times to live and quotas under random operations, against a model of who must still be there."""

import pytest

from kvpager.eviction.make import POLICIES
from tests.cache.retention_world import LAYOUTS, RetentionWorld


def run(
    seed: int, policy: str, layout: str, *, is_tiered: bool, operations: int, check_every: int = 1
) -> RetentionWorld:
    world = RetentionWorld(seed, policy, layout, is_tiered=is_tiered, check_every=check_every)
    try:
        world.run(operations)
        world.close()
    except Exception as error:
        case = f"seed={seed} {policy} {layout} tiers={is_tiered} operation {world.number}"
        raise AssertionError(f"{type(error).__name__}: {error}\n{case}") from error
    return world


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_retained_is_there_and_what_has_run_out_is_not(policy: str) -> None:
    for number, layout in enumerate(LAYOUTS):
        run(number, policy, layout, is_tiered=number == 1, operations=300, check_every=10)
