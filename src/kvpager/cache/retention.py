"""Retentions: what users want kept, ranked or gone, page by page, on every tier, for how long.

    pin        not dropped while anything else can go          priority   0 goes first, 100 last, 50 is everyone's
    seconds    how long pin and priority hold                  ttl        the content is gone from every tier so many
                                                                          seconds after it was let go of
A retention given with a sequence covers its pages as they come, and its times begin when the sequence is freed; one
given by ``retain`` covers tokens, there or not, and its times begin at once. Pages are named by content key, so that
what is said of one holds wherever it is. Time passes in ``tick``, which the cache calls at the border of each step.

It knows no order (eviction/partitioned.py does) and no quotas (cache/quotas.py); content whose time is over goes by
cache/doomed_pages.py.
"""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from kvpager.cache.doomed_pages import DoomedPages
from kvpager.cache.quotas import Quotas
from kvpager.cache.retained_pages import PageWishes, RetainedPages
from kvpager.cache.retention_terms import Retained, Retention, RetentionStatistics, Verdict
from kvpager.cache.sequence import token_array
from kvpager.errors import ConfigError, InvariantError
from kvpager.eviction.policy import EvictionPolicy
from kvpager.prefix.hashing import Scope
from kvpager.types import Clock, ContentKey

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache
    from kvpager.cache.sequence import Sequence as KVSequence

_NO_SCOPE = Scope()


@dataclass(slots=True, eq=False)
class _Record:
    """A retention in force. ``pinned``: pages from the first of the sequence on; ``named``: those of the range."""

    id: int
    wish: Retention
    first: int  # page where the range begins
    num_pages: int = 0  # of the sequence, that were looked at
    pinned: dict[ContentKey, PageWishes] = field(default_factory=dict)
    named: dict[ContentKey, PageWishes] = field(default_factory=dict)
    reason: str = ""  # why a part is left out
    num_pinned: int = 0  # pages of the sequence as it is, from its first on
    is_full: bool = False  # no more is pinned
    has_lost_rank: bool = False  # its seconds are over
    is_open: bool = False  # its sequence is not freed: pages may come, and no time has begun

    @property
    def size(self) -> int:
        return len(self.pinned) + len(self.named)


