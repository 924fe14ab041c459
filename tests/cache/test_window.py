"""Layers with a sliding window give their pages back while a sequence runs, and what is left is always enough."""

import itertools

import pytest

from kvpager import ConfigError, KVLayout, LayerSpec
from tests.cache.caches import MIXED, WINDOWED, opened
from tests.stamp import T, block_counts, prefill, run_step

TWO_WINDOWS = KVLayout.mixed([LayerSpec(1, 4, window=5), LayerSpec(1, 4, window=13)], dtype="bfloat16", page_size=4)


def test_pages_behind_the_window_are_given_back_while_the_sequence_runs() -> None:
    with opened(WINDOWED) as stamp:
        seq = stamp.cache.sequence(T(1, 60))
        for _ in range(60):
            with stamp.cache.step({seq: 1}) as step:
                stamp.fill(step)
            stamp.verify(seq)
            counts = block_counts(stamp.cache)
            assert counts["used"] <= 3  # a window of 8 tokens touches at most three pages of four


def test_full_layers_keep_all_their_pages() -> None:
    with opened(MIXED, num_blocks=40) as stamp:
        seq = prefill(stamp, T(1, 40))
        full, windowed = seq.tables
        assert len(full.mapped_blocks()) == 10
        assert len(windowed.mapped_blocks()) == 2
        assert len(windowed) == 10
        stamp.verify(seq)


def test_reading_or_writing_what_was_given_back_is_refused() -> None:
    with opened(WINDOWED) as stamp:
        seq = prefill(stamp, T(1, 20))
        with pytest.raises(ConfigError, match="positions before 12 were given back"):
            seq.read(11, 12)
        with pytest.raises(ConfigError, match="positions before 12 were given back"):
            seq.write(11, *stamp.kv(T(1, 20), 11, 12))
        assert len(seq.read(12, 20)) == 2
        seq.read(3, 3)


def test_truncate_goes_back_as_far_as_the_window_still_has_what_is_seen() -> None:
    with opened(WINDOWED) as stamp:
        seq = prefill(stamp, T(1, 20))
        with pytest.raises(ConfigError, match="larger rewind"):
            seq.truncate(18)
        assert seq.length == 20
        seq.truncate(19)
        stamp.verify(seq)
        stamp.cache.check()


@pytest.mark.parametrize("window", [1, 2, 4, 5, 8, 13])
@pytest.mark.parametrize("rewind", [0, 1, 3, 4, 9])
def test_with_rewind_so_many_tokens_can_always_be_taken_back(window: int, rewind: int) -> None:
    layout = KVLayout(1, 1, 4, dtype="bfloat16", page_size=4, window=window)
    with opened(layout, num_blocks=24, rewind=rewind) as stamp:
        for length in range(1, 40):
            seq = stamp.cache.sequence(T(1000 * length, 1001 * length - 1))
            run_step(stamp, [seq])
            seq.truncate(max(0, length - rewind))
            stamp.cache.check()
            stamp.verify(seq)
            seq.append([700 + length, 800, 900])
            run_step(stamp, [seq])
            stamp.verify(seq)
            seq.free()
            stamp.cache.check()


def test_a_negative_rewind_is_refused() -> None:
    with pytest.raises(ConfigError, match="rewind"), opened(WINDOWED, rewind=-1):
        pass


@pytest.mark.parametrize("length", [9, 10, 11])
@pytest.mark.parametrize("window", [1, 2, 3, 4, 5])
def test_a_cut_inside_the_last_page_is_safe_when_the_page_before_it_is_gone(window: int, length: int) -> None:
    """The sequence must not lean on the node of a page that it gave back: others may have it by now."""
    layout = KVLayout(1, 1, 4, dtype="bfloat16", page_size=4, window=window)
    with opened(layout, num_blocks=6) as stamp:
        seq = prefill(stamp, T(1, 12))
        try:
            seq.truncate(length)
        except ConfigError:
            assert window > length - 7  # it sees into page 1, which was given back
            return
        for token in range(90, 100):
            seq.append(token)
            run_step(stamp, [seq])
            stamp.cache.check()
            # Everything that can be reclaimed is, and its node numbers are given out again.
            for churn in (0, 100):
                prefill(stamp, [1000 * token + churn + i for i in range(12)]).free()
                stamp.cache.check()
            stamp.verify(seq)
        seq.free()
        stamp.verify(prefill(stamp, [3000 + i for i in range(12)]))
        stamp.cache.check()


@pytest.mark.parametrize("until", [4, 8])
def test_a_window_that_moves_past_the_last_published_page_is_safe(until: int) -> None:
    with opened(WINDOWED, num_blocks=8) as stamp:
        seq = prefill(stamp, T(1, 10), publish_until=until)
        for token in range(200, 240):
            seq.append(token)
            run_step(stamp, [seq])
            other = prefill(stamp, [1000 * token + i for i in range(16)])
            stamp.cache.check()
            other.free()
            stamp.verify(seq)
        twin = seq.fork()
        twin.append(7)
        run_step(stamp, [twin])
        stamp.verify(twin)


@pytest.mark.parametrize("evicted", list(itertools.product(range(6), repeat=2)), ids=str)
def test_groups_with_different_windows_agree_on_how_much_of_a_prefix_is_there(evicted: tuple[int, int]) -> None:
    """Either group may have lost any page. What is found must be usable in both."""
    with opened(TWO_WINDOWS, num_blocks=40, rewind=40) as stamp:
        seq = prefill(stamp, T(1, 24))
        cache = stamp.cache
        tables = [table.mapped_blocks().tolist() for table in seq.tables]
        assert [len(blocks) for blocks in tables] == [6, 6]
        seq.free()
        for table, page in zip(tables, evicted, strict=True):
            assert cache._reclaimer._evict([table[page]]) == 1
        cache.check()
        hit = cache.sequence([*T(1, 24), 25], max_prefix=24)
        cache.check()
        stamp.verify(hit)
        expected = max(
            depth
            for depth in range(7)
            if all(
                not max(0, min((4 * depth - window + 1) // 4, depth - 1)) <= lost < depth
                for window, lost in zip((5, 13), evicted, strict=True)
            )
        )
        assert hit.prefix_tokens // 4 == expected
        run_step(stamp, [hit])
        stamp.verify(hit)


def test_a_windowed_layout_reuses_a_prefix_whose_head_was_reclaimed() -> None:
    with opened(WINDOWED, num_blocks=8, match_inside_pages=False) as stamp:
        prefill(stamp, T(1, 24)).free()  # 6 cached: the head was given back first
        prefill(stamp, T(100, 115)).free()  # takes 2 free and the 2 oldest
        hit = stamp.cache.sequence([*T(1, 24), 25])
        assert hit.prefix_tokens == 24
        stamp.verify(hit)
