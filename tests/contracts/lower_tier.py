"""What every tier below the device has to do. A subclass gives ``make`` and ``damage``.

``check`` is called after each change, and the blocks of a tier always add up (I1).
"""

import hashlib
import random
from collections.abc import Sequence

import numpy as np
import pytest

from kvpager.checksum import checksum, copy_checksum
from kvpager.errors import TierError, WrongContent
from kvpager.tiers.tier import LowerTier, Page, Slot
from kvpager.types import ContentKey, PageReason

PAGE_BYTES = 4096


def key(number: int) -> ContentKey:
    return ContentKey(hashlib.sha256(b"%d" % number).digest())


def page(number: int) -> Page:
    """Pages that hang under nothing, so that any may go."""
    return Page(key(number), ContentKey(bytes(32)))


def content(number: int, version: int = 0) -> np.ndarray:
    return np.random.default_rng([number, version]).integers(0, 256, PAGE_BYTES).astype(np.uint8)


class Watcher:
    """Keeps what a tier says can be found in it."""

    def __init__(self) -> None:
        self.keys: set[ContentKey] = set()

    def stored(self, key: ContentKey, why: PageReason, *_: object, **__: object) -> None:
        assert key not in self.keys, "it is said to come twice"
        self.keys.add(key)

    def removed(self, key: ContentKey, why: PageReason, slot: int) -> None:
        self.keys.remove(key)

    def cleared(self) -> None:
        self.keys.clear()


