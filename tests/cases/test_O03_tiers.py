"""Open case O-03, library part: the numbers of the pool and of all tiers add up at every reading."""

from pathlib import Path

from kvpager import DiskTier, HostTier, PagedCache, open_cache
from tests.cases.over_tiers import layout
from tests.stamp import Stamp, T, block_counts, run_step


def test_the_numbers_add_up_over_three_tiers(tmp_path: Path) -> None:
    """Device 64, host 64 and disk 128 blocks, then the device with 24; 20 requests with a common head, 5 at a time."""
    page = layout().block_stride
    tiers = [HostTier(pages=64), DiskTier(tmp_path / "kv", "16 MiB")]
    for num_blocks in (64, 24):
        with open_cache(layout(), num_blocks=num_blocks, tiers=tiers, fingerprint=b"one") as cache:
            last = _read(cache, page, {})
            for number in range(0, 20, 2 if num_blocks == 24 else 5):
                wave = range(number, min(20, number + (2 if num_blocks == 24 else 5)))
                seqs = [cache.sequence([*T(1, 160), *T(1000 * each, 1000 * each + 39)]) for each in wave]
                for seq in seqs:
                    run_step(Stamp(cache), [seq])
                    last = _read(cache, page, last)
                seqs.pop().free()  # aborted
                for seq in seqs:
                    seq.append([5] * 8)
                    run_step(Stamp(cache), [seq])
                    last = _read(cache, page, last)
                cache.free(seqs)
                last = _read(cache, page, last)
            assert cache.lower.settle(60)
            _read(cache, page, last)
            assert block_counts(cache)["used"] == block_counts(cache)["moving"] == 0


def _read(cache: PagedCache, page_bytes: int, last: dict[str, int]) -> dict[str, int]:
    block_counts(cache)
    stats = cache.statistics()
    prefix, blocks = stats.prefix, stats.blocks
    assert blocks.free + blocks.used + blocks.cached + blocks.moving == blocks.total
    assert 0 <= blocks.utilisation <= 1
    assert sum(prefix.by_tier.values()) == prefix.hit_tokens <= prefix.prompt_tokens
    now = {"hits": prefix.hit_tokens, "prompts": prefix.prompt_tokens, "computed": stats.computed_tokens}
    for tier in stats.tiers:
        usage = tier.usage
        assert usage.free + usage.used + usage.cached + usage.moving == usage.blocks
        assert 0 <= usage.used_bytes <= usage.capacity_bytes
        assert tier.stored.bytes == tier.stored.pages * page_bytes
        assert tier.loaded.bytes == tier.loaded.pages * page_bytes
        now |= {f"{tier.name} stored": tier.stored.pages, f"{tier.name} loaded": tier.loaded.pages}
    assert all(value >= last.get(name, 0) for name, value in now.items()), "a counter went down"
    return now
