"""The control of the simulation: each of these mistakes, put into the tiers on purpose, is found by it.

Most are mistakes that public reports tell of.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kvpager.cache import lower_pages
from kvpager.cache.lower_pages import LowerPages
from kvpager.cache.paged_cache import PagedCache
from kvpager.checksum import copy_checksum
from kvpager.errors import TierError
from kvpager.tiers.device_pages import DevicePages
from kvpager.tiers.host import HostStore
from kvpager.tiers.load import Load
from kvpager.tiers.migration import Migration
from kvpager.tiers.move import Move
from kvpager.tiers.promotions import Promotions
from kvpager.tiers.slot_book import SlotBook
from kvpager.tiers.tier import Page, Slot
from tests.simulation.world import World

Patch = pytest.MonkeyPatch


def lets_a_block_go_before_its_bytes_are_read(patch: Patch) -> None:
    patch.setattr(DevicePages, "hold", lambda self, block, key: self._slot(block, key))
    patch.setattr(DevicePages, "let_go", lambda self, slot: None)
    patch.setattr(Migration, "held_blocks", lambda self: [])


def never_lets_a_block_go(patch: Patch) -> None:
    patch.setattr(DevicePages, "let_go", lambda self, slot: None)


def publishes_although_a_load_failed(patch: Patch) -> None:
    complete = Promotions.complete

    def hopeful(self: Promotions, move: Move) -> None:
        for transfer in move.transfers:
            transfer.error = None
        complete(self, move)

    patch.setattr(Promotions, "complete", hopeful)


def publishes_before_a_load_has_ended(patch: Patch) -> None:
    patch.setattr(Load, "is_done", property(lambda self: True))


def gives_blocks_away_when_a_load_is_late(patch: Patch) -> None:
    """The late answer is written into blocks that have gone to someone else."""
    patch.setattr(Load, "is_done", property(lambda self: self.num_open == 0 or self.is_late))


def keeps_what_was_not_stored(patch: Patch) -> None:
    end = Migration._end_demotion
    patch.setattr(Migration, "_end_demotion", lambda self, at, page, target, error: end(self, at, page, target, None))


def skips_the_checksum(patch: Patch) -> None:
    def read(self: HostStore, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> "list[int | TierError]":
        return [copy_checksum(target, slot.memory) for slot, target in zip(slots, into, strict=True)]

    patch.setattr(HostStore, "read", read)


def forgets_the_epoch(patch: Patch) -> None:
    clear = PagedCache.clear_prefix

    def forgetful(self: PagedCache) -> int:
        freed = clear(self)
        self.epoch -= 1
        return freed

    patch.setattr(PagedCache, "clear_prefix", forgetful)


def finds_pages_of_old_weights(patch: Patch) -> None:
    """O-12: the pages in the tiers keep their name when the weights change."""
    patch.setattr(PagedCache, "set_fingerprint", lambda self, fingerprint: self.clear_prefix())


def names_pages_of_all_groups_alike(patch: Patch) -> None:
    patch.setattr(lower_pages, "block_key", lambda key, group: key)


def moves_a_page_down_twice(patch: Patch) -> None:
    room = Migration._room

    def forgetful(self: Migration, page: Page, first: int) -> object:
        self._sinking.discard(page.key)
        return room(self, page, first)

    patch.setattr(Migration, "_room", forgetful)


def loses_count_of_what_moves(patch: Patch) -> None:
    complete = Promotions.complete

    def careless(self: Promotions, move: Move) -> None:
        loading = self.moving_bytes
        complete(self, move)
        if any(transfer.error is not None for transfer in move.transfers):
            self.moving_bytes = loading

    patch.setattr(Promotions, "complete", careless)


def drops_what_came_up_before_it_is_published(patch: Patch) -> None:
    complete = Migration._complete_move

    def hasty(self: Migration, move: Move) -> None:
        complete(self, move)
        if move.target is self._device:
            self.came_up([transfer.page.key for transfer in move.transfers])

    patch.setattr(Migration, "_complete_move", hasty)


def offers_what_is_read_when_it_is_remembered(patch: Patch) -> None:
    def careless(self: SlotBook, pages: Sequence[Page]) -> None:
        for slot in (self._slot_of[page.key] for page in pages if self.contains(page.key)):
            self.policy.offer(np.array([slot]))

    patch.setattr(SlotBook, "remember", careless)


def does_not_hear_of_a_worker_that_died(patch: Patch) -> None:
    patch.setattr(Move, "spread_error", lambda self: None)


def forgets_late_promotions(patch: Patch) -> None:
    settle = LowerPages._settle_promotions

    def impatient(self: LowerPages) -> None:
        settle(self)
        self._promotions = [each for each in self._promotions if not each.is_late]

    patch.setattr(LowerPages, "_settle_promotions", impatient)


MISTAKES = {  # and the seed from which on they are looked for, so that it does not take long
    lets_a_block_go_before_its_bytes_are_read: 0,
    never_lets_a_block_go: 0,
    publishes_although_a_load_failed: 31,
    publishes_before_a_load_has_ended: 0,
    gives_blocks_away_when_a_load_is_late: 11,
    keeps_what_was_not_stored: 4,
    skips_the_checksum: 31,
    forgets_the_epoch: 54,
    finds_pages_of_old_weights: 5,
    names_pages_of_all_groups_alike: 0,
    moves_a_page_down_twice: 9,
    loses_count_of_what_moves: 11,
    drops_what_came_up_before_it_is_published: 11,
    offers_what_is_read_when_it_is_remembered: 0,
    does_not_hear_of_a_worker_that_died: 4,
    forgets_late_promotions: 5,
}


def is_found(first_seed: int, seeds: int) -> bool:
    for seed in range(first_seed, first_seed + seeds):
        try:
            World(seed).run()
        except Exception:
            return True
    return False


@pytest.mark.parametrize("mistake", list(MISTAKES), ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found(mistake: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    assert is_found(MISTAKES[mistake], seeds=100)


def test_without_a_mistake_nothing_is_found() -> None:
    assert not is_found(0, seeds=10)
