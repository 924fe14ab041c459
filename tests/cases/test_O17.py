"""Open case O-17 (b), library part: a page that goes after it was found costs a load and no answer."""

from pathlib import Path

import pytest

from kvpager import Scope
from tests.cases.over_tiers import P, drop_all, opened
from tests.stamp import Stamp, block_counts, prefill, run_step


@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_a_file_that_goes_after_it_was_found_costs_a_load_and_no_answer(tmp_path: Path, damage: str) -> None:
    """(b) Two requests share the prefix; both compute it."""
    with opened(tmp_path) as cache:
        stamp = Stamp(cache)
        prefill(stamp, [*P, 99]).free()
        drop_all(cache)
        disk = cache.lower.migration.tiers[0]
        match = cache.lower.find(cache.sequence([*P, 99], came_up={}).tokens, Scope(), 48)
        assert match is not None
        assert len(match.missing) == 3
        for file in (tmp_path / "kv").iterdir():
            size = file.stat().st_size
            if size > 1 << 16:
                with open(file, "r+b") as opened_file:
                    if damage == "truncated":
                        opened_file.truncate(4096)
                    else:
                        opened_file.write(b"\xee" * size)
        requests = [cache.sequence([*P, last]) for last in (99, 98)]
        assert [seq.prefix_tokens for seq in requests] == [0, 0]
        for seq in requests:
            run_step(stamp, [seq])
            stamp.verify(seq)
        counts = disk.statistics().loaded
        assert 1 <= counts.failed <= 2 * 3, "at most two attempts for each page"
        cache.free(requests)
        assert cache.lower.settle(60)
        assert cache.lower.held_blocks() == []
        assert block_counts(cache)["moving"] == 0
