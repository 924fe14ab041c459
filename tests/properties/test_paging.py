"""Pages of running sequences go down, come back, get lost and are given back in any order, and no byte is wrong."""

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.properties.paged_world import PagedWorld

EXPECTED = {
    "back", "could not step", "could step", "dropped", "freed during a step", "limit too small", "lost",
    "non resident prefix", "out", "out of blocks", "step below", "truncated",
}  # fmt: skip

ONCE_WRONG = (3011, 3060)  # seeds


def run(seeds: Iterable[int]) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in seeds:
        world = PagedWorld(seed)
        try:
            world.run(100)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        happened += world.happened
    return happened


@pytest.mark.slow
def test_no_order_of_operations_contradicts_the_model() -> None:
    happened = run([*range(24), *ONCE_WRONG])
    missed = EXPECTED.difference(+happened)
    assert not missed


@pytest.mark.heavy
@pytest.mark.timeout(0)
def test_many_orders() -> None:
    run(range(1000, 6000))
