"""Content that was computed before is mapped, not computed again, and is always the right content."""

import hashlib

import pytest

from kvpager import InvariantError, Media, OutOfBlocks, Scope
from kvpager.cache.check import _check_sharing
from kvpager.types import FaultKind
from tests.cache.caches import MIXED, WINDOWED, opened, published_blocks
from tests.stamp import T, block_counts, prefill, run_step

DIGEST = hashlib.sha256(b"image").digest()


def test_a_second_prompt_maps_the_full_pages_of_the_first() -> None:
    with opened(match_inside_pages=False) as stamp:
        prefill(stamp, T(1, 10))
        hit = stamp.cache.sequence([*T(1, 10), 11])
        assert (hit.prefix_tokens, hit.length) == (8, 8)
        assert stamp.cache.statistics().faults[FaultKind.MINOR].pages == 2
        stamp.verify(hit)
        run_step(stamp, [hit])
        stamp.verify(hit)


def test_looking_up_changes_nothing() -> None:
    with opened() as stamp:
        prefill(stamp, T(1, 10)).free()
        before = stamp.cache.statistics()
        assert stamp.cache.lookup([*T(1, 10), 11]).num_tokens == 8
        assert stamp.cache.lookup([99]).num_tokens == 0
        assert stamp.cache.statistics() == before


@pytest.mark.parametrize("length", range(1, 14))
def test_at_least_one_token_is_left_to_compute(length: int) -> None:
    with opened() as stamp:
        prefill(stamp, T(1, 20)).free()
        hit = stamp.cache.sequence(T(1, length))
        assert hit.prefix_tokens == length - 1
        stamp.verify(hit)
        run_step(stamp, [hit])
        stamp.verify(hit)
        stamp.cache.check()


def test_without_matches_inside_pages_a_hit_ends_at_a_page() -> None:
    for inside, expected in ((True, 10), (False, 8)):
        with opened(match_inside_pages=inside) as stamp:
            prefill(stamp, T(1, 12)).free()
            assert stamp.cache.lookup([*T(1, 10), 99, 98, 97]).num_tokens == expected


def test_a_hit_inside_a_page_is_copied_when_it_is_written_and_the_page_keeps_its_bytes() -> None:
    with opened() as stamp:
        prefill(stamp, T(1, 12)).free()
        before = published_blocks(stamp.cache)
        hit = stamp.cache.sequence([*T(1, 10), 99, 98])
        assert hit.prefix_tokens == 10
        assert stamp.cache.num_copies([hit]).tolist() == [1]
        run_step(stamp, [hit])
        stamp.verify(hit)
        assert stamp.cache.statistics().faults[FaultKind.COPY_ON_WRITE].pages == 1
        after = published_blocks(stamp.cache)
        assert {block: after[block] for block in before} == before
        stamp.verify(prefill(stamp, [*T(1, 12), 13]))


def test_among_several_pages_the_longest_common_run_is_taken() -> None:
    with opened(num_blocks=32) as stamp:
        for tail in ([5, 80, 81, 82], [5, 6, 83, 84], [5, 6, 7, 85], [9, 6, 7, 8]):
            prefill(stamp, [*T(1, 4), *tail]).free()
        hit = stamp.cache.sequence(T(1, 9))
        assert hit.prefix_tokens == 7
        stamp.verify(hit)


def test_equal_content_computed_at_the_same_time_is_kept_once() -> None:
    with opened(num_blocks=24) as stamp:
        seqs = [stamp.cache.sequence(T(1, 10)) for _ in range(3)]
        run_step(stamp, seqs)
        assert stamp.cache.statistics().deduplicated_blocks == 4
        assert block_counts(stamp.cache)["used"] == 2 + 3
        for seq in seqs:
            seq.append(T(20, 27))
        run_step(stamp, seqs)
        for seq in seqs:
            stamp.verify(seq)
        stamp.cache.free(seqs)
        assert block_counts(stamp.cache) == {"free": 20, "used": 0, "cached": 4, "moving": 0}


