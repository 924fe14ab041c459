"""Pages that were sealed with a key are found with that key only, and are still there for it afterwards."""

import os
from pathlib import Path

import pytest

from kvpager import DiskTier, KVLayout, open_cache
from kvpager.types import TierKind
from tests.stamp import Stamp, T, prefill

LAYOUT = KVLayout(layers=2, kv_heads=2, head_dim=32, dtype="float32", page_size=4)


def key_file(folder: Path, name: str) -> Path:
    path = folder / name
    path.touch(0o600)
    path.write_bytes(os.urandom(32))
    return path


@pytest.mark.parametrize("encrypt", [False, True], ids=["mac", "encrypted"])
@pytest.mark.parametrize("compress", [False, True], ids=["as it is", "packed"])
def test_another_key_finds_nothing_and_spoils_nothing(tmp_path: Path, encrypt: bool, compress: bool) -> None:
    if encrypt:
        pytest.importorskip("cryptography", reason="needs the extra 'encryption'")
    if compress:
        pytest.importorskip("zstandard", reason="needs the extra 'zstd'")
    mine, other = key_file(tmp_path, "mine"), key_file(tmp_path, "other")

    def found_with(key: Path) -> tuple[int, int]:
        """Tokens that came from the disk, and pages that were called damaged."""
        disk = DiskTier(tmp_path / "kv", "64 MiB", key_file=key, encrypt=encrypt, compress=compress)
        with open_cache(LAYOUT, num_blocks=16, tiers=[disk], fingerprint=b"w") as cache:
            stamp = Stamp(cache)
            seq = prefill(stamp, T(1, 18))
            stamp.verify(seq)
            cache.check()
            return seq.prefix_by_tier.get(TierKind.DISK, 0), cache.statistics().tiers[0].quarantined

    assert [found_with(key) for key in (mine, mine, other, mine)] == [(0, 0), (16, 0), (0, 0), (16, 0)]


def test_plain_and_sealed_pages_do_not_mix(tmp_path: Path) -> None:
    key = key_file(tmp_path, "key")
    found = []
    for sealed in (False, True, True, False):
        disk = DiskTier(tmp_path / "kv", "64 MiB", key_file=key if sealed else None)
        with open_cache(LAYOUT, num_blocks=16, tiers=[disk], fingerprint=b"w") as cache:
            found.append(prefill(Stamp(cache), T(1, 18)).prefix_by_tier.get(TierKind.DISK, 0))
    assert found == [0, 0, 16, 16]
