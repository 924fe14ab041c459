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
from kvpager.cache.books import Books
from kvpager.cache.check import check_cache
from kvpager.cache.copying import make_writable
from kvpager.cache.cutting import truncate
from kvpager.cache.ending import can_end_natively, end_part_by_part
from kvpager.cache.evictable import Evictable
from kvpager.cache.fault import FaultLog
from kvpager.cache.giving_back import clear_prefix
from kvpager.cache.lower_pages import LowerPages
from kvpager.cache.page_log import PageLog
from kvpager.cache.paging import MIN_LIMIT, Paging
from kvpager.cache.prefix_match import PrefixMatch, PrefixMatcher, page_labels
from kvpager.cache.reclaim import Reclaimer
from kvpager.cache.resize import resize_pool
from kvpager.cache.retention import Retainer
from kvpager.cache.retention_terms import Retention
from kvpager.cache.runs import Runs
from kvpager.cache.sequence import Sequence, token_array
from kvpager.cache.sequence_rows import SequenceRows
from kvpager.cache.sharing import adopt, fork, num_live_blocks, num_revived_blocks
from kvpager.cache.statistics import CacheStatistics, read_statistics
from kvpager.cache.step import Step
from kvpager.cache.steps import Steps
from kvpager.errors import ConfigError
from kvpager.memory.arena import Arena
from kvpager.memory.block_pool import BlockPool
from kvpager.memory.layout import KVLayout
from kvpager.prefix.hashing import Scope, page_key, root_key
from kvpager.prefix.index import PrefixIndex
from kvpager.tiers.disk.session_files import Session, SessionFiles
from kvpager.tiers.row_access import RowAccess
from kvpager.tiers.tier import Tier
from kvpager.types import ContentKey, TierKind

ANY_SCOPE = Scope()
_ANY_NAMES = ANY_SCOPE.salt, ANY_SCOPE.adapter, ANY_SCOPE.adapter_version
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
        runs: Runs | None = None,
    ) -> None:
        self.layout = layout
        self.pool = pool
        self.index = index
        self.tiers = tuple(tiers)
        self.rows = SequenceRows(layout.num_groups)
        self.sequences: dict[int, Sequence] = {}  # by row
        self.evictable = evictable
        self._windows = [group.window for group in layout.groups]
        self._has_only_windows = None not in self._windows
        self.has_windows = any(window is not None for window in self._windows)
        self.runs = runs
        self.books = Books(self.rows, pool, index, evictable, layout.page_size, can_end=can_end_natively(self))
        self._reclaimer = reclaimer
        self._faults = faults
        self.access = access
        self._fingerprint = fingerprint
        self._prefix_cache = prefix_cache
        self._rewind = rewind
        self._matcher = PrefixMatcher(layout, index, match_inside_pages, self.books)
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
        return num_live_blocks(self, match)

    def num_revived_blocks(self, match: PrefixMatch) -> int:
        """Blocks of a match that are cached: mapping them takes them from what is available."""
        return num_revived_blocks(self, match)

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
        row, page_size = self.rows.take(), self.layout.page_size
        seq = Sequence(self, row, ids, scope)
        pages = 8 if ids is None else len(ids) // page_size + 8
        seq.tables = self.rows.tables_for(row, page_size, pages)
        self.sequences[row] = seq
        if resident_limit is not None:
            seq.resident_limit = resident_limit
        if ids is not None and self._prefix_cache:
            root = self._root_key(scope)
            if non_resident:
                adopt_where_they_lie(self, seq, limit)
                seq._root = self.index.enter_root(root)
            else:
                seq._root = self.index.enter_root(root)
                match = self._matcher.match(seq._root, ids, scope, limit)
                if match.num_tokens:
                    adopt(self, seq, match, came_up or {})
            if seq.prefix_by_tier:
                for tier, tokens_there in seq.prefix_by_tier.items():
                    self._hits_by_tier[tier] += tokens_there
            if seq._node is None:
                seq._node = seq._root
            self.rows.publish_until[row] = _UNBOUNDED if publish_until is None else publish_until // page_size
        if ids is not None:
            self._lookups += 1
            self._prompt_tokens += len(ids)
            self._hit_tokens += seq.prefix_tokens
        if retain != ():
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
        names = _ANY_NAMES if scope is ANY_SCOPE else (scope.salt, scope.adapter, scope.adapter_version)
        key = self._root_keys.get(names)
        if key is None:
            if len(self._root_keys) >= 4096:
                self._root_keys.clear()  # bounded: names come from clients
            key = self._root_keys[names] = root_key(self._fingerprint, self.layout.describe(), scope)
        return key

    def fork(self, seq: Sequence) -> Sequence:
        self.check_usable(seq)
        self.check_idle(seq, "fork")
        self._check_paged("share no pages")
        return fork(self, seq)

    def free(self, sequences: Iterable[Sequence]) -> None:
        """Gives all pages of these sequences back, the last page of each first, so that leaves age before roots."""
        sequences = list(sequences)
        for seq in sequences:
            self.check_usable(seq)
        if len(sequences) > 1 and len(set(sequences)) < len(sequences):
            raise ConfigError("a sequence is named twice; free it once")
        has_kernels = self.books.native() is not None
        for seq in sequences:
            if not (has_kernels and self.books.end(seq, self.evictable, self.sequences)):
                end_part_by_part(self, seq)
        self.retention.let_go(sequences)

    def truncate(self, seq: Sequence, length: int) -> None:
        self.check_usable(seq)
        self.check_idle(seq, "truncate")
        truncate(self, seq, length)

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

    def make_writable(self, seq: Sequence, start: int, stop: int) -> None:
        """Copies the shared or published pages among positions ``start .. stop-1``, so that writing them is private."""
        make_writable(self, seq, start, stop)

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
        self._check_paged("never move")
        resize_pool(self, num_blocks)

    # -- the prefix index as a whole ----------------------------------------------------------------------------

    def clear_prefix(self) -> int:
        """Forgets all findable content of the device; returns the blocks freed. Running sequences keep their pages,
        unpublished. Lower tiers keep theirs: see ``clear_tiers``."""
        return clear_prefix(self)

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

    def _check_paged(self, why_not: str) -> None:
        if self.runs is not None:
            raise ConfigError(f"sequences in contiguous runs {why_not}; open the cache without contiguous=True")

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
