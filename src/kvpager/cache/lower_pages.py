"""What the cache does with the tiers below the device: finds prompts there, brings pages up, writes pages down.

    find      which pages of a prompt the device lacks and a tier has
    promote   fresh blocks are taken and held, the device's own pages of that prefix too, and the bytes begin to come;
              when the load has ended, the pages that came are published as if they had been computed. They are then
              cached pages like others: nobody waits while holding blocks, so promotions can't block each other
    write     pages that became findable, or are used again, are copied down (WriteBack says when)
    drop      before reclaim drops a page that no tier has, it is copied into memory below, if there is any; of one that
              a tier has, the tier learns what the device's policy knew

Where that policy judges, a page on its way down carries its history, and comes back up with it. A page in use does not:
it is copied whatever it will turn out to be worth, and the tier hears of that when the page leaves the device.

It reads the prefix index by keys and walks it by labels; it moves no bytes (tiers/migration.py) and decides no order.
"""

from array import array
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.arriving import attach, hold, let_arrive, let_go, resident_blocks, take_held
from kvpager.cache.prefix_match import page_labels
from kvpager.cache.prompt_walk import NOWHERE, MissingPage, PromptWalk
from kvpager.memory.block_pool import BlockPool
from kvpager.prefix.hashing import Scope, block_key
from kvpager.tiers.load import Load, Probe
from kvpager.tiers.migration import Migration, WriteBack
from kvpager.tiers.tier import LowerTier, Page
from kvpager.types import ContentKey, FaultKind, NodeId, TierKind

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache

_PATIENCE = 0.05  # seconds between two looks at the clock
_LONGEST_WAIT = 60.0  # seconds for pages of one prompt, where no deadline was set: a wait has to have an end


@dataclass(frozen=True, slots=True)
class LowerMatch:
    """With the pages ``missing`` the device would have the first ``num_pages`` pages of a prompt.

    ``device_tokens``: what it finds without them. ``unknown``: keys that a tier would have to be asked about first.
    """

    root_key: ContentKey
    epoch: int  # of the cache's index
    labels: tuple[bytes, ...]
    num_pages: int
    device_tokens: int
    missing: tuple[MissingPage, ...]
    unknown: tuple[LowerTier, tuple[ContentKey, ...]] | None

    @property
    def tiers(self) -> list[TierKind]:
        """Per page behind what the device has: the slowest tier that a part of it comes from."""
        slowest: dict[int, TierKind] = {}
        for each in self.missing:
            slowest[each.index] = max(each.tier, slowest.get(each.index, NOWHERE))
        return [slowest[index] for index in sorted(slowest)]


@dataclass(slots=True)
class Promotion:
    """Pages on their way to the device. ``page_tier``: where each page that came had been, once ``is_done``.

    ``is_late``: the deadline has passed. Whoever waits should compute instead; the blocks come back when the bytes do.
    """

    match: LowerMatch
    load: Load
    resident: np.ndarray  # the device's own pages of the prefix, held until the load is over
    fresh: np.ndarray  # the blocks that are filled, held until no worker can touch them any more
    is_done: bool = False
    page_tier: dict[int, TierKind] = field(default_factory=dict)
    num_failed: int = 0

    @property
    def is_late(self) -> bool:
        return self.load.is_late

    @property
    def is_over(self) -> bool:
        """Nothing is worth waiting for any more."""
        return self.is_done or self.is_late


