"""Pages of running sequences on disk: read part by part through the window, compared with what left the device."""

from pathlib import Path

import numpy as np
import pytest

from kvpager import ConfigError, DiskTier, HostTier, KVLayout, PagedCache, open_cache
from kvpager.cache.sequence import Sequence
from kvpager.cache.step import Step
from kvpager.errors import PagesLost, TierError
from kvpager.tiers.staging import PartRequest, Staged
from kvpager.types import TierKind
from tests.cache.caches import LAYOUT
from tests.cache.paged import advance
from tests.stamp import Stamp, T, as_bytes

WINDOW = "8 MiB"


def over_disk(folder: Path, layout: KVLayout = LAYOUT, **options: object) -> PagedCache:
    tiers = [HostTier(pages=4), DiskTier(folder, "64 MiB")]
    settings = {"num_blocks": 10, "tiers": tiers, "fingerprint": b"w", "window": WINDOW, "debug": True}
    return open_cache(layout, **(settings | options))  # type: ignore[arg-type]


def read(step: Step, layer: int) -> tuple[np.ndarray, Staged]:
    """The pages of a step's first sequence that are not read in place, and one layer's parts of them."""
    batch, place = step.batch, step.batch.layout.places[layer]
    rest = batch.non_resident[place.group, 0]
    pages = np.flatnonzero(rest.tier == TierKind.DISK)
    size = batch.layout.block_bytes // len(batch.layout.groups[place.group].layers)
    request = PartRequest(
        TierKind.DISK, rest.slot[pages], place.index * size, size, place.index, rest.checksums, rest.is_known, pages
    )
    assert batch.window is not None
    return pages, batch.window.fetch(request)


def check_parts(stamp: Stamp, seq: Sequence, step: Step) -> int:
    """Compares all parts that are read through the window; returns how many pages that were."""
    assert seq.tokens is not None
    for layer in range(stamp.layout.layers):
        pages, staged = read(step, layer)
        assert not staged.errors
        for page, address in zip(pages.tolist(), staged.addresses.tolist(), strict=True):
            start, stop = page * stamp.layout.page_size, (page + 1) * stamp.layout.page_size
            rows = [stamp.rows(layer, half, seq.tokens, start, stop) for half in "KV"]  # [slot, head, dim]
            expected = np.stack([as_bytes(half.transpose(0, 1)) for half in rows], 1)  # [head, K|V, bytes]
            found = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * expected.size).from_address(address))
            assert found.tobytes() == expected.tobytes(), (layer, page)
    return len(pages)


def test_pages_on_disk_are_what_was_written(tmp_path: Path) -> None:
    with over_disk(tmp_path / "kv") as cache:
        stamp, seq = Stamp(cache), cache.sequence(T(1, 80), resident_limit=4)
        advance(stamp, seq)
        seq.append(99)
        with cache.step({seq: 1}) as step:
            assert step.batch.non_resident[0, 0].is_known[:20][seq.tables[0].tiers()[:20] == TierKind.DISK].all()
            assert check_parts(stamp, seq, step) >= 12
            stamp.fill(step)
        cache.check()
        assert "went out" in str(cache.statistics())


def test_a_prefix_on_disk_is_read_where_it_lies_though_its_parts_are_not_known_yet(tmp_path: Path) -> None:
    with over_disk(tmp_path / "kv") as cache:
        stamp, seq = Stamp(cache), cache.sequence(T(1, 80), resident_limit=4)
        advance(stamp, seq)
    with over_disk(tmp_path / "kv") as cache:  # another process
        stamp, seq = Stamp(cache), cache.sequence(T(1, 80), resident_limit=4, non_resident=True)
        assert seq.prefix_by_tier == {TierKind.DISK: 76}
        with cache.step({seq: 4}) as step:
            assert not step.batch.non_resident[0, 0].is_known.any()
            assert check_parts(stamp, seq, step) == 19
            assert step.batch.non_resident[0, 0].is_known[:19].all()
            stamp.fill(step)
        advance(stamp, seq)
        cache.check()


def test_lost_pages_are_forgotten_and_the_prefix_before_them_is_found_again(tmp_path: Path) -> None:
    with over_disk(tmp_path / "kv") as cache:
        stamp, seq = Stamp(cache), cache.sequence(T(1, 80), resident_limit=4)
        advance(stamp, seq)
        neighbour = cache.sequence(T(200, 210))
        advance(stamp, neighbour, 11)
        lost = int(np.flatnonzero(seq.tables[0].tiers() == TierKind.DISK)[3])
        seq.append(99)
        with pytest.raises(PagesLost), cache.step({seq: 1}):
            raise PagesLost({(seq.row, 0): [lost]}, TierError("rotten"))
        assert seq.length == 80
        assert cache.paging.lose(PagesLost({(seq.row, 0): [lost]}, TierError("rotten"))) == [seq]
        cache.check()
        with pytest.raises(ConfigError, match="free it, and compute it again"):
            cache.step({seq: 1})
        seq.free()
        cache.check()
        again = cache.sequence([*T(1, 80), 99], resident_limit=4, non_resident=True)
        assert again.prefix_tokens == 4 * lost
        advance(stamp, again)
        stamp.verify(neighbour)
        cache.check()
        statistics = cache.statistics().paging
        assert statistics is not None
        assert statistics.lost == 1


def test_what_can_not_be_read_in_place_is_refused_with_the_remedy(tmp_path: Path) -> None:
    quantized = KVLayout(layers=2, kv_heads=2, head_dim=4, dtype="int8", page_size=4)
    cases: list[tuple[KVLayout, dict[str, object], str]] = [
        (LAYOUT, {"window": None}, "open the cache with window="),
        (quantized, {}, "open the cache with a float dtype"),
        (LAYOUT, {"tier_dtype": "int8"}, "without tier_dtype"),
    ]
    for number, (layout, options, remedy) in enumerate(cases):
        with over_disk(tmp_path / str(number), layout, **options) as cache:
            seq = cache.sequence(T(1, 9))
            with pytest.raises(ConfigError, match=remedy):
                seq.resident_limit = 4
            with pytest.raises(ConfigError, match=remedy):
                cache.sequence(T(1, 9), non_resident=True)
            assert remedy in cache.paging.why_not()
            cache.check()
    with over_disk(tmp_path / "right") as cache:  # the control
        assert cache.paging.why_not() == ""
        cache.sequence(T(1, 9)).resident_limit = 4


def test_a_window_that_holds_no_two_segments_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"window of 1,000,000 bytes .* takes 2,097,152 .* at least 4,194,304"):
        over_disk(tmp_path / "kv", window=1_000_000)
    over_disk(tmp_path / "kv", window=4_194_304).close()
    with pytest.raises(ConfigError, match="give tiers="):
        open_cache(LAYOUT, num_blocks=4, window=WINDOW)