def test_content_that_waits_as_cached_is_shared_too() -> None:
    with opened() as stamp:
        slow = stamp.cache.sequence(T(1, 8))
        prefill(stamp, T(1, 8)).free()
        run_step(stamp, [slow])
        assert stamp.cache.statistics().deduplicated_blocks == 2
        assert block_counts(stamp.cache) == {"free": 14, "used": 2, "cached": 0, "moving": 0}
        stamp.verify(slow)


def test_max_prefix_bounds_what_is_reused() -> None:
    with opened() as stamp:
        prefill(stamp, T(1, 12)).free()
        for bound, expected in ((0, 0), (1, 1), (4, 4), (7, 7), (99, 12), (-3, 0)):
            hit = stamp.cache.sequence([*T(1, 12), 13], max_prefix=bound)
            assert hit.prefix_tokens == expected
            run_step(stamp, [hit])
            stamp.verify(hit)
            hit.free()
            stamp.cache.check()


@pytest.mark.parametrize(("until", "found"), [(None, 12), (0, 0), (4, 4), (7, 4), (11, 8), (99, 12)])
def test_publish_until_bounds_what_others_find(until: int | None, found: int) -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 12), publish_until=until)
        stamp.cache.check()
        assert stamp.cache.lookup([*T(1, 12), 13]).num_tokens == found
        seq.free()
        assert block_counts(stamp.cache)["cached"] == found // 4


def test_without_a_prefix_cache_nothing_is_found_or_kept() -> None:
    with opened(prefix_cache=False) as stamp:
        seq = prefill(stamp, T(1, 12))
        assert stamp.cache.lookup([*T(1, 12), 13]).num_tokens == 0
        seq.free()
        assert block_counts(stamp.cache)["free"] == 16
        assert not stamp.cache.has_prefix_cache
    with opened() as stamp:
        assert stamp.cache.has_prefix_cache


def test_a_found_page_that_was_cached_is_live_again_and_can_not_be_reclaimed() -> None:
    with opened(num_blocks=4) as stamp:
        prefill(stamp, T(1, 8)).free()
        hit = stamp.cache.sequence([*T(1, 8), 9])
        with pytest.raises(OutOfBlocks):
            stamp.cache.step({stamp.cache.sequence(T(50, 61)): 12})
        run_step(stamp, [hit])
        stamp.verify(hit)


def test_media_are_part_of_the_content_from_the_page_they_begin_in() -> None:
    with opened() as stamp:
        scope = Scope(media=(Media(5, DIGEST),))
        prefill(stamp, T(1, 12), scope=scope)
        other = Scope(media=(Media(5, hashlib.sha256(b"other").digest()),))
        moved = Scope(media=(Media(6, DIGEST),))
        found = {
            name: stamp.cache.lookup([*T(1, 12), 13], each).num_tokens
            for name, each in {"same": scope, "other": other, "moved": moved, "none": Scope()}.items()
        }
        assert found == {"same": 12, "other": 4, "moved": 4, "none": 4}
        late = Scope(media=(Media(11, DIGEST),))
        assert stamp.cache.lookup([*T(1, 12), 13], late).num_tokens == 4  # page 1 there begins no media, here it does


def test_pages_before_the_media_that_tell_two_sequences_apart_are_shared() -> None:
    with opened() as stamp:
        digests = (DIGEST, hashlib.sha256(b"other").digest())
        first, second = (prefill(stamp, T(1, 12), scope=Scope(media=(Media(9, each),))) for each in digests)
        assert (first.prefix_tokens, second.prefix_tokens) == (0, 8)
        stamp.cache.check()
        own, second.scope = second.scope, Scope(media=(Media(3, digests[1]),))  # the control: page 0 would be another
        with pytest.raises(InvariantError, match="I9"):
            _check_sharing(stamp.cache)
        second.scope = own


