"""The policies' bench: every policy has its figures, and the pool it drives is one a policy may be asked in."""

import numpy as np
import pytest

from kvpager.bench import eviction
from kvpager.eviction.make import POLICIES


def test_it_names_the_figures_of_every_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SMALL", 50), ("LARGE", 100), ("OPERATIONS", 5_000)):
        monkeypatch.setattr(eviction, name, value)
    found = eviction.run(quick=True)
    assert found["name"] == "eviction"
    names = [result["name"] for result in found["results"]]  # type: ignore[index, attr-defined]
    for policy in POLICIES:
        assert {f"ops_per_second_{policy}", f"p999_ratio_{policy}"} < set(names)


def test_a_percentile_is_one_of_operations_not_of_calls() -> None:
    costs = eviction._Costs()
    costs.add(1.0, 9_990)  # one call of many cheap operations
    for _ in range(5):
        costs.add(2.0, 1)
    assert costs.p999 == pytest.approx(1.0 / 9_990)
    for _ in range(12):
        costs.add(3.0, 1)
    assert costs.p999 == 3.0
    assert costs.num_operations == 10_007
    assert costs.per_second == pytest.approx(10_007 / 47.0)


def test_of_two_runs_the_faster_call_counts() -> None:
    one, other = eviction._Costs(), eviction._Costs()
    for costs, seconds in ((one, (1.0, 5.0)), (other, (2.0, 4.0))):
        for each in seconds:
            costs.add(each, 1)
    assert np.array(one.fastest(other)._seconds).tolist() == [1.0, 4.0]
