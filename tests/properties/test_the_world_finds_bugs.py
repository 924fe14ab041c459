"""The control of the long runs: each of these mistakes, put into the cache on purpose, is found by them.

Most are mistakes that public reports tell of, or that this cache once had.
"""

import random
from collections.abc import Callable

import numpy as np
import pytest

from kvpager.cache import copying, cutting, ending, paged_cache, partings, steps
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.reclaim import Reclaimer
from kvpager.cache.sequence import Sequence
from kvpager.cache.sequence_rows import SequenceRows
from kvpager.cache.steps import Steps
from kvpager.eviction.lru import LRU
from kvpager.memory.arena import HostArena
from kvpager.memory.block_pool import BlockPool, Released
from kvpager.memory.page_table import PageTable
from kvpager.prefix.index import PrefixIndex
from tests.properties.test_long_run import EPISODE
from tests.properties.world import SETTINGS, World

Patch = pytest.MonkeyPatch


def copies_nothing(patch: Patch) -> None:
    patch.setattr(HostArena, "copy", lambda self, sources, targets: None)


def copies_backwards(patch: Patch) -> None:
    patch.setattr(HostArena, "copy", lambda self, s, t: self.blocks.__setitem__(t, self.blocks[s[::-1]]))


def writes_shared_pages_in_place(patch: Patch) -> None:
    patch.setattr(BlockPool, "is_write_protected", lambda self, ids: self.indexed[ids])


def writes_published_pages_in_place(patch: Patch) -> None:
    patch.setattr(BlockPool, "is_write_protected", lambda self, ids: self.refcount[ids] > 1)


def writes_what_a_step_may_still_read(patch: Patch) -> None:
    patch.setattr(BlockPool, "is_write_protected", lambda self, ids: (self.refcount[ids] > 1) | self.indexed[ids])
    patch.setattr(Steps, "_pages_to_copy", _last_owner_always_in_place)


def _last_owner_always_in_place(self: Steps, rows: np.ndarray, starts: np.ndarray) -> list[tuple[int, int]]:
    partial = starts % self._layout.page_size != 0
    protected = self._pool.is_write_protected(self._rows.tail[:, rows]) & partial
    owners: dict[int, int] = {}
    copies = []
    for group, at in np.argwhere(protected).tolist():
        block = int(self._rows.tail[group, rows[at]])
        left = owners.setdefault(block, int(self._pool.refcount[block]))
        if left > 1 or self._pool.indexed[block]:
            owners[block] = left - 1
            copies.append((group, at))
    return copies


def gives_blocks_out_while_a_step_is_open(patch: Patch) -> None:
    def give_back(cache: PagedCache, seq: Sequence, blocks: np.ndarray) -> None:
        released = cache.pool.release(blocks)
        cache.evictable.released(released.unmapped, released.cached, seq.use())

    for module in (copying, cutting, ending, partings, steps):
        patch.setattr(module, "give_back", give_back)


def counts_steps_in_the_order_they_are_left(patch: Patch) -> None:
    def close(self: Steps, step: object, succeeded: bool) -> None:
        step.is_open, step.has_succeeded = False, succeeded
        self._settle(step)

    patch.setattr(Steps, "_close", close)


def counts_what_stands_behind_a_failed_step(patch: Patch) -> None:
    settle = Steps._settle

    def forgetful(self: Steps, step: object) -> None:
        rows = step.batch.rows
        if step.has_succeeded:
            self._rows.committed[rows] = step.batch.starts
        settle(self, step)

    patch.setattr(Steps, "_settle", forgetful)


def changes_the_table_a_step_reads(patch: Patch) -> None:
    patch.setattr(PageTable, "detach", lambda self: None)


def leans_on_a_page_that_was_given_back(patch: Patch) -> None:
    patch.setattr(PagedCache, "_leave_index", lambda self, seq: None)


def drops_the_middle_of_a_prefix(patch: Patch) -> None:
    patch.setattr(PrefixIndex, "is_leaf", lambda self, node: True)


def forgets_to_tell_the_index_of_an_eviction(patch: Patch) -> None:
    """O-01: the block is given out again, and its old name still leads to it."""
    patch.setattr(PrefixIndex, "detach", lambda self, block: None)


def keeps_the_rows_of_freed_sequences(patch: Patch) -> None:
    patch.setattr(SequenceRows, "give_back", lambda self, row: self._free.append(row))


def matches_other_tenants(patch: Patch) -> None:
    patch.setattr(paged_cache, "root_key", lambda fingerprint, layout, scope: b"the same for all")


