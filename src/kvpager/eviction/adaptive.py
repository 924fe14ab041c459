"""The policy that learns: evicts the page whose expected reuse per second of a block is least.

What is told of a request when it lets go of its pages puts each page into a *kind*, by six features:

    partial tail?   the last page, not full: hardly ever used again
    stop            unknown, tool call, end of turn, as far as the client says
    turns           of the conversation so far: 0 to 3, and more
    gap             seconds since its previous turn: unknown, < 15, < 37.5, < 94, < 234, more; people keep their pace
    output          tokens of the answer: < 24, < 60, < 150, < 375, < 938, more; a long one takes longer to read
    added           pages after those of the previous turn: < 3, < 9, < 27, more

A conversation is recognised by the last full page of its previous turn (adaptive_sample.py), cached or not. How soon
pages of a kind are used again is learned from a sample of keys (adaptive_hazards.py, which has the formulas and their
sources); a page is ranked by the Gittins index of its kind at its age, and the victim is the lowest of 64 evictable
pages drawn at random, or of all if there are fewer. Until enough was seen, and as far as its gains don't pay for more,
the policy keeps to LRU (adaptive_guard.py).

Ages are seconds of the injected clock: what is learned is when people and tools come back, and that does not depend on
the load. Where the clock stands still, a page counts as PAGE_SECONDS. Everything is deterministic.

On a tier below, the same policy judges by the hazards the tier above has learned (``below``), and a page brings its
kind along (``History``). Memory: a fixed number of bytes per block (4 watched keys, 4 conversations, one shadow entry
each), and at most MAX_NODES tables.

This is the readable form, and the one where there are no native kernels. csrc/adaptive.h chooses the same victims.
"""

from dataclasses import dataclass

import numpy as np

from kvpager import native
from kvpager.errors import InvariantError
from kvpager.eviction.adaptive_guard import Credit, ShadowLRU
from kvpager.eviction.adaptive_hazards import RADIX, Hazards
from kvpager.eviction.adaptive_native import NativeAdaptive
from kvpager.eviction.adaptive_sample import MAX_TURNS, Conversations, ReuseSample, Turn, mix
from kvpager.eviction.policy import History, JudgingPolicy, Use
from kvpager.types import Clock

CANDIDATES = 64
TRAINED = 1000  # reuses seen before the policy departs from LRU
PAGE_SECONDS = 1e-5
_STEPS_PER_PAGE = 2  # of the sample, at every page that is found or enters
_GAPS = (15.0, 37.5, 93.75, 234.375)
_OUTPUTS = (24, 60, 150, 375, 937.5)
_ADDED = (3, 9, 27)


def make_adaptive(num_blocks: int, clock: Clock) -> JudgingPolicy:
    kernels = native.module()
    return Adaptive(num_blocks, clock) if kernels is None else NativeAdaptive(num_blocks, clock, kernels)


@dataclass(slots=True)
class _Page:
    key: int
    gap: float | None = None  # what had passed when it was found again
    turns: int = 0  # of the conversation whose last full page it is
    last_used: float = 0.0
    stamp: int = 0  # of its last use, in the order of uses
    kind: int = 0
    node: int = 0
    uses: int = 0
    is_live: bool = True
    was_found: bool = False


@dataclass(frozen=True, slots=True)
class _Conversation:
    """Which one a request goes on with. ``added``: pages of its own."""

    turns: int
    gap: float | None
    added: int


