"""Open case O-12, library part: weights or adapter changed while only a tier has what the old ones computed."""

from pathlib import Path

import pytest

from kvpager import Scope
from kvpager.types import TierKind
from tests.cases.over_tiers import TIERS, P, drop_all, opened
from tests.stamp import Stamp, prefill


@pytest.mark.parametrize("tiers", TIERS.values(), ids=list(TIERS))
def test_pages_of_old_weights_or_an_old_adapter_are_not_found_where_only_a_tier_has_them(
    tmp_path: Path, tiers: tuple[TierKind, ...]
) -> None:
    one, two = (Scope(adapter="a", adapter_version=version) for version in "12")
    with opened(tmp_path, tiers=tiers) as cache:
        stamp = Stamp(cache)
        for scope in (Scope(), one):
            prefill(stamp, [*P, 99], scope=scope).free()
            drop_all(cache)
        control = cache.sequence([*P, 99], scope=one)
        assert control.prefix_tokens == 48
        control.free()
        assert cache.sequence([*P, 99], scope=two).prefix_tokens == 0
        cache.set_fingerprint(b"two")
        drop_all(cache)
        for scope in (Scope(), one, two):
            seq = cache.sequence([*P, 99], scope=scope)
            assert seq.prefix_tokens == 0
            seq.free()
        assert cache.index.num_entries == 0
        cache.set_fingerprint(b"one")
        assert cache.sequence([*P, 99]).prefix_tokens == 48, "the old weights come back, and what they computed"


def test_pages_of_old_weights_are_not_found_on_the_disk_by_the_next_process(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        prefill(Stamp(cache), [*P, 99]).free()
    with opened(tmp_path, fingerprint=b"two") as cache:
        assert cache.sequence([*P, 99]).prefix_tokens == 0
    with opened(tmp_path) as cache:
        assert cache.sequence([*P, 99]).prefix_tokens == 48, "the control"