def matches_old_weights(patch: Patch) -> None:
    patch.setattr(PagedCache, "clear_prefix", lambda self: 0)


def matches_one_token_too_many_inside_a_page(patch: Patch) -> None:
    from kvpager.prefix import index

    patch.setattr(index, "_common_tokens", lambda one, other: min(len(one), len(other)) // 4)


def forgets_to_copy_the_last_owner_bit_in_a_batch(patch: Patch) -> None:
    pages = Steps._pages_to_copy
    patch.setattr(Steps, "_pages_to_copy", lambda self, rows, starts: pages(self, rows, starts)[:1])


def releases_twice(patch: Patch) -> None:
    release = BlockPool.release

    def twice(self: BlockPool, ids: np.ndarray) -> Released:
        if len(ids) and (self.refcount[ids] > 1).all():
            release(self, ids)
        return release(self, ids)

    patch.setattr(BlockPool, "release", twice)


def loses_cached_blocks(patch: Patch) -> None:
    patch.setattr(LRU, "offer", lambda self, blocks: None)


def refuses_while_there_is_room(patch: Patch) -> None:
    patch.setattr(Reclaimer, "make_free", lambda self, needed: needed <= self._pool.num_free)


def gives_back_what_the_window_still_sees(patch: Patch) -> None:
    give_back = Steps._give_back_behind_window

    def eager(self: Steps, step: object, counts: np.ndarray, group: int, window: int) -> None:
        give_back(self, step, counts, group, max(1, window - 2))

    patch.setattr(Steps, "_give_back_behind_window", eager)


def moves_blocks_without_their_bytes(patch: Patch) -> None:
    move = BlockPool.move

    def bare(self: BlockPool, sources: np.ndarray, targets: np.ndarray) -> None:
        kept = self.arena.blocks[targets].copy()
        move(self, sources, targets)
        self.arena.blocks[targets] = kept

    patch.setattr(BlockPool, "move", bare)


def moves_blocks_and_not_their_names(patch: Patch) -> None:
    patch.setattr(PageTable, "renumber", lambda self, new_ids: None)


EVERYWHERE = list(SETTINGS)
MISTAKES = {  # and the settings in which they are looked for
    copies_nothing: EVERYWHERE,
    copies_backwards: EVERYWHERE,
    writes_shared_pages_in_place: EVERYWHERE,
    writes_published_pages_in_place: EVERYWHERE,
    writes_what_a_step_may_still_read: ["by hand"],
    gives_blocks_out_while_a_step_is_open: EVERYWHERE,
    counts_steps_in_the_order_they_are_left: EVERYWHERE,
    counts_what_stands_behind_a_failed_step: EVERYWHERE,
    changes_the_table_a_step_reads: EVERYWHERE,
    leans_on_a_page_that_was_given_back: ["window below a page", "window"],
    drops_the_middle_of_a_prefix: ["youngest first"],
    forgets_to_tell_the_index_of_an_eviction: EVERYWHERE,
    keeps_the_rows_of_freed_sequences: EVERYWHERE,
    matches_other_tenants: EVERYWHERE,
    matches_old_weights: EVERYWHERE,
    matches_one_token_too_many_inside_a_page: EVERYWHERE,
    forgets_to_copy_the_last_owner_bit_in_a_batch: EVERYWHERE,
    releases_twice: EVERYWHERE,
    loses_cached_blocks: EVERYWHERE,
    refuses_while_there_is_room: EVERYWHERE,
    gives_back_what_the_window_still_sees: EVERYWHERE,
    moves_blocks_without_their_bytes: EVERYWHERE,
    moves_blocks_and_not_their_names: EVERYWHERE,
}


def operations_until_found(settings: list[str], limit: int) -> int | None:
    """Episodes of these settings in turn until one contradicts the model."""
    done, seed = 0, 77
    while done < limit:
        for setting in map(SETTINGS.__getitem__, settings):
            generator = random.Random(seed)
            world = World(setting)
            try:
                for name in setting.operations(generator, EPISODE):
                    world.run(name, generator.randint)
                world.finish()
            except Exception:
                return done + world.turns
            done, seed = done + EPISODE, seed + 1
    return None


@pytest.mark.parametrize("mistake", list(MISTAKES), ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found(mistake: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    assert operations_until_found(MISTAKES[mistake], limit=25_000) is not None


def test_without_a_mistake_nothing_is_found() -> None:
    assert operations_until_found(EVERYWHERE, limit=1_000) is None