def test_scopes_share_nothing_but_equal_ones_do() -> None:
    with opened(num_blocks=32) as stamp:
        for salt in ("", "a", "b"):
            prefill(stamp, T(1, 8), scope=Scope(salt=salt))
        assert stamp.cache.statistics().prefix.hit_tokens == 0
        assert stamp.cache.index.num_scopes == 3
        assert prefill(stamp, [*T(1, 8), 9], scope=Scope(salt="b")).prefix_tokens == 8


def test_a_scope_that_nobody_uses_leaves_nothing_behind() -> None:
    with opened() as stamp:
        for number in range(5000):  # more scopes than keys are remembered for
            scope = Scope(salt=str(number))
            stamp.cache.sequence([1, 2], scope=scope).free()
            stamp.cache.lookup([1, 2], scope)
        assert stamp.cache.index.num_nodes == 0
        assert len(stamp.cache._root_keys) <= 4096


def test_clear_prefix_forgets_cached_pages_and_leaves_running_sequences_alone() -> None:
    with opened() as stamp:
        running = prefill(stamp, T(1, 9))
        prefill(stamp, T(50, 58)).free()
        assert stamp.cache.clear_prefix() == 2
        assert block_counts(stamp.cache) == {"free": 13, "used": 3, "cached": 0, "moving": 0}
        assert stamp.cache.lookup(T(1, 9)).num_tokens == stamp.cache.lookup(T(50, 58)).num_tokens == 0
        running.append(T(10, 16))
        run_step(stamp, [running])
        twin = running.fork()
        twin.truncate(6)
        for seq in (running, twin):
            stamp.verify(seq)
        stamp.cache.check()
        stamp.cache.free([running, twin])
        assert block_counts(stamp.cache)["free"] == 16
        assert prefill(stamp, T(1, 9)).prefix_tokens == 0
        assert stamp.cache.lookup(T(1, 9)).num_tokens == 8
        assert stamp.cache.clear_prefix() == 0


def test_clear_prefix_during_a_step_frees_its_pages_when_the_step_ends() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 8))
        seq.append(T(9, 12))
        with stamp.cache.step({seq: 4}) as step:
            stamp.fill(step)
            seq.free()
            stamp.cache.clear_prefix()
            assert block_counts(stamp.cache)["moving"] == 3
        assert block_counts(stamp.cache)["free"] == 16


def test_new_weights_find_nothing_computed_before() -> None:
    with opened(fingerprint=b"one") as stamp:
        running = prefill(stamp, T(1, 8))
        old = stamp.cache._root_key(Scope())
        stamp.cache.set_fingerprint(b"two")
        assert stamp.cache._root_key(Scope()) != old
        running.append(T(9, 12))
        run_step(stamp, [running])  # goes on, but what it computes with old pages is not published
        assert stamp.cache.lookup([*T(1, 12), 13]).num_tokens == 0
        prefill(stamp, T(1, 12))
        assert stamp.cache.lookup([*T(1, 12), 13]).num_tokens == 12


def test_num_live_blocks_counts_what_running_sequences_hold_of_a_match() -> None:
    with opened() as stamp:
        running = prefill(stamp, T(1, 8))
        prefill(stamp, [*T(1, 8), *T(50, 55)]).free()
        match = stamp.cache.lookup([*T(1, 8), *T(50, 53), 99])
        assert match.num_tokens == 12
        assert stamp.cache.num_revived_blocks(match) == 1
        assert stamp.cache.num_live_blocks(match) == 2
        running.free()
        assert stamp.cache.num_live_blocks(stamp.cache.lookup([*T(1, 8), *T(50, 53), 99])) == 0


@pytest.mark.parametrize("layout", [MIXED, WINDOWED], ids=["mixed", "windowed"])
def test_a_windowed_group_needs_only_the_pages_the_next_token_sees(layout: object) -> None:
    with opened(layout, num_blocks=32) as stamp:
        seq = prefill(stamp, T(1, 24))
        seq.free()
        hit = stamp.cache.sequence([*T(1, 24), 25])
        assert hit.prefix_tokens == 24
        windowed = hit.tables[-1]
        assert len(windowed.mapped_blocks()) == 2
        run_step(stamp, [hit])
        stamp.verify(hit)
        stamp.cache.check()
