"""Retentions: each answer with its reason, what holds while it holds, and what is gone when it is over."""

import random
from pathlib import Path

import pytest

from kvpager import ConfigError, DiskTier, HostTier, OutOfBlocks, PagedCache, Retention, Scope, Verdict
from kvpager.cache.paged_cache import ANY_SCOPE
from kvpager.cache.retention_terms import Retained
from kvpager.eviction.partitioned import Partitioned
from kvpager.prefix.hashing import page_key
from kvpager.types import ContentKey, TierKind
from tests.cache.caches import LAYOUT, MIXED, WINDOWED, opened
from tests.contracts.eviction_policy import ManualClock
from tests.simulation.mover import SimulatedMover, VirtualClock
from tests.stamp import Stamp, T, block_counts, prefill, run_step

PAGE = LAYOUT.page_size


def found(cache: PagedCache, tokens: list[int], scope: Scope = ANY_SCOPE) -> int:
    """Tokens of a prompt that are on the device."""
    return cache.lookup([*tokens, 0], scope).num_tokens


def churn(stamp: Stamp, pages: int, salt: str = "churn") -> None:
    """Fresh content of so many pages comes, in one-page requests, and goes."""
    for number in range(pages):
        base = 10_000 + 10 * number
        prefill(stamp, T(base, base + PAGE - 1), scope=Scope(salt=salt)).free()
    stamp.cache.check()


# -- answers ------------------------------------------------------------------------------------------------------


def test_accepted_a_range_is_every_page_that_holds_one_of_its_tokens() -> None:
    with opened() as stamp:
        answer = stamp.cache.retention.retain(T(1, 16), 5, 10, priority=80)
        assert (answer.verdict, answer.reason) == (Verdict.ACCEPTED, "")
        assert (answer.start, answer.stop, answer.pages) == (4, 12, 2)
        assert answer.id is not None
        assert stamp.cache.retention.get(answer.id) == answer
        assert stamp.cache.retention.release(answer.id)
        assert not stamp.cache.retention.release(answer.id)
        assert stamp.cache.retention.get(answer.id) is None


def test_clipped_the_last_tokens_fill_no_page() -> None:
    with opened() as stamp:
        answer = stamp.cache.retention.retain(T(1, 10), ttl=5)
        assert (answer.verdict, answer.reason) == (Verdict.CLIPPED, "the last 2 tokens fill no page")
        assert (answer.start, answer.stop, answer.pages) == (0, 8, 2)


def test_refused_no_page_holds_these() -> None:
    with opened() as stamp:
        for start, stop in ((8, None), (8, 9)):
            answer = stamp.cache.retention.retain(T(1, 10), start, stop, pin=True)
            assert answer == Retained(None, Verdict.REFUSED, "these tokens fill no page of 4")
        assert stamp.cache.statistics().retention is None  # nothing has begun


def test_clipped_and_refused_only_a_share_of_the_pool_may_be_pinned() -> None:
    with opened(num_blocks=16, pinned_share=0.25) as stamp:
        retention = stamp.cache.retention
        clipped = retention.retain(T(1, 32), pin=True)
        assert (clipped.verdict, clipped.stop, clipped.pages) == (Verdict.CLIPPED, 16, 4)
        assert clipped.reason == "pinned are 4 pages of at most 4, so the rest of these is not"
        refused = retention.retain(T(101, 116), pin=True)
        assert (refused.verdict, refused.id, refused.reason) == (Verdict.REFUSED, None, clipped.reason)
        assert retention.retain(T(1, 12), pin=True).verdict is Verdict.ACCEPTED  # the same pages count once
        late = retention.retain(T(1, 32), 16, pin=True)
        assert late.verdict is Verdict.REFUSED  # what comes before is pinned, but nothing of the range
        both = retention.retain(T(101, 116), pin=True, ttl=5)
        assert (both.verdict, both.pages) == (Verdict.CLIPPED, 0)  # the time to live holds


