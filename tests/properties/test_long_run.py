"""90,000 random operations on a cache and its model; millions before a release.

KVPAGER_TEST_OPERATIONS   how many operations all settings do together
KVPAGER_TEST_SEED         runs the one episode with this seed: the line that a failure prints
"""

import os
import random

import pytest

from tests.properties.world import SETTINGS, World

EPISODE = 400  # operations; short, so that a failure is short to replay
TEST = "tests/properties/test_long_run.py::test_no_random_run_contradicts_the_model"
SEED = os.environ.get("KVPAGER_TEST_SEED")
EXPECTED = {"copies", "out of blocks", "overlapping steps", "failed steps", "freed during a step", "written by hand"}


def operations(default: int) -> int:
    return int(os.environ.get("KVPAGER_TEST_OPERATIONS", default)) // len(SETTINGS)


def run_episode(setting: str, seed: int, met: dict[str, int]) -> int:
    generator = random.Random(seed)
    world = World(SETTINGS[setting])
    try:
        for name in SETTINGS[setting].operations(generator, EPISODE):
            world.run(name, generator.randint)
        world.finish()
    except Exception as error:
        replay = f"KVPAGER_TEST_SEED={seed} python -m pytest '{TEST}[{setting}]'"
        pytest.fail(f"{type(error).__name__}: {error}\nin operation {world.turns} of seed {seed}; replay: {replay}")
    for event, count in world.happened.items():
        met[event] = met.get(event, 0) + count
    return EPISODE


def run(setting: str, total: int) -> None:
    met: dict[str, int] = {}
    if SEED is not None:
        run_episode(setting, int(SEED), met)
        return
    done, seed = 0, 1_000_000 * list(SETTINGS).index(setting)
    while done < total:
        done += run_episode(setting, seed, met)
        seed += 1
    expected = EXPECTED if setting == "by hand" else EXPECTED | {"hits", "reclaimed", "deduplicated"}
    missed = {event for event in expected if not met.get(event)}
    assert not missed, f"{done} operations never met: {missed}"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_random_run_contradicts_the_model(setting: str) -> None:
    run(setting, operations(90_000))


@pytest.mark.heavy
@pytest.mark.timeout(0)
@pytest.mark.parametrize("setting", SETTINGS)
def test_millions_of_random_operations_do_not_contradict_the_model(setting: str) -> None:
    run(setting, operations(5_000_000))
