"""Forgetting on purpose: the device, the tiers below it, or both."""

from pathlib import Path

from kvpager import DiskTier, HostTier, KVLayout, open_cache
from kvpager.types import TierKind
from tests.stamp import Stamp, T, prefill

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=32, dtype="float32", page_size=4)


def test_the_device_and_the_tiers_forget_apart(tmp_path: Path) -> None:
    tiers = [HostTier(pages=16), DiskTier(tmp_path / "kv", "64 MiB")]
    with open_cache(LAYOUT, num_blocks=64, tiers=tiers, fingerprint=b"w") as cache:
        assert cache.lower is not None
        stamp = Stamp(cache)
        prefill(stamp, T(1, 18)).free()
        assert cache.lower.settle(60)
        assert cache.clear_prefix() == 4
        again = prefill(stamp, T(1, 18))
        assert again.prefix_by_tier == {TierKind.HOST: 16, TierKind.DEVICE: 0}
        again.free()
        assert cache.lower.settle(60)
        assert cache.clear_tiers() == {TierKind.HOST: 4, TierKind.DISK: 4}
        assert prefill(stamp, T(1, 18)).prefix_by_tier == {TierKind.DEVICE: 16}
        cache.check()
    with open_cache(LAYOUT, num_blocks=64, tiers=tiers, fingerprint=b"w") as cache:
        assert prefill(Stamp(cache), T(1, 18)).prefix_by_tier.get(TierKind.DISK, 0) == 16, "closing wrote them again"


def test_what_was_cleared_is_not_found_after_a_restart(tmp_path: Path) -> None:
    tiers = [DiskTier(tmp_path / "kv", "64 MiB")]
    with open_cache(LAYOUT, num_blocks=64, tiers=tiers, fingerprint=b"w") as cache:
        assert cache.lower is not None
        prefill(Stamp(cache), T(1, 18)).free()
        assert cache.lower.settle(60)
        cache.clear_prefix()
        assert cache.clear_tiers() == {TierKind.DISK: 4}
    with open_cache(LAYOUT, num_blocks=64, tiers=tiers, fingerprint=b"w") as cache:
        assert prefill(Stamp(cache), T(1, 18)).prefix_tokens == 0


def test_a_cache_without_tiers_has_none_to_clear() -> None:
    with open_cache(LAYOUT, num_blocks=8) as cache:
        assert cache.clear_tiers() == {}
