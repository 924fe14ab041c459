"""Every policy keeps the contract of all policies."""

import pytest

from kvpager import ConfigError
from kvpager.eviction.make import POLICIES, make_policy
from kvpager.eviction.policy import EvictionPolicy
from tests.contracts.eviction_policy import EvictionPolicyContract, ManualClock

OTHERS = [name for name in POLICIES if name not in ("lru", "adaptive")]  # which have tests of their own


@pytest.mark.parametrize("name", OTHERS)
class TestPolicies(EvictionPolicyContract):
    batches = 700
    requests = 30

    @pytest.fixture(autouse=True)
    def choose(self, name: str) -> None:
        self.name = name

    def make(self, num_blocks: int, clock: ManualClock | None = None) -> EvictionPolicy:
        return make_policy(self.name, num_blocks, clock or ManualClock())


def test_an_unknown_name_lists_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="unknown eviction policy 'lur'; choose one of fifo, lru"):
        make_policy("lur", 4, ManualClock())