class _Bag:
    """A set of blocks that can be drawn from by number."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self._place_of: dict[int, int] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._place_of

    def add(self, block: int) -> None:
        if block not in self._place_of:
            self._place_of[block] = len(self.blocks)
            self.blocks.append(block)

    def take_out(self, block: int) -> None:
        place = self._place_of.pop(block, None)
        if place is None:
            return
        last = self.blocks.pop()
        if last != block:
            self.blocks[place] = last
            self._place_of[last] = place

    def rename(self, source: int, target: int) -> None:
        place = self._place_of.pop(source, None)
        if place is not None:
            self.blocks[place] = target
            self._place_of[target] = place


class Adaptive:
    name = "adaptive"
    uses_keys = True

    def __init__(self, num_blocks: int, clock: Clock, hazards: Hazards | None = None) -> None:
        """``hazards``: of the tier above, where this one judges by them and learns nothing itself."""
        self._num_blocks = num_blocks
        self._clock = clock
        self._learns = hazards is None
        self._hazards = hazards or Hazards()
        self._sample = ReuseSample(num_blocks)
        self._conversations = Conversations(num_blocks)
        self._shadow = ShadowLRU(num_blocks)
        self._credit = Credit()
        self._pages: dict[int, _Page] = {}  # by block
        self._leaves = _Bag()  # offered
        self._strays = set[int]()  # LRU would not have them any more
        self._stray_leaves = _Bag()
        self._stamps = self._draws = 0
        self._least_now = 0.0
        self._victim: int | None = None
        self._knows_victim = False

    def below(self, num_blocks: int) -> "Adaptive":
        return Adaptive(num_blocks, self._clock, self._hazards)

    # -- what happens to pages ------------------------------------------------------------------------------------

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        now = self._now()
        for block, key in zip(blocks.tolist(), keys.tolist(), strict=True):
            self._forget(block)
            page = self._pages[block] = _Page(key)
            if key in self._shadow and self._shadow.block_of(key) is None:
                self._shadow.set_block(key, block)
            if not self._learns:
                continue
            if turn := self._conversations.find(key):
                page.turns, page.gap = turn.turns, now - turn.when
            self._sample.came_back(key, self._hazards, now)
            self._sample.advance(_STEPS_PER_PAGE, self._hazards, now)
        self._knows_victim = False

    def hit(self, blocks: np.ndarray) -> None:
        now = self._now()
        for block in blocks.tolist():
            self._withdraw(block)
            page = self._pages[block]
            page.was_found = True
            page.gap = now - page.last_used
            if self._learns and not page.is_live:
                self._sample.came_back(page.key, self._hazards, now)
            page.is_live = True
            if self._learns:
                self._sample.advance(_STEPS_PER_PAGE, self._hazards, now)
        self._knows_victim = False

    def release(self, blocks: np.ndarray, use: Use) -> None:
        now = self._now()
        released = blocks.tolist()
        if not released:
            return
        self._least_now = now + len(released) * PAGE_SECONDS
        self._count_hits(released)
        conversation = self._conversation(released, use, now) if self._learns else _Conversation(0, None, 0)
        for number, block in enumerate(released):
            page = self._pages[block]
            if self._learns or page.uses == 0:
                page.kind = _kind(conversation, use, is_tail=use.partial_tail and number == 0)
            page.uses += 1
            self._settle(block, now, now)
        self._hazards.refresh_next()
        self._knows_victim = False

    def take_over(self, block: int, history: History) -> None:
        now = self._now()
        page = self._pages[block]
        page.kind, page.uses = history.kind, history.uses
        self._settle(block, min(history.last_used, now), now)
        self._knows_victim = False

    def offer(self, blocks: np.ndarray) -> None:
        for block in blocks.tolist():
            self._leaves.add(block)
            if block in self._strays:
                self._stray_leaves.add(block)
        self._knows_victim = False

    def withdraw(self, blocks: np.ndarray) -> None:
        for block in blocks.tolist():
            self._withdraw(block)
        self._knows_victim = False

    def leave(self, blocks: np.ndarray) -> None:
        for block in blocks.tolist():
            self._forget(block)
        self._knows_victim = False

    def resize(self, num_blocks: int) -> None:
        """What is remembered beside the blocks starts anew, but for the order of their uses: resizes are rare."""
        for block in [block for block in self._pages if block >= num_blocks]:
            self._forget(block)
        self._num_blocks = num_blocks
        by_age = sorted((page.stamp, block) for block, page in self._pages.items() if page.stamp)
        self._strays.clear()
        self._stray_leaves = _Bag()
        self._shadow = ShadowLRU(num_blocks)
        for _, block in by_age:
            self._remember_in_shadow(block)
        if self._learns:
            self._sample = ReuseSample(num_blocks)
            self._conversations = Conversations(num_blocks)
        self._knows_victim = False

    def move(self, source: int, target: int) -> None:
        if source == target:
            return
        self._forget(target)
        page = self._pages[target] = self._pages.pop(source)
        for bag in (self._leaves, self._stray_leaves):
            bag.rename(source, target)
        if source in self._strays:
            self._strays.remove(source)
            self._strays.add(target)
        if self._shadow.block_of(page.key) == source:
            self._shadow.set_block(page.key, target)
        self._knows_victim = False

    # -- which goes first -----------------------------------------------------------------------------------------

    def victim(self) -> int | None:
        if not self._knows_victim:
            self._victim = self._choose(self._now())
        self._knows_victim = True
        return self._victim

    def history(self, block: int) -> History:
        page = self._pages[block]
        return History(page.last_used, page.uses, page.kind)

    def worth(self, block: int) -> float:
        return self.worth_of(self.history(block))

    def worth_of(self, history: History) -> float:
        return self._hazards.index(self._hazards.node_of(history.kind), self._now() - history.last_used)

    def check(self, offered: np.ndarray) -> None:
        if sorted(self._leaves.blocks) != sorted(offered.tolist()):
            raise InvariantError("the adaptive policy does not offer exactly the evictable blocks")
        if set(self._stray_leaves.blocks) != self._strays & set(self._leaves.blocks):
            raise InvariantError("the adaptive policy lost an evictable block that LRU would not have")

    def _choose(self, now: float) -> int | None:
        is_trained = self._hazards.num_events >= TRAINED
        if not is_trained or not self._credit.covers(len(self._strays)):
            if self._stray_leaves.blocks:
                return self._lowest(self._stray_leaves.blocks, now)
            if not is_trained or self._credit.is_spent:
                oldest = self._shadow.oldest(self._leaves.__contains__)
                if oldest is not None:
                    return oldest
        return self._lowest(self._leaves.blocks, now)

    def _lowest(self, blocks: list[int], now: float) -> int | None:
        candidates = blocks
        if len(blocks) > CANDIDATES:
            draws = range(self._draws, self._draws + CANDIDATES)
            candidates = [blocks[(mix(draw) >> 32) * len(blocks) >> 32] for draw in draws]
            self._draws += CANDIDATES
        index, pages = self._hazards.index, self._pages

        def rank(block: int) -> tuple[float, int]:
            page = pages[block]
            return index(page.node, now - page.last_used), page.stamp

        return min(candidates, key=rank, default=None)

    # -- what is known of pages -----------------------------------------------------------------------------------

    def _now(self) -> float:
        return max(self._clock(), self._least_now)

    def _count_hits(self, released: list[int]) -> None:
        found = lru_found = 0
        is_prefix = True
        for block in reversed(released):
            page = self._pages[block]
            is_prefix = is_prefix and self._shadow.block_of(page.key) == block
            lru_found += is_prefix
            found += page.was_found
            page.was_found = False
        self._credit.count(found, lru_found, len(released), self._num_blocks)

    def _conversation(self, released: list[int], use: Use, now: float) -> _Conversation:
        """By the deepest page at which an earlier turn ended; the page at which this turn ends takes its place."""
        pages = [self._pages[block] for block in released]
        joint = next((number for number, page in enumerate(pages) if page.turns), len(pages))
        found = _Conversation(0, None, len(pages))
        if joint < len(pages):
            found = _Conversation(pages[joint].turns, pages[joint].gap, joint)
            self._conversations.forget(pages[joint].key)
            pages[joint].turns = 0
        end = int(use.partial_tail)
        if end < len(pages) and (pages[end].uses == 0 or joint == end):
            pages[end].turns = min(MAX_TURNS, found.turns + 1)
            self._conversations.remember(pages[end].key, Turn(pages[end].turns, now))
        return found

    def _settle(self, block: int, since: float, now: float) -> None:
        """A block is cached from now on, last used at ``since``."""
        page = self._pages[block]
        self._stamps += 1
        page.node = self._hazards.node_of(page.kind)
        page.last_used, page.stamp, page.is_live = since, self._stamps, False
        self._remember_in_shadow(block)
        if self._learns:
            self._sample.watch(page.key, page.node, since, now - since, self._hazards, now)

    def _remember_in_shadow(self, block: int) -> None:
        key = self._pages[block].key
        other = self._shadow.block_of(key)
        if other is not None and other != block:
            self._become_stray(other)  # the same content twice: the entry goes to the last one used
        dropped = self._shadow.use(key, block)
        self._strays.discard(block)
        self._stray_leaves.take_out(block)
        if dropped is not None:
            self._become_stray(dropped)

    def _become_stray(self, block: int) -> None:
        self._strays.add(block)
        if block in self._leaves:
            self._stray_leaves.add(block)

    def _withdraw(self, block: int) -> None:
        self._leaves.take_out(block)
        self._stray_leaves.take_out(block)

    def _forget(self, block: int) -> None:
        self._withdraw(block)
        page = self._pages.pop(block, None)
        if page is None:
            return
        self._strays.discard(block)
        if self._shadow.block_of(page.key) == block:
            self._shadow.set_block(page.key, None)
        if page.is_live and self._learns:
            self._sample.drop_live(page.key)


def _kind(conversation: _Conversation, use: Use, *, is_tail: bool) -> int:
    digits = [int(is_tail), int(use.stop), 0, 0, 0, 0]
    if not is_tail:
        gap = 0 if conversation.gap is None else 1 + _step(conversation.gap, _GAPS)
        digits[2:] = (
            min(conversation.turns, 4),
            gap,
            _step(use.output_tokens, _OUTPUTS),
            _step(conversation.added, _ADDED),
        )
    kind = 0
    for digit, radix in zip(digits, RADIX, strict=True):
        kind = kind * radix + digit
    return kind


def _step(value: float, edges: tuple[float, ...]) -> int:
    return sum(value >= edge for edge in edges)
