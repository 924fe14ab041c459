"""The paged KV cache: sequences over one pool. Opens and closes steps, resolves faults, publishes and gives back.

It decides nothing about order (eviction/), touches no bytes itself (the arena and the row access do) and knows no
model. One thread owns it. Every call either does its work or raises and leaves everything as it was.
"""

from array import array
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as List
from operator import attrgetter

import numpy as np

from kvpager.cache.adopting import adopt_where_they_lie
from kvpager.cache.check import check_cache
from kvpager.cache.evictable import Evictable
from kvpager.cache.fault import FaultLog
from kvpager.cache.lower_pages import LowerPages
from kvpager.cache.page_log import PageLog
from kvpager.cache.paging import MIN_LIMIT, Paging
from kvpager.cache.prefix_match import PrefixMatch, PrefixMatcher, first_visible_page, page_labels
from kvpager.cache.reclaim import Reclaimer
from kvpager.cache.resize import resize_pool
from kvpager.cache.retention import Retainer
from kvpager.cache.retention_terms import Retention
from kvpager.cache.sequence import Sequence, token_array
from kvpager.cache.sequence_rows import SequenceRows
from kvpager.cache.statistics import CacheStatistics, read_statistics
from kvpager.cache.step import Step
from kvpager.cache.steps import Steps
from kvpager.errors import ConfigError, OutOfBlocks
from kvpager.memory.arena import Arena
from kvpager.memory.block_pool import BlockPool
from kvpager.memory.layout import KVLayout
from kvpager.memory.page_table import PageTable
from kvpager.prefix.hashing import Scope, page_key, root_key
from kvpager.prefix.index import PrefixIndex
from kvpager.tiers.disk.session_files import Session, SessionFiles
from kvpager.tiers.row_access import RowAccess
from kvpager.tiers.tier import Tier
from kvpager.types import ContentKey, FaultKind, NodeId, TierKind

ANY_SCOPE = Scope()
_FREED = -1  # the row of a freed sequence
_COPY_SECONDS = 5.0  # for copies to lower tiers that hold the last blocks
_CLOSE_SECONDS = 30.0  # for writing down what should outlive the process
_UNBOUNDED = np.iinfo(np.int64).max
_row_of = attrgetter("row")