def test_refused_retentions_are_bounded_in_number_and_those_of_pages_that_are_nowhere_make_room() -> None:
    with opened(num_blocks=4) as stamp:
        retention = stamp.cache.retention
        for number in range(40):  # without an end, of pages that never came
            assert retention.retain(T(number, number + 7), priority=60).verdict is Verdict.ACCEPTED
            assert retention._size <= retention.max_size
        held = [retention.retain(T(number, number + 7), ttl=60) for number in range(40)]
        assert [answer.verdict for answer in held].count(Verdict.ACCEPTED) == retention.max_size // 2
        assert (
            held[-1].reason
            == f"retentions may name pages {retention.max_size} times, and {retention.max_size} are named"
        )
        stamp.cache.check()


def test_refused_where_nothing_is_kept() -> None:
    with opened(prefix_cache=False) as stamp:
        assert stamp.cache.retention.retain(T(1, 8), pin=True).verdict is Verdict.REFUSED
        assert stamp.cache.sequence(T(1, 8), retain=[Retention(ttl=1)]).retained[0].verdict is Verdict.REFUSED
    with opened() as stamp:
        assert stamp.cache.sequence(retain=[Retention(pin=True)]).retained[0].verdict is Verdict.REFUSED  # by hand


@pytest.mark.parametrize(
    "wrong",
    [{}, {"start": -1, "pin": True}, {"start": 4, "stop": 4, "pin": True}, {"priority": 101}, {"priority": -1},
     {"pin": True, "seconds": 0}, {"ttl": -1}, {"ttl": float("inf")}, {"seconds": 3}],
)  # fmt: skip
def test_what_can_not_be_meant_is_an_error(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Retention(**wrong)  # type: ignore[arg-type]
    Retention(0, 4, pin=True, priority=100, seconds=1, ttl=0)  # the control


def test_what_is_no_quota_is_an_error() -> None:
    with opened() as stamp:
        for capacity, weight in (("many", 1.0), ("10%", 0.0), ("10%", float("inf"))):
            with pytest.raises(ConfigError):
                stamp.cache.retention.set_quota("a", capacity, weight=weight)
        assert stamp.cache.retention.set_quota("a", "10%").verdict is Verdict.ACCEPTED
    with pytest.raises(ConfigError), opened(pinned_share=1.5):
        pass


# -- pins ---------------------------------------------------------------------------------------------------------


def test_a_pin_holds_the_pages_before_it_and_until_it_is_released() -> None:
    with opened(num_blocks=12) as stamp:
        prefill(stamp, T(1, 16)).free()
        answer = stamp.cache.retention.retain(T(1, 16), 8, 12, pin=True)
        assert answer.id is not None
        churn(stamp, 40)
        assert found(stamp.cache, T(1, 16)) == 12  # the page behind it went
        stamp.verify(stamp.cache.sequence(T(1, 13)))
        stamp.cache.retention.release(answer.id)
        stamp.cache.free(list(stamp.cache.sequences.values()))
        churn(stamp, 40)
        assert found(stamp.cache, T(1, 16)) == 0


def test_a_pin_of_pages_that_are_not_there_yet_holds_when_they_come() -> None:
    with opened(num_blocks=12) as stamp:
        assert stamp.cache.retention.retain(T(1, 16), pin=True).pages == 4
        churn(stamp, 20)
        prefill(stamp, T(1, 16)).free()
        churn(stamp, 20)
        assert found(stamp.cache, T(1, 16)) == 16


def test_the_seconds_of_a_pin_and_a_priority_run_on_the_clock() -> None:
    clock = ManualClock()
    with opened(num_blocks=12, clock=clock) as stamp:
        prefill(stamp, T(1, 16)).free()
        stamp.cache.retention.retain(T(1, 16), pin=True, seconds=5)
        clock.now = 4.9
        churn(stamp, 40)
        assert found(stamp.cache, T(1, 16)) == 16
        clock.now = 5.0
        churn(stamp, 40)
        assert found(stamp.cache, T(1, 16)) == 0
        assert stamp.cache.retention.statistics().retentions == 0  # type: ignore[union-attr]


def test_pins_do_not_count_as_available_but_yield_to_the_only_sequence() -> None:
    with opened(num_blocks=8) as stamp:
        cache = stamp.cache
        prefill(stamp, T(1, 16)).free()
        cache.retention.retain(T(1, 16), pin=True)
        assert cache.num_available == 4
        one = prefill(stamp, T(101, 108))
        two = cache.sequence(T(201, 216))
        with pytest.raises(OutOfBlocks) as error, cache.step({two: 16}):
            pass
        assert error.value.reclaimable == 0
        assert found(cache, T(1, 16)) == 16  # two live, so one of them can make room
        one.free()
        run_step(stamp, [two])
        assert found(cache, T(1, 16)) == 16
        two.append(T(217, 224))
        run_step(stamp, [two])  # nobody else can
        stamp.verify(two)
        assert found(cache, T(1, 16)) == 8  # its last pages went
        shown = cache.statistics().retention
        assert shown is not None
        assert shown.pins_yielded == 2
        cache.check()


@pytest.mark.parametrize("layout", [WINDOWED, MIXED], ids=["windowed", "mixed"])
def test_pins_hold_pages_of_all_layer_groups(layout: object) -> None:
    with opened(layout, num_blocks=24) as stamp:  # type: ignore[arg-type]
        stamp.cache.retention.retain(T(1, 16), pin=True)
        prefill(stamp, T(1, 16)).free()
        churn(stamp, 40)
        assert found(stamp.cache, T(1, 16)) == 16


def test_a_shrinking_pool_may_drop_pinned_pages_and_keeps_what_fits() -> None:
    with opened(num_blocks=12) as stamp:
        prefill(stamp, T(1, 24)).free()
        stamp.cache.retention.retain(T(1, 24), pin=True)
        stamp.cache.resize(8)
        stamp.cache.check()
        assert found(stamp.cache, T(1, 24)) == 24
        stamp.cache.resize(3)
        stamp.cache.check()
        assert found(stamp.cache, T(1, 24)) == 12


# -- times to live ------------------------------------------------------------------------------------------------


def test_a_time_to_live_begins_when_the_request_lets_go_and_its_blocks_are_free_right_then() -> None:
    clock = ManualClock()
    with opened(num_blocks=12, clock=clock) as stamp:
        seq = prefill(stamp, T(1, 10), retain=[Retention(ttl=5)])
        seq.append(T(11, 18))
        clock.now = 100
        run_step(stamp, [seq])
        assert seq.retained == (Retained(0, Verdict.ACCEPTED, "", 0, 16, 4),)  # what came later is covered too
        seq.free()
        clock.now = 104.9
        assert stamp.cache.tick() == 0
        assert found(stamp.cache, T(1, 16)) == 16
        clock.now = 105
        assert stamp.cache.tick() == 4
        assert found(stamp.cache, T(1, 16)) == 0
        assert block_counts(stamp.cache)["free"] == 12
        stamp.cache.check()


def test_a_time_to_live_of_nothing_ends_with_the_request_and_leaves_no_bytes() -> None:
    with opened(num_blocks=12, clock=ManualClock()) as stamp:
        seq = prefill(stamp, T(1, 8), retain=[Retention(ttl=0)])
        blocks = seq.tables[0].mapped_blocks().copy()
        before = stamp.cache.arena.blocks[blocks].tobytes()  # type: ignore[attr-defined]
        seq.free()
        assert block_counts(stamp.cache)["free"] == 12
        assert stamp.cache.arena.blocks[blocks].tobytes() != before  # type: ignore[attr-defined]
        assert stamp.cache.arena.is_filled(blocks, 0xFF).all()  # poisoned over: this cache is in debug


def test_what_hangs_under_a_page_that_runs_out_goes_with_it_and_what_comes_before_stays() -> None:
    clock = ManualClock()
    with opened(num_blocks=16, clock=clock) as stamp:
        cache = stamp.cache
        prefill(stamp, T(1, 16)).free()
        prefill(stamp, [*T(1, 8), *T(51, 58)]).free()
        cache.retention.retain(T(1, 16), 4, 8, ttl=1)
        clock.now = 1
        assert cache.tick() == 5
        cache.check()
        assert (found(cache, T(1, 16)), found(cache, [*T(1, 8), *T(51, 58)])) == (4, 4)


def test_pages_in_use_go_when_the_last_user_lets_go() -> None:
    clock = ManualClock()
    with opened(num_blocks=16, clock=clock) as stamp:
        prefill(stamp, T(1, 16), retain=[Retention(ttl=1)]).free()
        one, two = (prefill(stamp, T(1, 17)) for _ in range(2))
        clock.now = 1
        assert stamp.cache.tick() == 0
        one.free()
        assert found(stamp.cache, T(1, 16)) == 16
        stamp.verify(two)
        two.free()
        assert found(stamp.cache, T(1, 16)) == 0
        assert block_counts(stamp.cache)["free"] == 16
        assert stamp.cache.statistics().reclaim.expired == 4


def test_of_several_times_the_longest_counts_and_pins_of_others_hold() -> None:
    clock = ManualClock()
    with opened(num_blocks=16, clock=clock) as stamp:
        cache = stamp.cache
        prefill(stamp, T(1, 16), retain=[Retention(ttl=1)]).free()
        prefill(stamp, T(1, 9), retain=[Retention(ttl=5)]).free()
        clock.now = 1
        cache.tick()
        assert found(cache, T(1, 16)) == 8
        pin = cache.retention.retain(T(1, 4), pin=True)
        assert pin.id is not None
        clock.now = 5
        cache.tick()
        assert found(cache, T(1, 16)) == 4
        cache.retention.release(pin.id)
        assert found(cache, T(1, 16)) == 0
        cache.check()


def test_a_released_time_to_live_runs_no_more() -> None:
    clock = ManualClock()
    with opened(clock=clock) as stamp:
        seq = prefill(stamp, T(1, 8), retain=[Retention(ttl=1)])
        seq.free()
        assert stamp.cache.retention.release(seq.retained[0].id or 0)
        clock.now = 10
        assert stamp.cache.tick() == 0
        assert found(stamp.cache, T(1, 8)) == 8


def test_a_fork_has_the_retentions_of_its_original() -> None:
    with opened(clock=ManualClock()) as stamp:
        seq = prefill(stamp, T(1, 8), retain=[Retention(ttl=0)])
        twin = seq.fork()
        twin.append(T(31, 38))
        run_step(stamp, [twin])
        seq.free()
        assert found(stamp.cache, [*T(1, 8), *T(31, 38)]) == 16  # in use
        twin.free()
        assert found(stamp.cache, [*T(1, 8), *T(31, 38)]) == 0


def test_what_comes_in_the_place_of_what_was_cut_off_runs_out_as_well() -> None:
    with opened(clock=ManualClock()) as stamp:
        seq = prefill(stamp, T(1, 12), retain=[Retention(ttl=0)])
        seq.truncate(4)
        seq.append(T(51, 58))
        run_step(stamp, [seq])
        seq.free()
        assert stamp.cache.index.num_entries == 0


def test_a_step_that_is_open_keeps_what_has_run_out_until_it_ends() -> None:
    with opened(clock=ManualClock()) as stamp:
        seq = stamp.cache.sequence(T(1, 8), retain=[Retention(ttl=0)])
        run_step(stamp, [seq])
        seq.append([9])
        with stamp.cache.step({seq: 1}) as step:
            stamp.fill(step)
            seq.free()
            assert stamp.cache.index.num_entries == 0
            assert block_counts(stamp.cache)["moving"] == 3
        assert block_counts(stamp.cache)["free"] == 16


# -- priorities and tenants ---------------------------------------------------------------------------------------


def test_the_lowest_priority_goes_first_whatever_was_used_last() -> None:
    with opened(num_blocks=12) as stamp:
        cache = stamp.cache
        prefill(stamp, T(1, 16), retain=[Retention(0, 8, priority=90)]).free()
        prefill(stamp, T(101, 116), retain=[Retention(priority=10)]).free()
        prefill(stamp, T(201, 208)).free()
        prefill(stamp, T(301, 316)).free()  # needs two blocks
        assert found(cache, T(101, 116)) == 8
        churn(stamp, 8, "")
        assert (found(cache, T(101, 116)), found(cache, T(1, 16))) == (0, 8)
        churn(stamp, 30, "")
        assert found(cache, T(1, 16)) == 8
        prefill(stamp, T(1, 9)).free()  # whoever uses it without a word makes it ordinary
        churn(stamp, 30, "")
        assert found(cache, T(1, 16)) == 0


def test_a_priority_may_be_given_to_what_is_there_and_runs_out() -> None:
    clock = ManualClock()
    with opened(num_blocks=12, clock=clock) as stamp:
        prefill(stamp, T(1, 16)).free()
        stamp.cache.retention.retain(T(1, 16), priority=100, seconds=1)
        churn(stamp, 30, "")
        assert found(stamp.cache, T(1, 16)) == 16
        clock.now = 1
        churn(stamp, 30, "")
        assert found(stamp.cache, T(1, 16)) == 0


def test_a_tenant_beyond_its_quota_loses_its_own_pages_at_once_and_no_live_one() -> None:
    a, b = Scope(salt="a"), Scope(salt="b")
    with opened(num_blocks=16) as stamp:
        cache = stamp.cache
        prefill(stamp, T(1, 16), scope=a).free()
        prefill(stamp, T(1, 16), scope=b).free()
        cache.retention.set_quota("a", 3 * LAYOUT.block_bytes)  # it holds more: nothing is known of who computed those
        prefill(stamp, T(101, 116), scope=a).free()
        assert (found(cache, T(101, 116), a), found(cache, T(1, 16), b)) == (12, 16)
        live = prefill(stamp, T(201, 220), scope=a)
        assert (live.length, found(cache, T(101, 116), a)) == (20, 0)
        stamp.verify(live)
        live.free()
        assert found(cache, T(201, 220), a) == 12
        cache.retention.set_quota("a", "0%")
        assert found(cache, T(201, 220), a) == 0
        assert found(cache, T(1, 16), b) == 16
        shown = cache.statistics().retention
        assert shown is not None
        assert shown.dropped_by_quota == 4 + 2 + 3
        assert cache.statistics().reclaim.quota == shown.dropped_by_quota
        assert shown.tenants["a"].quota == {TierKind.DEVICE: 0}
        assert "a 0 of 0 blocks" in str(cache.statistics())
        cache.check()


def test_the_tenant_that_has_most_for_its_weight_makes_room() -> None:
    a, b = Scope(salt="a"), Scope(salt="b")
    for weight, kept in ((1.0, 5), (3.0, 8)):
        with opened(num_blocks=12) as stamp:
            stamp.cache.retention.set_quota("a", weight=weight)
            for number in range(8):
                prefill(stamp, [number] * 4, scope=a).free()
            for number in range(8):
                prefill(stamp, [number] * 4, scope=b).free()
            churn(stamp, 3, "b")
            policy = stamp.cache.evictable.policy
            assert isinstance(policy, Partitioned)
            assert policy.used("a") + policy.used("b") == 12
            assert policy.used("a") == kept


def test_quotas_are_bounded_in_number() -> None:
    with opened() as stamp:
        answers = [stamp.cache.retention.set_quota(str(number), "10%") for number in range(1025)]
        assert [answer.verdict for answer in answers].count(Verdict.ACCEPTED) == 1024
        assert answers[-1].reason == "1024 tenants have quotas, which is as many as may"


# -- tiers --------------------------------------------------------------------------------------------------------


def keys_of(cache: PagedCache, tokens: list[int]) -> list[ContentKey]:
    key, keys = cache._root_key(Scope()), []
    for at in range(0, len(tokens) - PAGE + 1, PAGE):
        key = page_key(key, b"".join(token.to_bytes(4, "little") for token in tokens[at : at + PAGE]), b"")
        keys.append(key)
    return keys


def below(cache: PagedCache, tokens: list[int]) -> int:
    """Pages of a prompt that the first tier has."""
    assert cache.lower is not None
    return sum(bool(cache.lower.migration.tiers[0].contains(key)) for key in keys_of(cache, tokens))


def test_below_the_device_as_well_content_runs_out_pins_hold_and_tenants_pay(tmp_path: Path) -> None:
    clock = VirtualClock()
    for tier in (HostTier(pages=8), DiskTier(str(tmp_path), "1 MiB")):
        mover = SimulatedMover(clock, random.Random(0), lambda lane: 0.1)
        with opened(num_blocks=32, tiers=[tier], fingerprint=b"m", clock=clock, mover=mover) as stamp:
            cache = stamp.cache
            assert cache.lower is not None
            prefill(stamp, T(1, 16), retain=[Retention(ttl=5)]).free()
            assert cache.lower.settle(60)
            prefill(stamp, T(101, 108)).free()
            assert cache.lower.settle(60)
            assert (below(cache, T(1, 16)), below(cache, T(101, 108))) == (4, 2)
            clock.advance(5)
            cache.tick()
            assert (below(cache, T(1, 16)), below(cache, T(101, 108))) == (0, 2)
            cache.retention.retain(T(101, 108), pin=True)
            churn(stamp, 60)
            cache.lower.settle(60)
            cache.check()
            assert below(cache, T(101, 108)) == 2
            cache.retention.set_quota("churn", "0%")
            churn(stamp, 4)
            cache.lower.settle(60)
            cache.tick()
            shown = cache.statistics().retention
            assert shown is not None
            assert shown.tenants["churn"].blocks == {TierKind.DEVICE: 0, cache.lower.migration.tiers[0].kind: 0}


def test_what_runs_out_on_its_way_down_does_not_arrive() -> None:
    clock = VirtualClock()
    mover = SimulatedMover(clock, random.Random(0), lambda lane: 1.0)
    with opened(num_blocks=16, tiers=[HostTier(pages=8)], clock=clock, mover=mover) as stamp:
        prefill(stamp, T(1, 8), retain=[Retention(ttl=0)]).free()
        assert block_counts(stamp.cache)["moving"] == 2  # being copied, and found no more
        assert found(stamp.cache, T(1, 8)) == 0
        assert stamp.cache.lower is not None
        stamp.cache.lower.settle(60)
        stamp.cache.tick()
        assert below(stamp.cache, T(1, 8)) == 0
        assert block_counts(stamp.cache)["free"] == 16


def test_no_content_with_a_time_to_live_outlives_the_process(tmp_path: Path) -> None:
    """Not even if it is pinned: pins end with the process too."""
    for ttl, pages in ((1000.0, 0), (None, 2)):
        with opened(tiers=[DiskTier(str(tmp_path), "1 MiB")], fingerprint=b"m") as stamp:
            wish = Retention(ttl=ttl) if ttl else Retention(priority=50)
            prefill(stamp, T(1, 8), retain=[wish, Retention(pin=True)]).free()
        with opened(tiers=[DiskTier(str(tmp_path), "1 MiB")], fingerprint=b"m") as stamp:
            assert below(stamp.cache, T(1, 8)) == pages