class Retainer:
    """The retentions of one cache, ``cache.retention``. ``make``: an eviction policy by name, over so many blocks.

    ``pinned_share``: of the pool, that may be pinned at most.
    """

    def __init__(
        self, cache: "PagedCache", clock: Clock, make: Callable[[str, int], EvictionPolicy], pinned_share: float
    ) -> None:
        if not 0 <= pinned_share <= 1:
            raise ConfigError(f"pinned_share is a share of the pool between 0 and 1, not {pinned_share}")
        self._cache = cache
        self._clock = clock
        self._pages = RetainedPages(cache, make)
        self._quotas = Quotas(cache, self._pages)
        self._pinned_share = pinned_share
        self._records: dict[int, _Record] = {}
        self._bound: dict[KVSequence, list[_Record]] = {}
        self._due: list[tuple[float, int, bool]] = []  # a heap: when, whose, and whether the content ends then
        self._next_id = self._size = 0
        self._doomed = DoomedPages(cache, self._pages)
        self.is_used = False

    # -- what users call ----------------------------------------------------------------------------------------

    def retain(
        self,
        tokens: Iterable[int],
        start: int = 0,
        stop: int | None = None,
        *,
        scope: Scope = _NO_SCOPE,
        pin: bool = False,
        priority: int | None = None,
        seconds: float | None = None,
        ttl: float | None = None,
    ) -> Retained:
        """Retains the pages of ``tokens[start:stop]``, there or not. Times begin now; see ``Retention``."""
        return self._begin(Retention(start, stop, pin, priority, seconds, ttl), token_array(tokens), scope, None)

    def release(self, id: int) -> bool:
        """Ends a retention: its pages are ordinary again, and no time to live runs. False if it is over already."""
        record = self._records.get(id)
        if record is None:
            return False
        self._end(record)
        self.tick()
        return True

    def get(self, id: int) -> Retained | None:
        """What a retention in force covers now; None if it is over."""
        record = self._records.get(id)
        return None if record is None else self._answer(record)

    def set_quota(self, tenant: str, capacity: int | str | None = None, *, weight: float = 1.0) -> Retained:
        """What a tenant may hold on each tier: bytes, or a share (``"10%"``) of each; None: no limit. ``weight``: of
        its fair share among equals. What it holds beyond goes at once, but for live and pinned pages.
        """
        self._use()
        reason = self._quotas.set(tenant, capacity, weight)
        self.tick()
        return Retained(None, Verdict.REFUSED if reason else Verdict.ACCEPTED, reason)

    def tick(self) -> int:
        """Time has passed: what has run out goes. Returns how many blocks became free."""
        if not self.is_used:
            return 0
        free, now = self._cache.pool.num_free, self._clock()
        while self._due and self._due[0][0] <= now:
            _, id, is_content = heappop(self._due)
            record = self._records.get(id)
            if record is not None:
                self._run_out(record, is_content)
        self._doomed.tick()
        self._quotas.enforce()
        return self._cache.pool.num_free - free

    def statistics(self) -> RetentionStatistics | None:
        """None where nothing was ever retained."""
        if not self.is_used:
            return None
        return RetentionStatistics(
            retentions=len(self._records),
            pages=len(self._pages),
            pinned=self._pages.num_pinned,
            max_pinned=self.max_pinned,
            dropped_by_ttl=self._doomed.num_dropped,
            dropped_by_quota=self._quotas.dropped,
            pins_yielded=self._cache._reclaimer.pins_yielded,
            tenants=self._quotas.usage(),
        )

    @property
    def num_pinned(self) -> int:
        """Blocks' worth of pages that are pinned, there or not."""
        return self._pages.num_pinned

    @property
    def max_pinned(self) -> int:
        """Blocks' worth of pages that may be pinned together."""
        return int(self._pinned_share * self._cache.pool.num_blocks)

    @property
    def max_size(self) -> int:
        """How often pages may be named by all retentions together."""
        return 4 * self._pages.num_places

    # -- what the cache calls -----------------------------------------------------------------------------------

    def bind(self, seq: "KVSequence", wishes: Iterable[Retention]) -> None:
        """Retentions for the pages of a sequence, also those to come. ``seq.retained`` has the answers."""
        for wish in wishes:
            answer = self._begin(wish, seq.tokens, seq.scope, seq)
            seq.retained = (*seq.retained, answer)
            seq.wishes = (*seq.wishes, wish)

    def grown(self, seq: "KVSequence") -> None:
        """A sequence published pages."""
        records = [record for record in self._bound.get(seq, ()) if record.is_open]
        published = int(self._cache.rows.published[seq.row])
        for record in records:
            stop = self._last_page(record.wish.stop, published)
            if stop > record.num_pages:
                self._extend(record, self._pages.of_sequence(seq, record.num_pages, stop, published))
        self._answer_again(seq, records)

    def cut(self, seq: "KVSequence") -> None:
        """A sequence was truncated: what it held there stays retained, and so will be what comes in its place."""
        records = [record for record in self._bound.get(seq, ()) if record.is_open]
        published = int(self._cache.rows.published[seq.row])
        for record in records:
            record.num_pages = min(record.num_pages, published)
            if record.num_pinned > published:
                record.num_pinned, record.is_full, record.reason = published, False, ""
        self._answer_again(seq, records)
        if self.is_used:
            self.tick()

    def _answer_again(self, seq: "KVSequence", records: list[_Record]) -> None:
        answers = {record.id: self._answer(record) for record in records}
        seq.retained = tuple(each if each.id is None else answers.get(each.id, each) for each in seq.retained)

    def let_go(self, sequences: Iterable["KVSequence"]) -> None:
        """These were freed: the times of their retentions begin."""
        if not self.is_used:
            return
        now = self._clock()
        for seq in sequences:
            for record in self._bound.pop(seq, ()):
                if record.is_open:
                    record.is_open = False
                    wish = record.wish
                    if wish.pin or wish.seconds is not None or wish.ttl is not None:
                        self._start(record, now)
                    else:
                        self._end(record, keeps_rank=True)  # until another request uses the pages
        self.tick()

    def suspend(self, seq: "KVSequence") -> None:
        """A request will go on with another sequence: only times to live outlast this one."""
        for record in self._bound.get(seq, ()):
            if record.wish.ttl is None and record.is_open:
                self._end(record, keeps_rank=True)

    def close(self) -> None:
        """No content that has a time to live outlives the cache, as no pin does. REQUIRES: no sequences."""
        for record in list(self._records.values()):
            self._run_out(record, is_content=record.wish.ttl is not None)
        self._doomed.close()

    # -- beginning and growing ----------------------------------------------------------------------------------

    def _begin(self, wish: Retention, tokens: "array[int] | None", scope: Scope, seq: "KVSequence | None") -> Retained:
        if tokens is None or not self._cache.has_prefix_cache:
            return _refused("nothing is kept here: there is no prefix cache, or there are no token ids")
        size, groups = self._cache.layout.page_size, self._cache.layout.num_groups
        first, known = wish.start // size, len(tokens) // size
        stop = self._last_page(wish.stop, known)
        if stop <= first and seq is None:
            return _refused(f"these tokens fill no page of {size}")
        self._use()
        is_named = wish.priority is not None or wish.ttl is not None
        wanted = groups * (is_named * max(0, stop - first) + wish.pin * stop)
        if self._size + wanted > self.max_size and self._size - self._sweep() + wanted > self.max_size:
            return _refused(f"retentions may name pages {self.max_size} times, and {self._size} are named")
        record = _Record(self._next_id, wish, first, is_open=seq is not None)
        self._next_id += 1
        self._records[record.id] = record
        self._extend(record, self._pages.of_tokens(tokens, scope, stop))
        if wish.pin and wish.priority is None and wish.ttl is None and record.is_full and self._end_of(record) <= first:
            self._end(record)
            return _refused(record.reason)
        left = (len(tokens) if wish.stop is None else wish.stop) - stop * size
        if seq is None and left > 0 and not record.reason:
            record.reason = f"the last {left} tokens fill no page"
        if seq is None:
            self._start(record, self._clock())
        else:
            self._bound.setdefault(seq, []).append(record)
        return self._answer(record)

    def _use(self) -> None:
        if not self.is_used:
            self.is_used = True
            self._pages.begin()

    def _last_page(self, stop: int | None, known: int) -> int:
        """Behind the page that holds token ``stop - 1``, or behind the last of ``known`` pages."""
        return known if stop is None else min(known, -(-stop // self._cache.layout.page_size))

    def _sweep(self) -> int:
        """Ends retentions without an end whose pages are nowhere; returns how often they named a page."""
        swept = 0
        for record in list(self._records.values()):
            wish = record.wish
            if record.is_open or wish.pin or wish.seconds is not None or wish.ttl is not None:
                continue
            if not any(self._pages.is_anywhere(each.key) for each in record.named.values()):
                swept += record.size
                self._end(record)
        return swept

    def _extend(self, record: _Record, pages: list[list[PageWishes]]) -> None:
        """The retention covers these pages too, which follow those it has; pins as far as they may."""
        wish = record.wish
        named = [each for page in pages[max(0, record.first - record.num_pages) :] for each in page]
        named = [each for each in named if each.key not in record.named]  # after a truncation it may be the same again
        record.num_pages += len(pages)
        before = record.size
        for page in pages if wish.pin and not record.is_full else ():
            if self._pages.num_pinned + sum(each.pins == 0 for each in page) > self.max_pinned:
                record.is_full = True
                taken, most = self._pages.num_pinned, self.max_pinned
                record.reason = f"pinned are {taken} pages of at most {most}, so the rest of these is not"
                break
            for each in page:
                if each.key not in record.pinned:
                    self._pages.pin(each)
                    record.pinned[each.key] = each
            record.num_pinned += 1
        for each in named:
            if wish.priority is not None:
                self._pages.rank(each, wish.priority)
            if wish.ttl is not None:
                each.lives += 1
                self._doomed.spare(each)
        if wish.priority is not None or wish.ttl is not None:
            record.named |= {each.key: each for each in named}
        self._size += record.size - before
        for page in pages:
            for each in page:
                self._pages.close(each)  # those of which nothing is wanted

    def _end_of(self, record: _Record) -> int:
        """Behind the last page for which all holds that was wanted."""
        return record.num_pinned if record.is_full else record.num_pages

    def _answer(self, record: _Record) -> Retained:
        size, stop = self._cache.layout.page_size, self._end_of(record)
        verdict = Verdict.CLIPPED if record.reason else Verdict.ACCEPTED
        first = min(record.first, stop)
        return Retained(record.id, verdict, record.reason, first * size, stop * size, stop - first)

    # -- ending -------------------------------------------------------------------------------------------------

    def _start(self, record: _Record, now: float) -> None:
        """Its times begin."""
        if record.wish.seconds is not None:
            heappush(self._due, (now + record.wish.seconds, record.id, False))
        if record.wish.ttl is not None:
            heappush(self._due, (now + record.wish.ttl, record.id, True))

    def _run_out(self, record: _Record, is_content: bool) -> None:
        """The end of its seconds, or of its pages' content."""
        if not is_content and record.wish.ttl is not None:
            self._let_rank_go(record)
            return
        for each in record.named.values() if is_content else ():
            if each.lives == 1:  # no other retention gives it longer
                self._doomed.add(each)
        self._end(record)

    def _let_rank_go(self, record: _Record, *, keeps_rank: bool = False) -> None:
        """No pin and no priority from now on."""
        self._size -= len(record.pinned)
        for each in record.pinned.values():
            self._pages.unpin(each)
        if record.wish.priority is not None and not record.has_lost_rank:
            for each in record.named.values():
                self._pages.unrank(each, record.wish.priority, is_kept=keeps_rank)
        record.has_lost_rank = True
        pinned, record.pinned = record.pinned, {}
        for each in pinned.values():
            self._pages.close(each)

    def _end(self, record: _Record, *, keeps_rank: bool = False) -> None:
        self._let_rank_go(record, keeps_rank=keeps_rank)
        del self._records[record.id]
        record.is_open = False
        self._size -= len(record.named)
        for each in record.named.values():
            each.lives -= record.wish.ttl is not None
            self._pages.close(each)

    # -- order --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises InvariantError unless pages know exactly what the retentions in force want of them."""
        wanted: dict[ContentKey, list[int]] = {}
        for record in self._records.values():
            for each in record.pinned.values():
                wanted.setdefault(each.key, [0, 0, 0])[0] += 1
            for each in record.named.values():
                counts = wanted.setdefault(each.key, [0, 0, 0])
                counts[1] += record.wish.ttl is not None
                counts[2] += record.wish.priority is not None and not record.has_lost_rank
        self._pages.check(wanted, self._doomed.by_key)
        if self._size != sum(record.size for record in self._records.values()):
            raise InvariantError("the pages that retentions name are counted wrong")


def _refused(reason: str) -> Retained:
    return Retained(None, Verdict.REFUSED, reason)