class PagedCache:
    """Made by ``open_cache()``. A context: leaving it frees all sequences."""

    def __init__(
        self,
        *,
        layout: KVLayout,
        pool: BlockPool,
        index: PrefixIndex,
        evictable: Evictable,
        reclaimer: Reclaimer,
        faults: FaultLog,
        access: RowAccess,
        tiers: List[Tier],
        fingerprint: bytes,
        prefix_cache: bool,
        match_inside_pages: bool,
        rewind: int,
    ) -> None:
        self.layout = layout
        self.pool = pool
        self.index = index
        self.tiers = tuple(tiers)
        self.rows = SequenceRows(layout.num_groups)
        self.sequences: dict[int, Sequence] = {}  # by row
        self.evictable = evictable
        self._reclaimer = reclaimer
        self._faults = faults
        self.access = access
        self._fingerprint = fingerprint
        self._prefix_cache = prefix_cache
        self._rewind = rewind
        self._matcher = PrefixMatcher(layout, index, match_inside_pages)
        self._windows = [group.window for group in layout.groups]
        self._has_only_windows = None not in self._windows
        self._root_keys: dict[tuple[str, str, str], ContentKey] = {}
        self._lookups = self._prompt_tokens = self._hit_tokens = self._computed_tokens = 0
        self._hits_by_tier = dict.fromkeys(TierKind, 0)
        self._deduplicated = 0
        self.allocation_failures = 0  # calls that raised OutOfBlocks
        self._is_closed = False
        self.epoch = 0  # of the index: how often everything in it was forgotten
        self.lower: LowerPages | None = None  # the tiers below the device, where there are any
        self.paging = Paging(self)
        self._steps = Steps(self, rewind)
        self.retention: Retainer  # set by whoever opens the cache, as it needs a clock
        self.page_log: PageLog | None = None  # as long as somebody listens
        self.sessions: SessionFiles | None = None  # where named sessions are kept, if a tier outlives the process

    # -- questions ----------------------------------------------------------------------------------------------

    @property
    def arena(self) -> Arena:
        return self.pool.arena

    @property
    def has_prefix_cache(self) -> bool:
        """Whether finished pages stay findable."""
        return self._prefix_cache

    @property
    def num_available(self) -> int:
        """Blocks a call could get: free, or reclaimable."""
        return self.pool.num_free + self._reclaimer.num_reclaimable

    def let_pins_yield(self, may: bool) -> None:
        """Whether pinned pages count as reclaimable, since nothing could go on otherwise."""
        self._reclaimer.pins_yield = may

    @property
    def min_watermark(self) -> int:
        return self._reclaimer.watermarks.min

    def lookup(self, tokens: Iterable[int], scope: Scope = ANY_SCOPE, max_prefix: int | None = None) -> PrefixMatch:
        """How much of the prompt ``tokens`` is on the device: at most ``max_prefix``, and never the last token."""
        ids = token_array(tokens)
        limit = len(ids) - 1
        return self._match(ids, scope, limit if max_prefix is None else min(limit, max_prefix))

    def num_live_blocks(self, match: PrefixMatch) -> int:
        """Blocks of the whole pages of a match that are mapped already: sharing them takes nothing."""
        return len(self._match_blocks(match.nodes, match)) - self._num_cached(match.nodes, match)

    def num_revived_blocks(self, match: PrefixMatch) -> int:
        """Blocks of a match that are cached: mapping them takes them from what is available."""
        nodes = match.nodes if match.inside is None else (*match.nodes, match.inside)
        blocks = self._match_blocks(nodes, match)
        return int((self.pool.is_cached(blocks) & (self._reclaimer.pins_yield | ~self.pool.kept[blocks])).sum())

    def _num_cached(self, nodes: List[NodeId], match: PrefixMatch) -> int:
        return int(self.pool.is_cached(self._match_blocks(nodes, match)).sum())

    def _match_blocks(self, nodes: List[NodeId], match: PrefixMatch) -> np.ndarray:
        found: list[int] = []
        for group, first in enumerate(match.first_page):
            found.extend(block for block in self.index.blocks_in_group(nodes[first:], group) if block is not None)
        return np.array(found, np.int64)

    def num_freeable(self, seq: Sequence) -> int:
        """Blocks that would become available if ``seq`` were freed: nobody else maps or holds them. O(pages)."""
        blocks = [table.mapped_blocks() for table in seq.tables]
        return sum(int(((self.pool.refcount[each] == 1) & (self.pool.pins[each] == 0)).sum()) for each in blocks)

    def num_copies(self, sequences: List[Sequence]) -> np.ndarray:
        """Per sequence: blocks that its next step takes before it may write the begun last page."""
        rows = np.fromiter(map(_row_of, sequences), np.int64, len(sequences))
        begun = self.rows.reserved[rows] % self.layout.page_size != 0
        copies: np.ndarray = (self.pool.is_write_protected(self.rows.tail[:, rows]) & begun).sum(axis=0)
        return copies

    def statistics(self) -> CacheStatistics:
        return read_statistics(self)

    # -- sequences ----------------------------------------------------------------------------------------------

    def sequence(
        self,
        tokens: Iterable[int] | None = None,
        *,
        scope: Scope = ANY_SCOPE,
        max_prefix: int | None = None,
        publish_until: int | None = None,
        came_up: Mapping[int, TierKind] | None = None,
        retain: Iterable[Retention] = (),
        resident_limit: int | None = None,
        non_resident: bool = False,
    ) -> Sequence:
        """A new sequence. With token ids, pages whose content is known are mapped at once (``prefix_tokens``).

        Pages that only a lower tier has are brought up first, and waited for; whoever can't wait promotes them before
        (``lower.promote``) and says which ``came_up``, perhaps none, and from where (``Promotion.page_tier``): then
        what is on the device counts, and nothing is waited for.
        ``max_prefix``: reuse at most so many tokens. ``publish_until``: publish only pages that end at or before this
        position (None: all). ``retain``: see cache/retention.py; ``seq.retained`` answers. Without token ids the
        sequence is written by hand and shares nothing by content.
        ``resident_limit``: see Sequence. ``non_resident``: pages that only a lower tier has, or that exceed that limit,
        are mapped where they lie instead; nothing comes up. Raises ConfigError where that is not possible.
        """
        ids = None if tokens is None else token_array(tokens)
        if ids is not None and len(ids) == 0:
            raise ConfigError("the prompt has no tokens; give at least one, or None to write by hand")
        limit = 0 if ids is None else len(ids) - 1 if max_prefix is None else min(len(ids) - 1, max_prefix)
        if non_resident or resident_limit is not None:
            self.paging.check_limit(MIN_LIMIT if resident_limit is None else resident_limit, ids)
        if ids is not None and self._prefix_cache and self.lower is not None and came_up is None:
            # Before anything is taken: a wait can be interrupted.
            if non_resident:
                self.lower.look(ids, scope, limit)
            elif (promotion := self.lower.bring_up(ids, scope, limit)) is not None:
                came_up = promotion.page_tier
        row = self.rows.take()
        seq = Sequence(self, row, ids, scope)
        seq.tables = tuple(PageTable(self.layout.page_size) for _ in self.layout.groups)
        self.sequences[row] = seq
        if resident_limit is not None:
            seq.resident_limit = resident_limit
        if ids is not None and self._prefix_cache:
            if non_resident:
                adopt_where_they_lie(self, seq, limit)
            else:
                self._adopt(seq, self._match(ids, scope, limit), came_up or {})
            for tier, tokens_there in seq.prefix_by_tier.items():
                self._hits_by_tier[tier] += tokens_there
            seq._root = self.index.enter_root(self._root_key(scope))
            if seq._node is None:
                seq._node = seq._root
            pages = _UNBOUNDED if publish_until is None else publish_until // self.layout.page_size
            self.rows.publish_until[row] = pages
        if ids is not None:
            self._lookups += 1
            self._prompt_tokens += len(ids)
            self._hit_tokens += seq.prefix_tokens
        self.retention.bind(seq, retain)
        return seq

    def content_keys(self, tokens: Iterable[int], scope: Scope = ANY_SCOPE) -> list[ContentKey]:
        """What the whole pages of ``tokens`` are called, whether anything has them or not."""
        ids, page_size = token_array(tokens), self.layout.page_size
        keys = [self._root_key(scope)]
        for label in page_labels(ids, scope, 0, len(ids) // page_size, page_size):
            keys.append(page_key(keys[-1], label[: 4 * page_size], label[4 * page_size :]))
        return keys[1:]

    def _match(self, ids: "array[int]", scope: Scope, limit: int) -> PrefixMatch:
        return self._matcher.match(self.index.find_root(self._root_key(scope)), ids, scope, limit)

    def _root_key(self, scope: Scope) -> ContentKey:
        names = (scope.salt, scope.adapter, scope.adapter_version)
        key = self._root_keys.get(names)
        if key is None:
            if len(self._root_keys) >= 4096:
                self._root_keys.clear()  # bounded: names come from clients
            key = self._root_keys[names] = root_key(self._fingerprint, self.layout.describe(), scope)
        return key

    def _adopt(self, seq: Sequence, match: PrefixMatch, page_tier: Mapping[int, TierKind]) -> None:
        """Maps the pages of a match: minor faults. ``page_tier``: where those had been that were just brought up."""
        if match.num_tokens == 0:
            return
        nodes = [*match.nodes, *([] if match.inside is None else [match.inside])]
        with self._faults.handling(FaultKind.MINOR, sum(len(nodes) - first for first in match.first_page)):
            for group, first in enumerate(match.first_page):
                ids = np.array(self.index.blocks_in_group(nodes[first:], group), np.int32)
                self.pool.retain(ids)
                self.evictable.hit(ids)
                seq.tables[group].map(first, ids)
                self.rows.tail[group, seq.row] = ids[-1]
                self.rows.first_page[group, seq.row] = first
        self.rows.committed[seq.row] = self.rows.reserved[seq.row] = match.num_tokens
        self.rows.published[seq.row] = len(match.nodes)
        seq.prefix_tokens = match.num_tokens
        came_up = {page: tier for page, tier in page_tier.items() if page < len(match.nodes)}
        for tier in came_up.values():
            seq.prefix_by_tier[tier] = seq.prefix_by_tier.get(tier, 0) + self.layout.page_size
        seq.prefix_by_tier[TierKind.DEVICE] = match.num_tokens - len(came_up) * self.layout.page_size
        if match.nodes:
            seq._node = match.nodes[-1]
        if self.lower is not None and self.lower.writes_what_is_used_again:
            self.lower.write_down(self._match_blocks(match.nodes, match).tolist())

    def fork(self, seq: Sequence) -> Sequence:
        self.check_usable(seq)
        self.check_idle(seq, "fork")
        row = self.rows.take()
        self.rows.copy(seq.row, row)
        twin = Sequence(self, row, None if seq.tokens is None else seq.tokens[:], seq.scope)
        twin.tables = tuple(table.copy() for table in seq.tables)
        twin.prefix_tokens, twin.prompt_tokens = seq.prefix_tokens, seq.prompt_tokens
        twin.matched_tokens = seq.matched_tokens
        self.paging.partings.forked(seq, twin)
        twin.priority, twin.tenant = seq.priority, seq.tenant
        twin._node = seq._node
        if seq._root is not None:
            twin._root = self.index.enter_root(self._root_key(seq.scope))
        for table in twin.tables:
            self.pool.retain(table.mapped_blocks())
        self.sequences[row] = twin
        self.retention.bind(twin, seq.wishes)
        return twin

    def free(self, sequences: Iterable[Sequence]) -> None:
        """Gives all pages of these sequences back, the last page of each first, so that leaves age before roots."""
        sequences = list(sequences)
        for seq in sequences:
            self.check_usable(seq)
        if len(set(sequences)) < len(sequences):
            raise ConfigError("a sequence is named twice; free it once")
        for seq in sequences:
            for group, table in enumerate(seq.tables):
                self.paging.partings.unmapped(seq, group, 0, len(table))
                self._give_back(seq, table.mapped_blocks()[::-1])
            self._forget(seq)
        self.retention.let_go(sequences)

    def _forget(self, seq: Sequence) -> None:
        if seq._root is not None:
            self.index.leave_root(seq._root)
        seq.is_freed = True
        seq.tables, seq.away = (), None
        del self.sequences[seq.row]
        self.rows.is_alive[seq.row] = False
        if self.rows.open_steps[seq.row] == 0:
            self.rows.give_back(seq.row)
        seq.row = _FREED

    def _give_back(self, seq: Sequence, blocks: np.ndarray) -> None:
        """One mapping less for each block; blocks that an open step may touch stay MOVING until it has ended."""
        if len(blocks) == 0:
            return
        if self.rows.open_steps[seq.row]:
            for step in self.open_steps:
                if seq in step.sequences:
                    self.pool.pin(blocks)
                    step.held.append(blocks)
        released = self.pool.release(blocks)
        if len(released.unmapped):
            self.evictable.released(released.unmapped, released.cached, seq.use())

    def truncate(self, seq: Sequence, length: int) -> None:
        self.check_usable(seq)
        self.check_idle(seq, "truncate")
        committed = seq.length
        if not 0 <= length <= committed:
            raise ConfigError(f"can't truncate to {length}: the sequence has {committed} tokens")
        for group, window in enumerate(self._windows):
            if first_visible_page(length, window, self.layout.page_size) < self.rows.first_page[group, seq.row]:
                raise ConfigError(
                    f"can't truncate to {length}: pages that a token there needs lie before the window and were given "
                    f"back; open the cache with a larger rewind (it is {self._rewind} tokens)"
                )
        self.paging.partings.check_cut(seq, length)
        self._cut(seq, length)
        self.retention.cut(seq)
        if seq.tokens is not None:
            del seq.tokens[length:]

    def _cut(self, seq: Sequence, length: int) -> None:
        row, page_size = seq.row, self.layout.page_size
        pages = self.layout.num_pages(length)
        for group, table in enumerate(seq.tables):
            self.paging.partings.unmapped(seq, group, pages, len(table))
            self._give_back(seq, table.unmap(pages, len(table))[::-1])
            self.rows.tail[group, row] = max(0, table.snapshot()[pages - 1]) if pages and len(table) == pages else 0
        self.paging.partings.cut(seq, length)
        while (published := int(self.rows.published[row])) > length // page_size or not self._can_stand(seq, published):
            assert seq._node is not None
            seq._node = self.index.parent(seq._node)
            self.rows.published[row] -= 1
        if self._has_only_windows and 0 < self.rows.published[row] <= self.rows.first_page[:, row].min():
            self._leave_index(seq)
        self.rows.committed[row] = min(self.rows.committed[row], length)
        self.rows.reserved[row] = length
        seq.prefix_tokens = min(seq.prefix_tokens, length)

    def _can_stand(self, seq: Sequence, pages: int) -> bool:
        """Whether the node behind ``pages`` pages stays as long as ``seq`` maps them: one of its blocks is mapped."""
        return pages == 0 or seq.away is None or any(table.snapshot()[pages - 1] >= 0 for table in seq.tables)

    # -- steps --------------------------------------------------------------------------------------------------

    def step(self, new_tokens: Mapping[Sequence, int]) -> Step:
        """Opens a step that computes the next ``new_tokens[seq]`` tokens of each sequence.

        Resolves every fault first: maps a block for each new page, copies shared pages that will be written. Raises
        OutOfBlocks (nothing changed) or ConfigError. Use it as a context; leaving it commits the tokens.
        """
        return self.step_over(list(new_tokens), np.fromiter(new_tokens.values(), np.int64, len(new_tokens)))

    def step_over(self, sequences: List[Sequence], counts: np.ndarray) -> Step:
        """``step`` for two parallel lists. REQUIRES: the sequences are distinct."""
        return self._steps.open(sequences, counts)

    @property
    def open_steps(self) -> List[Step]:
        """In the order in which they were opened."""
        return self._steps.open_steps

    def _take(self, needed: int) -> np.ndarray:
        if not self._reclaimer.make_free(needed) and not self._wait_for_free(needed):
            nobody_else = len(self.sequences) <= 1  # could make room
            if not nobody_else or not self._reclaimer.make_free_at_last(needed):
                self.allocation_failures += 1
                counts, reclaimable = self.pool.counts(), self._reclaimer.num_reclaimable
                raise OutOfBlocks(needed, counts.free, counts.pinned, reclaimable, counts.total)
        return self.pool.allocate(needed)

    def _wait_for_free(self, needed: int) -> bool:
        """Blocks that are being copied down are free, or reclaimable, in a moment: worth a wait, but not a long one."""
        if self.lower is None:
            return False
        stop_at = self.lower.migration.now() + _COPY_SECONDS
        while self.lower.migration.num_demotions and self.lower.migration.now() < stop_at:
            self.lower.wait(0.05)
            if self._reclaimer.make_free(needed):
                return True
        return False

    def make_writable(self, seq: Sequence, start: int, stop: int) -> None:
        """Copies the shared or published pages among positions ``start .. stop-1``, so that writing them is private."""
        page_size = self.layout.page_size
        pages = range(start // page_size, self.layout.num_pages(stop)) if stop > start else range(0)
        found = [
            (group, page, int(table.snapshot()[page]))
            for group, table in enumerate(seq.tables)
            for page in pages
            if self.pool.is_write_protected(table.snapshot()[page : page + 1])[0]
        ]
        if not found:
            return
        fresh = self._take(len(found))
        with self._faults.handling(FaultKind.COPY_ON_WRITE, len(found)):
            self.arena.copy(np.array([block for _, _, block in found], np.int32), fresh)
            if self.page_log is not None:
                self.page_log.copied([block for _, _, block in found], fresh.tolist())
            for (group, page, source), target in zip(found, fresh.tolist(), strict=True):
                self._repoint(seq, group, page, source, target)

    def _repoint(self, seq: Sequence, group: int, page: int, source: int, target: int) -> None:
        """Page ``page`` lies in block ``target`` from now on; ``source`` has one mapping less."""
        table = seq.tables[group]
        if self.rows.open_steps[seq.row]:
            table.detach()
        table.replace(page, target)
        if self.rows.tail[group, seq.row] == source:
            self.rows.tail[group, seq.row] = target
        self._give_back(seq, np.array([source], np.int32))

    def _leave_index(self, seq: Sequence) -> None:
        """The last page that ``seq`` published was given back in every group, so nothing keeps its node there.

        It publishes no more, since a page that hangs under a node must be able to rely on it.
        """
        seq._node = seq._root
        self.rows.published[seq.row] = self.rows.publish_until[seq.row] = 0

    # -- the pool's size ----------------------------------------------------------------------------------------

    def resize(self, num_blocks: int) -> None:
        """Grows or shrinks the pool to ``num_blocks``. Shrinking drops cached pages and moves live ones down.

        Raises OutOfBlocks (nothing changed) if live pages need more; ConfigError while a step is open.
        """
        resize_pool(self, num_blocks)

    # -- the prefix index as a whole ----------------------------------------------------------------------------

    def clear_prefix(self) -> int:
        """Forgets all findable content of the device; returns the blocks freed. Running sequences keep their pages,
        unpublished. Lower tiers keep theirs: see ``clear_tiers``."""
        self.epoch += 1
        published = self.index.all_blocks()
        self.evictable.left(published)
        for seq in self.sequences.values():
            self.rows.publish_until[seq.row] = self.rows.published[seq.row] = 0
        self.index.detach_all()
        for seq in self.sequences.values():
            if seq._root is not None:
                self.index.leave_root(seq._root)
            seq._root = seq._node = None
        return len(self.pool.unpublish(published))

    def clear_tiers(self) -> dict[TierKind, int]:
        """Drops what the tiers below hold, of this and of other models; returns the pages dropped, by tier.

        Pages that are being moved stay. Of a remote store, the pages that this process knows of.
        """
        return {} if self.lower is None else {tier.kind: tier.clear() for tier in self.lower.migration.tiers}

    def set_fingerprint(self, fingerprint: bytes) -> None:
        """The model's weights changed: nothing computed before is found from now on."""
        self.clear_prefix()
        self._fingerprint = fingerprint
        self._root_keys.clear()

    def tick(self) -> int:
        """Time has passed while no step ran: what has run out goes. Returns how many blocks became free."""
        if self.lower is not None:
            self.lower.collect()
            self.paging.settle()
        return self.retention.tick()

    # -- named sessions -----------------------------------------------------------------------------------------

    def save_session(self, name: str, tokens: Iterable[int], scope: Scope = ANY_SCOPE, note: str = "") -> None:
        """Keeps ``tokens`` under ``name`` in the disk tier's folder; their pages are found there by content.

        ``note``: kept with them, for the caller's own use. Waits for the disk. Raises ConfigError without a disk tier,
        or where the file can't be written.
        """
        self._sessions().save(name, Session(token_array(tokens), scope, note))

    def load_session(self, name: str) -> Session | None:
        """What was saved under ``name``, maybe by another process; None if nothing. Raises WrongContent if damaged."""
        return self._sessions().load(name)

    def _sessions(self) -> SessionFiles:
        if self.sessions is None:
            raise ConfigError("a named session needs a tier that outlives the process: give a DiskTier")
        return self.sessions

    # -- order --------------------------------------------------------------------------------------------------

    def check_usable(self, seq: Sequence) -> None:
        if seq._cache is not self:
            raise ConfigError("this sequence belongs to another cache")
        if seq.is_freed:
            raise ConfigError("this sequence was freed")

    def check_idle(self, seq: Sequence, verb: str) -> None:
        if self.rows.open_steps[seq.row]:
            raise ConfigError(f"can't {verb} a sequence while a step on it is open; leave the step first")

    def check(self) -> None:
        """Raises InvariantError unless all books agree. O(everything): for tests, and when idle."""
        check_cache(self)

    def close(self) -> None:
        """Frees all sequences; what tiers that outlive the process lack is written. REQUIRES: no step is open."""
        if self.open_steps:
            raise ConfigError("a step is still open; leave it before closing the cache")
        self.free(list(self.sequences.values()))
        self.retention.close()
        if self.lower is not None and not self._is_closed:
            self.paging.close()
            self.lower.close(_CLOSE_SECONDS)
        self._is_closed = True

    def __enter__(self) -> "PagedCache":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