class LowerTierContract:
    def make(self, num_pages: int) -> LowerTier:
        """An empty tier for at least ``num_pages`` pages of PAGE_BYTES."""
        raise NotImplementedError

    def damage(self, tier: LowerTier, key: ContentKey) -> None:
        """Turns one bit of the page as it is stored. REQUIRES: it is there."""
        raise NotImplementedError

    @pytest.fixture
    def tier(self) -> LowerTier:
        return self.make(8)

    # -- what migration does ------------------------------------------------------------------------------------

    def begin_store(self, tier: LowerTier, number: int) -> Slot:
        slot = tier.prepare_store(page(number))
        assert slot is not None
        assert slot.key == key(number)
        self.check(tier)
        return slot

    def move_down(self, tier: LowerTier, slot: Slot, data: np.ndarray) -> TierError | None:
        if slot.memory is not None:
            slot.checksum = copy_checksum(slot.memory, data)
            return None
        slot.checksum = checksum(data)
        (error,) = tier.write([slot], [data])
        return error

    def store(self, tier: LowerTier, *numbers: int) -> None:
        for number in numbers:
            slot = self.begin_store(tier, number)
            error = self.move_down(tier, slot, content(number))
            assert error is None
            tier.complete_store(slot, None)
            self.check(tier)

    def load(self, tier: LowerTier, number: int) -> np.ndarray | TierError | None:
        """The page; why it could not be read; or None: it is not there."""
        slot = tier.prepare_load(key(number))
        if slot is None:
            return None
        into = np.zeros(PAGE_BYTES, np.uint8)
        (found,) = tier.read([slot], [into])
        error = found if isinstance(found, TierError) else None
        tier.complete_load(slot, error)
        self.check(tier)
        if error is None:
            assert found == checksum(into)
        return into if error is None else error

    def check(self, tier: LowerTier) -> None:
        tier.check()
        usage = tier.usage()
        assert min(usage.free, usage.used, usage.cached, usage.moving) >= 0
        assert usage.free + usage.used + usage.cached + usage.moving == usage.blocks
        assert usage.capacity_bytes == 0 or usage.used_bytes <= usage.capacity_bytes

    def has(self, tier: LowerTier, numbers: Sequence[int]) -> list[bool]:
        return [bool(tier.contains(key(number))) for number in numbers]

    def is_content(self, found: object, number: int) -> bool:
        return isinstance(found, np.ndarray) and bool((found == content(number)).all())

    # -- stores and loads ---------------------------------------------------------------------------------------

    def test_a_page_comes_back_as_it_was_stored(self, tier: LowerTier) -> None:
        self.store(tier, 1, 2, 3)
        assert all(self.is_content(self.load(tier, number), number) for number in (3, 1, 2, 1))
        statistics = tier.statistics()
        assert (statistics.pages, statistics.stored.pages, statistics.loaded.pages) == (3, 3, 4)
        assert (statistics.stored.bytes, statistics.loaded.bytes) == (3 * PAGE_BYTES, 4 * PAGE_BYTES)
        assert (statistics.stored.failed, statistics.loaded.failed, statistics.state) == (0, 0, "ok")

    def test_a_page_that_was_never_stored_is_not_there(self, tier: LowerTier) -> None:
        assert not tier.contains(key(1))
        assert tier.prepare_load(key(1)) is None
        self.check(tier)

    def test_a_page_is_found_once_its_store_is_completed_and_not_before(self, tier: LowerTier) -> None:
        slot = self.begin_store(tier, 1)
        assert tier.usage().moving == 1
        assert (tier.contains(key(1)), tier.prepare_load(key(1))) == (False, None)
        assert self.move_down(tier, slot, content(1)) is None
        assert (tier.contains(key(1)), tier.prepare_load(key(1))) == (False, None)
        tier.complete_store(slot, None)
        assert tier.contains(key(1)) is True
        assert tier.usage().moving == 0

    def test_a_page_that_is_known_or_on_its_way_is_not_stored_again(self, tier: LowerTier) -> None:
        self.store(tier, 1)
        slot = self.begin_store(tier, 2)
        assert tier.prepare_store(page(1)) is None
        assert tier.prepare_store(page(2)) is None
        tier.complete_store(slot, TierError("test"))
        self.check(tier)

    def test_a_failed_store_never_was_there(self, tier: LowerTier) -> None:
        """O-17 (a), I21."""
        before = tier.usage()
        slot = self.begin_store(tier, 1)
        tier.complete_store(slot, TierError("the disk is on fire"))
        self.check(tier)
        after = tier.usage()
        assert (after.free, after.cached, after.moving) == (before.free, before.cached, before.moving)
        assert not tier.contains(key(1))
        assert tier.prepare_load(key(1)) is None
        statistics = tier.statistics()
        assert (statistics.stored.failed, statistics.stored.pages, statistics.pages) == (1, 0, 0)
        self.store(tier, 1)
        assert self.is_content(self.load(tier, 1), 1)

    def test_a_page_that_is_not_what_left_the_device_is_not_stored(self, tier: LowerTier) -> None:
        slot = self.begin_store(tier, 1)
        if slot.memory is None:  # else the worker that copies compares
            slot.checksum = checksum(content(1)) ^ 1
            (error,) = tier.write([slot], [content(1)])
            assert isinstance(error, WrongContent)
        tier.complete_store(slot, WrongContent("test"))
        assert not tier.contains(key(1))
        self.check(tier)

    def test_a_failed_load_is_a_miss_from_then_on(self, tier: LowerTier) -> None:
        """O-17 (b)."""
        self.store(tier, 1, 2)
        slot = tier.prepare_load(key(1))
        assert slot is not None
        tier.complete_load(slot, TierError("it did not come"))
        self.check(tier)
        assert self.has(tier, [1, 2]) == [False, True]
        assert tier.prepare_load(key(1)) is None
        assert tier.statistics().loaded.failed == 1
        self.store(tier, 1)
        assert self.is_content(self.load(tier, 1), 1)

    def test_a_bit_that_turned_is_seen_and_the_page_is_quarantined(self, tier: LowerTier) -> None:
        """I22."""
        self.store(tier, 1, 2)
        self.damage(tier, key(1))
        assert isinstance(self.load(tier, 1), WrongContent)
        assert self.has(tier, [1, 2]) == [False, True]
        assert self.load(tier, 1) is None
        assert tier.statistics().quarantined == 1
        assert self.is_content(self.load(tier, 2), 2)
        self.store(tier, 1)
        assert self.is_content(self.load(tier, 1), 1)

    def test_two_may_read_a_page_at_once(self, tier: LowerTier) -> None:
        self.store(tier, 1)
        slots = [slot for _ in range(2) if (slot := tier.prepare_load(key(1))) is not None]
        into = [np.zeros(PAGE_BYTES, np.uint8) for _ in range(2)]
        found = tier.read(slots, into)
        assert found == [checksum(content(1))] * 2
        for slot, target in zip(slots, into, strict=True):
            tier.complete_load(slot, None)
            self.check(tier)
            assert self.is_content(target, 1)
        assert tier.usage().moving == 0

    def test_a_batch_is_answered_page_by_page(self, tier: LowerTier) -> None:
        self.store(tier, 1, 2, 3)
        self.damage(tier, key(2))
        slots = [slot for number in (1, 2, 3) if (slot := tier.prepare_load(key(number))) is not None]
        into = [np.zeros(PAGE_BYTES, np.uint8) for _ in range(3)]
        found = tier.read(slots, into)
        assert [isinstance(each, WrongContent) for each in found] == [False, True, False]
        for slot, each in zip(slots, found, strict=True):
            tier.complete_load(slot, each if isinstance(each, TierError) else None)
        assert self.is_content(into[0], 1)
        assert self.is_content(into[2], 3)
        self.check(tier)

    # -- dropping -----------------------------------------------------------------------------------------------

    def test_forgotten_pages_are_not_there_and_may_come_again(self, tier: LowerTier) -> None:
        self.store(tier, 1, 2, 3)
        tier.forget([key(1), key(3), key(99)])
        self.check(tier)
        assert self.has(tier, [1, 2, 3]) == [False, True, False]
        assert tier.prepare_load(key(1)) is None
        self.store(tier, 1)
        assert self.is_content(self.load(tier, 1), 1)
        assert self.is_content(self.load(tier, 2), 2)

    def test_a_page_that_is_forgotten_while_it_is_read_is_not_found_any_more(self, tier: LowerTier) -> None:
        self.store(tier, 1)
        slot = tier.prepare_load(key(1))
        assert slot is not None
        tier.forget([key(1)])
        self.check(tier)
        assert not tier.contains(key(1))
        tier.complete_load(slot, TierError("dropped"))
        self.check(tier)
        assert tier.usage().moving == 0

    def test_clear_drops_all_that_rests_and_says_how_many(self, tier: LowerTier) -> None:
        self.store(tier, 1, 2, 3)
        moving = self.begin_store(tier, 4)
        assert tier.clear() == 3
        self.check(tier)
        assert self.has(tier, [1, 2, 3]) == [False] * 3
        assert self.move_down(tier, moving, content(4)) is None
        tier.complete_store(moving, None)
        assert tier.contains(key(4))
        assert tier.clear() == 1
        assert tier.clear() == 0
        self.check(tier)

    def test_a_watcher_is_told_what_is_there_comes_and_goes(self, tier: LowerTier) -> None:
        self.store(tier, 1, 2, 3)
        tier.forget([key(1)])
        watcher = Watcher()
        tier.watch(watcher)
        assert watcher.keys == {key(2), key(3)}
        self.store(tier, 1)
        failed = self.begin_store(tier, 4)
        assert watcher.keys == {key(1), key(2), key(3)}
        tier.complete_store(failed, TierError("test"))
        tier.forget([key(2), key(9)])
        assert watcher.keys == {key(1), key(3)}
        tier.clear()
        assert watcher.keys == set()
        tier.watch(None)
        self.store(tier, 5)
        assert watcher.keys == set()

    def test_touch_and_tick_change_no_content(self, tier: LowerTier) -> None:
        self.store(tier, 1, 2)
        tier.touch([key(2), key(1), key(7)])
        tier.tick()
        self.check(tier)
        assert self.has(tier, [1, 2, 7]) == [True, True, False]

    def test_victims_are_pages_that_are_there(self, tier: LowerTier) -> None:
        self.store(tier, 1, 2, 3)
        assert {each.key for each in tier.victims(10)} <= {key(1), key(2), key(3)}
        assert len(tier.victims(1)) <= 1

    # -- questions ----------------------------------------------------------------------------------------------

    def test_who_is_asked_tells_what_is_there(self, tier: LowerTier) -> None:
        self.store(tier, 1, 2)
        found = tier.probe([key(1), key(9), key(2)])
        assert found == [True, False, True]
        tier.learn([key(1), key(9), key(2)], found)
        self.check(tier)
        assert [tier.contains(key(number)) for number in (1, 9, 2)] == [True, False, True]

    def test_a_question_without_an_answer_is_a_no(self, tier: LowerTier) -> None:
        tier.blame("a question was not answered in time")
        tier.learn([key(9)], None)
        self.check(tier)
        assert tier.contains(key(9)) is False

    # -- at random ----------------------------------------------------------------------------------------------

    def test_a_long_run_against_what_was_stored(self) -> None:
        tier, dice = self.make(16), random.Random(7)
        down: dict[int, Slot] = {}
        up: dict[int, Slot] = {}
        gone: set[int] = set()  # must not be there
        watcher = Watcher()
        tier.watch(watcher)
        for _ in range(1500):
            number = dice.randrange(24)
            what = dice.choice(("store", "store", "load", "load", "complete", "complete", "fail", "forget", "touch"))
            if what == "store" and number not in down and (slot := tier.prepare_store(page(number))) is not None:
                assert self.move_down(tier, slot, content(number)) is None
                down[number] = slot
            elif what == "load" and number not in up and (slot := tier.prepare_load(key(number))) is not None:
                assert number not in gone
                up[number] = slot
            elif what in ("complete", "fail") and down and dice.random() < 0.5:
                number = dice.choice(list(down))
                error = None if what == "complete" else TierError("test")
                tier.complete_store(down.pop(number), error)
                gone.discard(number) if error is None else gone.add(number)
            elif what in ("complete", "fail") and up:
                number = dice.choice(list(up))
                self._finish_load(tier, number, up.pop(number), fails=what == "fail", gone=gone)
            elif what == "forget" and number not in down:
                tier.forget([key(number)])
                gone.add(number)
            else:
                tier.touch([key(number)])
            self.check(tier)
            assert not any(self.has(tier, sorted(gone)))
            told = [key(number) in watcher.keys for number in range(24)]
            assert told == self.has(tier, range(24)) or tier.statistics().state != "ok"
            assert not any(told[number] for number in gone)
        assert tier.statistics().stored.pages > 100
        assert tier.statistics().loaded.pages > 50

    def _finish_load(self, tier: LowerTier, number: int, slot: Slot, *, fails: bool, gone: set[int]) -> None:
        was_forgotten = number in gone
        into = np.zeros(PAGE_BYTES, np.uint8)
        (found,) = tier.read([slot], [into])
        if not isinstance(found, TierError):
            assert (into == content(number)).all()
        else:
            assert was_forgotten  # what was dropped meanwhile need not come, what rests must
        error = TierError("test") if fails else found if isinstance(found, TierError) else None
        tier.complete_load(slot, error)
        if error is not None:
            gone.add(number)
