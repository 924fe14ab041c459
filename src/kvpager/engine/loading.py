"""Brings the pages of waiting branches up from the tiers below, before they start. Knows no model; moves no bytes.

    NEW       not looked for yet, or there is no room for it now: nobody behind it starts
    ASKING    a remote tier is asked what it has; then NEW again
    QUEUED    a tier has pages of it, but other loads come first
    LOADING   pages are on their way; READY when they have come, or are late, and NEW once more where some did not come
    READY     the device has what is worth having of it: the scheduler may start it

Those behind a branch that is ASKING, QUEUED or LOADING may overtake it: nobody waits for another's I/O. A load begins
when its branch would be the next to be admitted but for max_running, so that it takes no blocks that running branches
need soon; what the branch will take besides when it starts is ``reserved`` meanwhile. A promotion holds blocks, but
waits for none, so loads can't block each other. A branch is loaded at most twice each time it waits.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING

from kvpager.cache.lower_pages import LowerMatch, LowerPages, Promotion
from kvpager.cache.paged_cache import PagedCache
from kvpager.engine.load_or_compute import Choice, LoadOrCompute, Offer, Reason
from kvpager.engine.scheduler import AdmissionCost
from kvpager.errors import InvariantError
from kvpager.prefix.hashing import Scope
from kvpager.tiers.load import Probe
from kvpager.types import TierKind

if TYPE_CHECKING:
    from kvpager.engine.request import Branch

_LOOK_AHEAD = 32  # waiting branches that are looked for at once
_MAX_LOADS = 2  # of one branch, its own or those it shares
_MAX_HINTS = 16  # prompts to prefetch that a tier is being asked about
_PATIENCE = 0.02  # seconds between two looks at the queue while nothing can run


class Stage(Enum):
    NEW = "new"
    ASKING = "asking"
    QUEUED = "queued"
    LOADING = "loading"
    READY = "ready"


_UNDER_WAY = (Stage.ASKING, Stage.LOADING)


@dataclass(slots=True, eq=False)
class _Entry:
    """A prompt that is looked for below. ``limit``: tokens that may be reused.

    ``promotion``: what it waits for; ``is_own``: it began that load. ``reserved``: blocks it will take when it starts,
    besides those that are being filled; ``blocks``: in all. ``found``: tokens on the device when it became READY.
    """

    tokens: "array[int]"
    scope: Scope
    limit: int
    stage: Stage = Stage.NEW
    probe: Probe | None = None
    was_asked: bool = False
    asks_until: float | None = None
    promotion: Promotion | None = None
    is_own: bool = False
    loads: int = 0
    reserved: int = 0
    blocks: int = 0
    found: int = 0
    page_tier: dict[int, TierKind] = field(default_factory=dict)

    def settle(self, page_size: int, now: float) -> None:
        """Goes on where what it waited for is over."""
        promotion = self.promotion
        if self.stage is Stage.ASKING and self.probe is not None:
            if self.probe.is_done or (self.asks_until is not None and now > self.asks_until):
                self.stage, self.probe = Stage.NEW, None
        elif self.stage is Stage.LOADING and promotion is not None and promotion.is_over:
            self.promotion, self.reserved = None, 0
            self.stage = Stage.NEW  # what came for another, or came in part, is looked for again
            if not promotion.is_done:
                self.stage = Stage.READY  # too late
            elif self.is_own:
                self.page_tier |= promotion.page_tier
                if not promotion.num_failed:
                    self.stage, self.found = Stage.READY, promotion.match.num_pages * page_size


class Loading:
    """The loads of one engine. ``cost`` says what a branch would take if it started now.

    ``chunk``: loads end at multiples of so many tokens (deterministic mode), or None.
    """

    def __init__(self, cache: PagedCache, chunk: int | None, cost: "Callable[[Branch], AdmissionCost]") -> None:
        self._cache = cache
        self._chunk = chunk
        self._cost = cost
        self._page_size = cache.layout.page_size
        self._entries: dict[int, _Entry] = {}  # by the branch's key
        self._hints: list[_Entry] = []
        self._promotions: list[Promotion] = []  # not over yet
        tiers = () if cache.lower is None else cache.lower.migration.tiers
        self.model = LoadOrCompute(cache.layout.page_size, tiers[0].page_bytes if tiers else cache.layout.block_stride)

    # -- questions ----------------------------------------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """Whether there is anything to load from."""
        return self._cache.lower is not None and self._cache.has_prefix_cache

    @property
    def is_idle(self) -> bool:
        """Whether nothing is looked for, for a branch or a hint."""
        return not (self._entries or self._hints)

    def stage(self, branch: "Branch") -> Stage:
        if not self.is_used:
            return Stage.READY
        entry = self._entries.get(branch.key)
        return Stage.NEW if entry is None else entry.stage

    @property
    def reserved(self) -> int:
        """Blocks that branches will take when their loads are over, besides those that are being filled."""
        return sum(entry.reserved for entry in self._entries.values())

    @property
    def num_loading(self) -> int:
        """Branches that wait for a load, or for a tier's answer."""
        return sum(entry.stage in _UNDER_WAY for entry in self._entries.values())

    # -- one pass -----------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Completes the transfers that have ended, and learns what they took."""
        if not self.is_used:
            return
        self._lower.collect()
        for promotion in [each for each in self._promotions if each.is_over]:
            self._promotions.remove(promotion)
            self._learn(promotion)
        now = self._lower.migration.now()
        for entry in (*self._entries.values(), *self._hints):
            entry.settle(self._page_size, now)

    def advance(self, queue: "Sequence[Branch]", spare: int, is_idle: bool) -> None:
        """Looks for the next branches of the queue and begins their loads, as far as there is room.

        ``queue``: in the order in which they may start. ``spare``: blocks beyond what running branches need soon.
        ``is_idle``: nothing runs, so the first is let in whatever it takes.
        """
        if not self.is_used:
            return
        room = spare - self.reserved
        is_first = is_idle and all(entry.stage is not Stage.LOADING for entry in self._entries.values())
        for branch in islice(queue, _LOOK_AHEAD):
            entry = self._entry(branch)
            if entry.stage in _UNDER_WAY:
                continue
            cost = None if entry.stage is Stage.READY or self._must_queue(entry) else self._cost(branch)
            if cost is not None:
                entry.blocks = cost.blocks
            if entry.blocks > room and not is_first:
                if entry.stage is Stage.QUEUED:
                    entry.stage = Stage.NEW
                break
            if cost is not None:
                self._begin(entry, cost)
            room -= entry.blocks
            is_first = False
        if not queue:
            self._follow_hints(room)

    def turn(self, branch: "Branch") -> Stage:
        """A branch may start now. It is NEW again where pages have gone down since they were found or loaded for it."""
        stage = self.stage(branch)
        if self.is_used and stage is Stage.READY:
            entry, found = self._entries[branch.key], self._cost(branch).prefix_tokens
            if found < entry.found and entry.loads < _MAX_LOADS:
                stage = entry.stage = Stage.NEW
            entry.found = found
        return stage

    def rest(self) -> bool:
        """Nothing can run: waits a little for a transfer to end. Whether any is under way."""
        if self._cache.lower is None or not self._cache.lower.migration.num_open:
            return False
        self._cache.lower.wait(_PATIENCE, idle=True)
        return True

    def leave(self, branch: "Branch") -> dict[int, TierKind]:
        """The branch starts or ends; returns which pages were loaded for it. A load that is under way goes on."""
        entry = self._entries.pop(branch.key, None)
        return {} if entry is None else entry.page_tier

    # -- a branch -----------------------------------------------------------------------------------------------

    def _entry(self, branch: "Branch") -> _Entry:
        entry = self._entries.get(branch.key)
        if entry is None:
            tokens = branch.known_tokens()
            limit = min(len(tokens) - 1, len(branch.request.prompt)) if self._chunk else len(tokens) - 1
            if branch.prefix_limit is not None:
                limit = min(limit, branch.prefix_limit)
            entry = _Entry(tokens, branch.request.scope, self._canonical(limit))
            self._entries[branch.key] = entry
        return entry

    def _canonical(self, tokens: int) -> int:
        return tokens if self._chunk is None else tokens // self._chunk * self._chunk

    def _must_queue(self, entry: _Entry) -> bool:
        """Whether other loads still come first. Those that are late are not waited for."""
        is_full = not self._lower.migration.has_room_for_load
        return entry.stage is Stage.QUEUED and is_full and len(self._promotions) > 0

    def _begin(self, entry: _Entry, cost: AdmissionCost) -> None:
        """Looks for a branch that could be admitted now, and begins its load if it needs one."""
        entry.stage, entry.found = Stage.READY, cost.prefix_tokens
        match = self._find(entry, entry.limit) if entry.loads < _MAX_LOADS else None
        if match is None or self._ask(entry, match) or not match.missing:
            return
        under_way = self._under_way(match)
        if under_way is not None:
            self._wait_for(entry, under_way, is_own=False)
        elif not self._lower.migration.has_room_for_load:
            self._queue(entry, match)
        else:
            under_way = self._load(entry, match, self._cache.num_available - cost.revived)
            if under_way is not None:
                self._wait_for(entry, under_way, is_own=True)
        if entry.stage is Stage.LOADING:
            entry.reserved = max(0, cost.blocks - len(match.missing) - cost.revived)

    def _find(self, entry: _Entry, limit: int) -> LowerMatch | None:
        """What the tiers have, up to a canonical border: a window may lack what the last pages need."""
        match = self._lower.find(entry.tokens, entry.scope, limit)
        while match is not None and (tokens := match.num_pages * self._page_size) != self._canonical(tokens):
            match = self._lower.find(entry.tokens, entry.scope, self._canonical(tokens))
        return match

    def _ask(self, entry: _Entry, match: LowerMatch) -> bool:
        """Asks a tier that has to be asked, once. What comes too late for this prompt serves the next one."""
        if entry.was_asked or match.unknown is None:
            return False
        entry.probe, entry.was_asked, entry.stage = self._lower.probe(match), True, Stage.ASKING
        patience = self.model.patience(entry.limit - match.num_pages * self._page_size)
        entry.asks_until = None if patience is None else self._lower.migration.now() + patience
        return True

    def _under_way(self, match: LowerMatch) -> Promotion | None:
        """A load that brings some of these pages already."""
        wanted = {each.page.key for each in match.missing}
        for promotion in self._promotions:
            if any(each.page.key in wanted for each in promotion.match.missing):
                return promotion
        return None

    def _wait_for(self, entry: _Entry, promotion: Promotion, *, is_own: bool) -> None:
        entry.promotion, entry.is_own, entry.stage = promotion, is_own, Stage.LOADING
        entry.loads += 1

    def _queue(self, entry: _Entry, match: LowerMatch) -> None:
        entry.stage = Stage.QUEUED
        if not self._must_queue(entry):
            entry.stage = Stage.READY
            self.model.note(Choice(0, len(self._offers(match)), Reason.BUSY))

    def _load(self, entry: _Entry, match: LowerMatch, max_blocks: int) -> Promotion | None:
        """Decides how much to load, and begins."""
        offers = self._offers(match)
        first = match.num_pages - len(offers)
        borders = None
        if self._chunk is not None:
            borders = [n for n in range(len(offers)) if (first + n) * self._page_size % self._chunk == 0]
        choice = self.model.choose(offers, max_blocks, borders)
        part: LowerMatch | None = match
        if choice.num_pages < len(offers):
            part = self._find(entry, (first + choice.num_pages) * self._page_size) if choice.num_pages else None
        promotion = None if part is None else self._promote(part)
        if promotion is None and choice.num_pages:
            choice = replace(choice, num_pages=0, reason=Reason.ROOM)
        self.model.note(choice)
        return promotion

    def _offers(self, match: LowerMatch) -> list[Offer]:
        """The pages behind what the device has; blocks that are there already cost nothing."""
        first = min(match.device_tokens // self._page_size, match.num_pages)
        blocks: list[Counter[TierKind]] = [Counter() for _ in range(first, match.num_pages)]
        for each in match.missing:
            blocks[each.index - first][each.tier] += 1
        return [Offer(dict(each)) for each in blocks]

    def _promote(self, match: LowerMatch) -> Promotion | None:
        promotion = self._lower.promote(match)
        if promotion is not None:
            self._promotions.append(promotion)
        return promotion

    def _learn(self, promotion: Promotion) -> None:
        load = promotion.load
        came = Counter(tier for tier, error in zip(load.tiers, load.errors, strict=True) if error is None)
        for tier, num_blocks in came.items():
            if load.is_late and tier not in load.tier_ended:  # not yet: it takes longer than this
                self.model.loaded(tier, num_blocks, self._lower.migration.now() - load.begun)
            elif not load.is_late and tier is not TierKind.NONE:
                self.model.loaded(tier, num_blocks, load.tier_ended[tier] - load.begun)

    # -- sessions that will return ------------------------------------------------------------------------------

    def prefetch(self, tokens: "array[int]", scope: Scope, spare: int) -> bool:
        """Begins to bring a prompt's pages up, if they fit into ``spare`` blocks; whether anything was begun."""
        if not self.is_used or len(self._hints) >= _MAX_HINTS:
            return False
        entry = _Entry(tokens, scope, self._canonical(len(tokens)))
        self._hints.append(entry)
        before = len(self._promotions)
        self._follow_hints(spare - self.reserved)
        return len(self._promotions) > before or entry in self._hints

    def _follow_hints(self, room: int) -> None:
        for entry in tuple(self._hints):
            if entry.stage is Stage.ASKING:
                continue
            match = self._find(entry, entry.limit)
            if match is not None and self._ask(entry, match):
                continue
            self._hints.remove(entry)
            if match is None or self._under_way(match) is not None:
                continue
            found = self._cache.lookup(entry.tokens, entry.scope)
            taken = len(match.missing) + self._cache.num_revived_blocks(found)
            if taken <= room and self._promote(match) is not None:
                room -= taken

    # -- order --------------------------------------------------------------------------------------------------

    @property
    def _lower(self) -> LowerPages:
        assert self._cache.lower is not None
        return self._cache.lower

    def check(self, waiting: "Sequence[Branch]") -> None:
        """Raises InvariantError unless what is looked for is what waits."""
        if not self._entries.keys() <= {branch.key for branch in waiting}:
            raise InvariantError("a branch is looked for below that does not wait")
        for entry in self._entries.values():
            if (entry.stage is Stage.LOADING) != (entry.promotion is not None):
                raise InvariantError(f"a branch is {entry.stage.value}, but its load says otherwise")
            if (entry.stage is Stage.ASKING) != (entry.probe is not None):
                raise InvariantError(f"a branch is {entry.stage.value}, but its question says otherwise")
            if entry.loads > _MAX_LOADS or (entry.reserved and entry.stage is not Stage.LOADING):
                raise InvariantError("a branch was loaded too often, or keeps blocks that it does not need")