class LowerPages:
    """The tiers below one cache. ``migration`` moves the bytes."""

    def __init__(self, cache: "PagedCache", migration: Migration) -> None:
        self._cache = cache
        self.migration = migration
        self._promotions: list[Promotion] = []
        self._doomed: set[int] = set()  # blocks to be dropped as soon as they are written

    @property
    def _pool(self) -> BlockPool:
        return self._cache.pool

    @property
    def num_doomed(self) -> int:
        """Blocks that become free when they have been written."""
        return len(self._doomed)

    # -- finding ------------------------------------------------------------------------------------------------

    def find(self, tokens: "array[int]", scope: Scope, limit: int) -> LowerMatch | None:
        """What the tiers could add to a prefix hit of at most ``limit`` tokens; None if nothing."""
        page_size = self._cache.layout.page_size
        labels = page_labels(tokens, scope, 0, max(0, limit) // page_size, page_size)
        root_key = self._cache._root_key(scope)
        walk = PromptWalk(self._cache, self.migration, root_key, labels)
        depth = walk.usable_depth()
        missing = tuple(walk.missing(depth))
        unknown = self.migration.unknown(walk.unknown_keys(depth)) if self.migration.must_ask else None
        if not missing and unknown is None:
            return None
        device_tokens = self._cache._match(tokens, scope, limit).num_tokens
        question = None if unknown is None else (unknown[0], tuple(unknown[1]))
        return LowerMatch(root_key, self._cache.epoch, tuple(labels[:depth]), depth, device_tokens, missing, question)

    def probe(self, match: LowerMatch) -> Probe | None:
        """Asks the tier that has to be asked; look again when the probe is done. None: nothing to ask."""
        if match.unknown is None:
            return None
        tier, keys = match.unknown
        return self.migration.probe(tier, list(keys))

    def look(self, tokens: "array[int]", scope: Scope, limit: int) -> LowerMatch | None:
        """``find``, once the tier has answered that has to be asked; waits for it."""
        stop_at = self.migration.now() + _LONGEST_WAIT
        match = self.find(tokens, scope, limit)
        probe = None if match is None else self.probe(match)
        if probe is None:
            return match
        while not probe.is_done and self.migration.now() < stop_at:
            self.wait(_PATIENCE)
        return self.find(tokens, scope, limit)

    # -- up -----------------------------------------------------------------------------------------------------

    def promote(self, match: LowerMatch) -> Promotion | None:
        """Begins to bring the missing pages up. None, with nothing changed, if blocks or queues are full now."""
        if not match.missing or not self.migration.has_room_for_load:
            return None
        missing = {(each.index, each.group) for each in match.missing}
        resident = resident_blocks(self._cache, match.root_key, match.labels, missing)
        hold(self._cache, resident)
        if not self._cache._reclaimer.make_free(len(match.missing)):
            let_go(self._cache, resident)
            return None
        fresh = take_held(self._cache, len(match.missing))
        load = self.migration.load([each.page for each in match.missing], fresh.tolist())
        promotion = Promotion(match, load, resident, fresh)
        self._promotions.append(promotion)
        self._settle_promotions()  # everything may have gone since it was found
        return promotion

    # -- the border of a step -----------------------------------------------------------------------------------

    def collect(self) -> None:
        """Completes the transfers that have ended, and tells the tiers that time has passed."""
        self.migration.collect()
        if self._promotions:
            self._settle_promotions()

    def wait(self, timeout: float, *, idle: bool = False) -> None:
        """Waits up to ``timeout`` seconds for a transfer to end."""
        self.migration.wait(timeout, idle=idle)
        self._settle_promotions()

    def bring_up(self, tokens: "array[int]", scope: Scope, limit: int) -> Promotion | None:
        """Finds, asks, promotes and waits for it all: for callers that have nothing else to do meanwhile."""
        stop_at = self.migration.now() + _LONGEST_WAIT
        match = self.look(tokens, scope, limit)
        promotion = None if match is None else self.promote(match)
        while promotion is not None and not promotion.is_over and self.migration.now() < stop_at:
            self.wait(_PATIENCE)
        return promotion

    def settle(self, seconds: float) -> bool:
        """Waits until nothing moves; whether that was reached."""
        stop_at = self.migration.now() + seconds
        while self.migration.num_open and (left := stop_at - self.migration.now()) > 0:
            self.wait(min(_PATIENCE, left))  # what has come up may go down again: in turns, until both are still
        return self.migration.num_open == 0

    def _settle_promotions(self) -> None:
        for promotion in tuple(self._promotions):
            if promotion.load.is_done:
                self._promotions.remove(promotion)
                self._publish(promotion)
            elif promotion.is_late:
                self._let_go_of_resident(promotion)

    def _let_go_of_resident(self, promotion: Promotion) -> None:
        """Nobody counts on the load any more: pages that are there already must not wait for it."""
        let_go(self._cache, promotion.resident)
        promotion.resident = promotion.resident[:0]

    def _publish(self, promotion: Promotion) -> None:
        """The pages that came become findable, as far as they reach from the start without a gap."""
        cache, match, load = self._cache, promotion.match, promotion.load
        ends = [
            (each, block, tier)
            for each, block, tier, error in zip(match.missing, load.blocks, load.tiers, load.errors, strict=True)
            if error is None
        ]
        promotion.num_failed = len(match.missing) - len(ends)
        came = {(each.index, each.group): block for each, block, _ in ends}
        fresh = attach(cache, match.root_key, match.labels, came) if cache.epoch == match.epoch else {}
        for each, _, tier in ends:
            if (each.index, each.group) in fresh:
                promotion.page_tier[each.index] = max(tier, promotion.page_tier.get(each.index, NOWHERE))
        let_arrive(cache, promotion.fresh[::-1], load.histories)
        self.migration.came_up([each.page.key for each, _, _ in ends if (each.index, each.group) in fresh])
        self._let_go_of_resident(promotion)
        promotion.is_done = True
        if fresh:
            cache._faults.add(FaultKind.MAJOR, len(fresh), (load.ended or load.begun) - load.begun)
            if self.migration.write_back is WriteBack.THROUGH:
                self.write_down(list(fresh.values()))

    # -- down ---------------------------------------------------------------------------------------------------

    def page(self, block: int) -> Page:
        """What a published block is called in the tiers, and its history unless it is in use."""
        index = self._cache.index
        node, group = index.node_of_block(block), index.group_of_block(block)
        history = None if self._pool.refcount[block] else self._cache.evictable.history(block)
        return Page(self._key(block), block_key(index.key(index.parent(node)), group), group, history)

    def _key(self, block: int) -> ContentKey:
        index = self._cache.index
        return block_key(index.key(index.node_of_block(block)), index.group_of_block(block))

    def published(self, blocks: List[int]) -> None:
        """These blocks became findable."""
        if self.migration.write_back is WriteBack.THROUGH:
            self.write_down(blocks)

    @property
    def writes_what_is_used_again(self) -> bool:
        """Whether pages are to be written down that another sequence has found."""
        return self.migration.write_back is WriteBack.SELECTIVE and self.migration.can_copy_ahead

    def write_down(self, blocks: List[int], *, leaving: bool = False) -> list[int]:
        """Begins to copy published blocks that no tier has; returns those that are on their way now.

        ``leaving``: the device is about to drop them.
        """
        return self.migration.demote(((self.page(block), block) for block in blocks), leaving=leaving)

    def is_clean(self, block: int) -> bool:
        """Whether a tier has the page, so that forgetting it loses nothing."""
        return self.migration.find(self._key(block)) is not None

    def is_expendable(self, block: int) -> bool:
        """Whether the page can go without being copied: a tier has it, or all of them hold better ones."""
        return self.is_clean(block) or self.migration.is_unwanted(self.page(block))

    def write_and_drop(self, block: int) -> bool:
        """Begins to copy a cached block down; it becomes free when that is done, unless it is used before."""
        accepted = bool(self.write_down([block], leaving=True))
        if accepted:
            self._doomed.add(block)
        return accepted

    def moving_blocks(self) -> list[int]:
        """Blocks that are being copied down."""
        return self.migration.held_blocks()

    def dropping(self, blocks: List[int]) -> None:
        """Reclaim drops these blocks now; those that are being copied down are safe."""
        moving, kept = set(self.moving_blocks()), list[Page]()
        for block in blocks:
            page = self.page(block)
            if block not in moving and self.migration.find(page.key) is None:
                self.migration.rescue(page, block)
            elif page.history is not None:
                kept.append(page)
        self.migration.remember(kept)

    def taken(self, blocks: np.ndarray) -> None:
        """A transfer holds these blocks, which were cached."""
        self._cache.evictable.held(blocks)

    def settled(self, blocks: np.ndarray, cached: np.ndarray) -> None:
        """A transfer let go of blocks, of which some are cached now."""
        if len(cached):
            self._cache.evictable.settled(cached)
        if self._doomed:
            doomed = self._doomed.intersection(blocks.tolist())
            self._doomed -= doomed
            for block in cached.tolist():
                if block in doomed:
                    self._cache._reclaimer.drop_written(block)

    # -- order --------------------------------------------------------------------------------------------------

    def held_blocks(self) -> list[int]:
        """Blocks that transfers hold, one entry for each hold."""
        promoted = [block for each in self._promotions for block in (*each.resident.tolist(), *each.fresh.tolist())]
        return promoted + self.migration.held_blocks()

    def close(self, seconds: float) -> None:
        """Writes down what should outlive the process, as far as time allows, and ends the transfers."""
        stop_at = self.migration.now() + seconds
        self._doomed.clear()  # nothing is dropped any more
        blocks = self._parents_first(self._cache.index.all_blocks().tolist())
        self.migration.flush([(self.page(block), block) for block in blocks], seconds)
        self.migration.close(max(0.0, stop_at - self.migration.now()))

    def _parents_first(self, blocks: List[int]) -> list[int]:
        """So that what is written before the time is over can be used."""
        index, depths = self._cache.index, dict[NodeId, int]()
        for block in blocks:
            path, node = [], index.node_of_block(block)
            while node not in depths and index.label(node) is not None:
                path.append(node)
                node = index.parent(node)
            depth = depths.get(node, 0)
            depths.update((each, depth + up) for up, each in enumerate(reversed(path), 1))
        return sorted(blocks, key=lambda block: depths[index.node_of_block(block)])
