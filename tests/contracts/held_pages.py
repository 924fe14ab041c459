"""What every tier has to do for pages that running sequences use where they lie, besides the rest of its contract."""

import random

import numpy as np
import pytest

from kvpager.errors import TierError, WrongContent
from kvpager.memory.arena import HostArena
from kvpager.tiers.tier import LowerTier, Slot
from tests.contracts.lower_tier import PAGE_BYTES, LowerTierContract, content, key, page

_PARTS = [(0, PAGE_BYTES), (0, 1), (1, 100), (511, 1025), (1024, 1024), (PAGE_BYTES - 7, 7)]  # start, size


class HeldPagesContract(LowerTierContract):
    def hold(self, tier: LowerTier, number: int) -> Slot:
        slot = tier.hold(key(number))
        assert slot is not None
        self.check(tier)
        return slot

    def let_go(self, tier: LowerTier, slot: Slot, error: TierError | None = None) -> None:
        tier.let_go(slot, error)
        self.check(tier)

    def parts(self, tier: LowerTier, slots: list[Slot], start: int, size: int) -> list[np.ndarray | TierError]:
        indices = np.array([slot.index for slot in slots], np.int32)
        into = np.full((len(slots), size + 3), 0xEE, np.uint8)  # rows that lie apart, none of them aligned
        errors = tier.read_parts(indices, start, into[:, :size])
        assert (into[:, size:] == 0xEE).all()
        return [error or row[:size] for error, row in zip(errors, into, strict=True)]

    def is_read(self, tier: LowerTier, slot: Slot, number: int) -> bool:
        (found,) = self.parts(tier, [slot], 100, 50)
        return isinstance(found, np.ndarray) and bool((found == content(number)[100:150]).all())

    # -- parts --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("start", "size"), _PARTS)
    def test_parts_are_the_bytes_of_their_pages(self, tier: LowerTier, start: int, size: int) -> None:
        self.store(tier, *range(6))
        numbers = [4, 0, 5, 4, 2]
        slots = [self.hold(tier, number) for number in numbers]
        for number, found in zip(numbers, self.parts(tier, slots, start, size), strict=True):
            assert isinstance(found, np.ndarray)
            assert (found == content(number)[start : start + size]).all()

    def test_parts_that_are_aligned_are_the_same(self, tier: LowerTier) -> None:
        self.store(tier, 1, 2)
        slots = [self.hold(tier, number) for number in (2, 1)]
        into = HostArena(2, 4096).blocks
        assert tier.read_parts(np.array([slot.index for slot in slots], np.int32), 0, into) == [None, None]
        assert (into == [content(2), content(1)]).all()

    def test_held_pages_can_be_read_whole_in_place_or_not(self, tier: LowerTier) -> None:
        self.store(tier, 1, 2)
        indices = np.array([self.hold(tier, 1).index, self.hold(tier, 2).index], np.int32)
        into = [np.zeros(PAGE_BYTES, np.uint8) for _ in indices]
        found = tier.read(tier.held(indices), into)
        assert not any(isinstance(each, TierError) for each in found)
        assert (into[1] == content(2)).all()
        addresses = tier.addresses(indices)
        if addresses is not None:
            assert addresses.dtype == np.int64
            assert addresses.tolist() == [slot.memory.ctypes.data for slot in tier.held(indices)]  # type: ignore[union-attr]

    def test_a_bit_that_turned_is_read_as_it_is_and_found_by_reading_the_page_whole(self, tier: LowerTier) -> None:
        self.store(tier, 1)
        slot = self.hold(tier, 1)
        self.damage(tier, key(1))
        (found,) = self.parts(tier, [slot], 0, PAGE_BYTES)
        assert isinstance(found, np.ndarray)
        assert (found != content(1)).sum() == 1
        (whole,) = tier.read(tier.held(np.array([slot.index])), [np.zeros(PAGE_BYTES, np.uint8)])
        assert isinstance(whole, WrongContent)

    # -- holds --------------------------------------------------------------------------------------------------

    def test_a_page_that_is_not_there_is_not_held(self, tier: LowerTier) -> None:
        slot = self.begin_store(tier, 1)
        assert tier.hold(key(1)) is None
        assert tier.hold(key(2)) is None
        tier.complete_store(slot, TierError("test"))
        assert tier.hold(key(1)) is None
        assert tier.usage().used == 0

    def test_a_held_page_is_used_and_others_go_before_it(self, tier: LowerTier) -> None:
        self.store(tier, 1, 2, 3)
        slot = self.hold(tier, 1)
        assert tier.usage().used == 1
        assert key(1) not in {each.key for each in tier.victims(100)}
        for number in range(10, 40):
            if (other := tier.prepare_store(page(number))) is not None:
                assert self.move_down(tier, other, content(number)) is None
                tier.complete_store(other, None)
        assert tier.contains(key(1))
        assert self.is_read(tier, slot, 1)
        self.let_go(tier, slot)
        assert tier.usage().used == 0
        assert tier.contains(key(1))
        assert self.is_content(self.load(tier, 1), 1)

    def test_holds_add_up_under_one_index(self, tier: LowerTier) -> None:
        self.store(tier, 1)
        first, second = self.hold(tier, 1), self.hold(tier, 1)
        assert first.index == second.index
        assert tier.usage().used == 1
        self.let_go(tier, first)
        assert tier.usage().used == 1
        assert self.is_read(tier, second, 1)
        self.let_go(tier, second)
        assert tier.usage().used == 0

    def test_a_held_page_may_be_loaded_as_well(self, tier: LowerTier) -> None:
        self.store(tier, 1)
        slot = self.hold(tier, 1)
        loading = tier.prepare_load(key(1))
        assert loading is not None
        self.check(tier)
        self.let_go(tier, slot)
        tier.complete_load(loading, None)
        self.check(tier)
        slot = self.hold(tier, 1)
        assert self.is_content(self.load(tier, 1), 1)
        assert (tier.usage().used, tier.usage().moving) == (1, 0)
        self.let_go(tier, slot)

    @pytest.mark.parametrize("how", ["forget", "clear"])
    def test_a_held_page_that_is_dropped_is_not_found_and_still_read(self, tier: LowerTier, how: str) -> None:
        self.store(tier, 1, 2)
        slots = [self.hold(tier, 1), self.hold(tier, 1)]
        if how == "forget":
            tier.forget([key(1), key(2)])
        else:
            tier.clear()
        self.check(tier)
        assert self.has(tier, [1, 2]) == [False, False]
        assert tier.hold(key(1)) is None
        assert tier.prepare_load(key(1)) is None
        for slot in slots:
            assert self.is_read(tier, slot, 1)
            assert tier.usage().used == 1
            self.let_go(tier, slot)
        assert tier.usage().used == 0
        self.store(tier, 1)
        assert self.is_content(self.load(tier, 1), 1)

    def test_a_page_that_was_dropped_may_be_stored_anew_while_it_is_held(self, tier: LowerTier) -> None:
        self.store(tier, 1)
        slot = self.hold(tier, 1)
        tier.forget([key(1)])
        self.store(tier, 1)
        assert self.is_read(tier, slot, 1)
        self.let_go(tier, slot)
        assert tier.contains(key(1))
        assert self.is_content(self.load(tier, 1), 1)

    @pytest.mark.parametrize("error", [TierError("EIO: test"), WrongContent("checksum: test")])
    def test_a_held_page_that_can_not_be_read_is_a_miss_from_then_on(self, tier: LowerTier, error: TierError) -> None:
        self.store(tier, 1, 2)
        slots = [self.hold(tier, 1), self.hold(tier, 1)]
        self.let_go(tier, slots[0], error)
        assert self.has(tier, [1, 2]) == [False, True]
        self.let_go(tier, slots[1], error)
        statistics = tier.statistics()
        assert statistics.loaded.failed == 1
        assert statistics.quarantined == isinstance(error, WrongContent)
        assert tier.usage().used == 0
        self.store(tier, 1)
        assert self.is_content(self.load(tier, 1), 1)

    def test_a_tier_may_be_closed_while_pages_are_held(self, tier: LowerTier) -> None:
        self.store(tier, 1, 2)
        for number in (1, 1, 2):
            self.hold(tier, number)
        tier.forget([key(2)])
        tier.close()

    def test_a_long_run_of_holds(self) -> None:
        """Whatever else happens, what is held has its bytes, and all of it is free in the end."""
        tier, dice = self.make(16), random.Random(8)
        holds: list[tuple[int, Slot]] = []
        for _ in range(600):
            number = dice.randrange(24)
            what = dice.choice(("store", "store", "hold", "let go", "load", "forget"))
            if what == "store" and (slot := tier.prepare_store(page(number))) is not None:
                assert self.move_down(tier, slot, content(number)) is None
                tier.complete_store(slot, None)
            elif what == "hold" and len(holds) < 12 and (slot := tier.hold(key(number))) is not None:
                holds.append((number, slot))
            elif what == "let go" and holds:
                number, slot = holds.pop(dice.randrange(len(holds)))
                assert self.is_read(tier, slot, number)
                tier.let_go(slot, TierError("test") if dice.random() < 0.2 else None)
                tier.tick()
            elif what == "load":
                found = self.load(tier, number)
                assert found is None or self.is_content(found, number)
            elif what == "forget" and dice.random() < 0.3:
                tier.forget([key(number)])
            self.check(tier)
            assert tier.usage().used == len({slot.index for _, slot in holds})
        for _, slot in holds:
            tier.let_go(slot)
        tier.clear()
        self.check(tier)
        assert (tier.usage().used, tier.usage().cached, tier.usage().moving) == (0, 0, 0)
