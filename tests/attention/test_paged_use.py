"""States of attention over sequences of which only a part is on the device."""

import pytest
from torch import Tensor

from kvpager import HostTier, KVLayout, native, open_cache
from kvpager.attention.cpu import CpuBackend
from kvpager.attention.use_state import UseState
from kvpager.config.attend import HeavyHitters
from kvpager.types import TierKind
from tests.attention.bench import Bench
from tests.attention.test_forgetting import ForgettingBench
from tests.stamp import T

pytestmark = pytest.mark.skipif(native.module() is None, reason=native.why_not())
LAYOUT = KVLayout(2, 2, 8, "float32", 4)


class AimedBench(Bench):
    """All queries look for the token at position ``aim``."""

    aim = 0

    def queries(self, count: int, layer: int) -> Tensor:
        k, _ = self.kv(layer, T(1, self.aim + 1), self.aim, self.aim + 1)
        return (3 * k.repeat_interleave(self.query_heads // k.shape[1], dim=1)).expand(count, -1, -1).contiguous()


def resident(bench: Bench, seq) -> list[int]:  # type: ignore[no-untyped-def]
    places = [seq.translate(page * LAYOUT.page_size) for page in range(LAYOUT.num_pages(seq.length))]
    assert {place.tier for place in places} <= {TierKind.DEVICE, TierKind.HOST}
    return [page for page, place in enumerate(places) if place.tier is TierKind.DEVICE]


@pytest.mark.parametrize("is_measured", [True, False])
def test_the_pages_that_are_attended_to_stay_on_the_device(is_measured: bool) -> None:
    with open_cache(LAYOUT, num_blocks=24, tiers=[HostTier(pages=64)], debug=True) as cache:
        bench = AimedBench(cache, CpuBackend(), 4)
        bench.aim = aim = 53
        seq = cache.sequence(T(1, 90))
        seq.resident_limit = 10
        state = UseState(LAYOUT)
        seq.attention = state if is_measured else None
        assert cache.lower is not None
        for count in [20, 20, 8, *[1] * 40]:
            cache.lower.settle(60)  # else those go that have been copied soonest
            bench.step({seq: count})
        assert len(resident(bench, seq)) <= 10 < LAYOUT.num_pages(seq.length)
        if is_measured:
            use = state.page_use(0)
            assert use is not None
            assert use.argmax() == aim // 4
            assert aim // 4 in resident(bench, seq)
        else:
            assert aim // 4 not in resident(bench, seq)
        seq.free()
        cache.check()


def test_pages_below_the_device_are_given_back_as_well() -> None:
    with open_cache(LAYOUT, num_blocks=24, tiers=[HostTier(pages=64)], debug=True) as cache:
        bench = ForgettingBench(cache, CpuBackend())
        seq = bench.forgetting(T(1, 140), HeavyHitters(80, 12, 4), 100)
        seq.resident_limit = 12
        bench.run(seq, [16] * 6 + [1] * 16)
        assert len(bench.gone[seq]) > 4
        assert bench.blocks_of(seq) <= 12
        seq.free()
        cache.check()
