"""Open case O-24, library part: a page has the same bytes on every path over tiers, both ways, in every dtype."""

from pathlib import Path

import pytest

from kvpager.types import TierKind
from tests.cases.over_tiers import TIERS, P, drop_all, opened
from tests.stamp import Stamp, block_bytes, block_counts, prefill

DTYPES = ["float32", "bfloat16", "float16", "int8", "float8_e4m3"]


@pytest.mark.parametrize("write_back", ["through", "back"])
@pytest.mark.parametrize("tiers", TIERS.values(), ids=list(TIERS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_page_has_the_same_bytes_after_every_way_down_and_up(
    tmp_path: Path, dtype: str, tiers: tuple[TierKind, ...], write_back: str
) -> None:
    with opened(tmp_path, dtype, tiers, write_back=write_back) as cache:
        seq = cache.sequence([*P, 99])
        with cache.step({seq: 49}) as step:
            Stamp(cache).fill(step)
            for number, block in enumerate(step.batch.tables[0][0][:3].tolist()):  # what is behind the rows, too
                cache.arena.blocks[block][cache.layout.block_bytes - 8 : cache.layout.block_bytes] ^= number
        blocks = seq.tables[0].snapshot()[:3].tolist()
        before = [block_bytes(cache, block) for block in blocks]
        seq.free()
        if write_back == "back":
            cache.lower.write_down(blocks)
        for _ in range(3):  # down and up again, and again
            drop_all(cache)
            seq = cache.sequence([*P, 99])
            assert seq.prefix_by_tier.get(tiers[0]) == 48
            assert [block_bytes(cache, block) for block in seq.tables[0].snapshot()[:3].tolist()] == before
            seq.free()
            block_counts(cache)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_page_has_the_same_bytes_after_a_restart(tmp_path: Path, dtype: str) -> None:
    with opened(tmp_path, dtype, (TierKind.HOST, TierKind.DISK), write_back="back") as cache:
        seq = prefill(Stamp(cache), [*P, 99])
        before = [block_bytes(cache, block) for block in seq.tables[0].snapshot()[:3].tolist()]
    with opened(tmp_path, dtype) as cache:
        seq = cache.sequence([*P, 99])
        assert seq.prefix_by_tier[TierKind.DISK] == 48, "closing wrote what was on the device only"
        assert [block_bytes(cache, block) for block in seq.tables[0].snapshot()[:3].tolist()] == before
