"""Transfers of pages between the device and the tiers below it. Knows keys and slots; no tokens, no prefix index.

    device --demote--> host --demote--> disk --demote--> remote         one transfer is one page, from a slot that is
       ^                |                 |                 |           held at its source to one that is reserved at
       +-----load-------+-----load--------+------load-------+           its target

A transfer has three moments, and what a reader may see follows from them:

    prepare    bookkeeping thread: both ends are held; the page can be found where it was found before
    move       worker thread: bytes only (``_Move``)
    complete   bookkeeping thread, at the border of a step (``collect``): the page is found at its target, or never was
               there; both ends are let go

The way up is in tiers/promotions.py, and all that is under way in tiers/open_moves.py.

A demoted page keeps its block, which is clean from then on. Nothing here waits for I/O but ``wait`` and ``close``, and
what they waited is counted. Limits on the bytes that move keep the pool reclaimable and the queues short: a demotion
that finds no room in them is refused, not queued, and asked for again when its page is about to be dropped.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum

from kvpager.errors import InvariantError, TierError
from kvpager.tiers.device_pages import DevicePages
from kvpager.tiers.load import Load, Probe
from kvpager.tiers.migration_statistics import MigrationStatistics
from kvpager.tiers.move import Move, Transfer
from kvpager.tiers.mover import Mover
from kvpager.tiers.open_moves import OpenMoves
from kvpager.tiers.promotions import LoadWatcher, Promotions
from kvpager.tiers.tier import LowerTier, Page, Slot
from kvpager.types import Clock, ContentKey, TierKind

_CLEAN_SHARE = 16  # one slot in so many is kept free or clean ahead of need
_CLEAN_AT_ONCE = 64  # pages looked at for that, each time some have come
_PATIENCE = 0.1  # seconds between two looks at the clock


class WriteBack(Enum):
    """When a page is copied to the next tier. THROUGH: as soon as it is full. BACK: when it is about to be dropped.
    SELECTIVE: when it is used a second time, or else when it is about to be dropped while there is time."""

    THROUGH = "through"
    BACK = "back"
    SELECTIVE = "selective"


class Migration:
    """``max_moving_bytes``: of demotions and of loads under way, each. ``load_deadline``: seconds, or None."""

    def __init__(
        self,
        device: DevicePages,
        tiers: Sequence[LowerTier],
        mover: Mover,
        clock: Clock,
        *,
        write_back: WriteBack,
        max_moving_bytes: int,
        load_deadline: float | None,
    ) -> None:
        self.tiers = tuple(tiers)
        self._copying = [at for at, tier in enumerate(tiers) if not tier.is_exclusive]  # also what the device keeps
        self.write_back = write_back
        self._device = device
        self._clock = clock
        self.moves = OpenMoves(device, mover)
        self.up = Promotions(device, self.tiers, self.moves, clock, load_deadline)
        self._max_moving_bytes = max_moving_bytes
        self._demoting_bytes = 0
        self._sinking: set[ContentKey] = set()  # pages that are being copied down
        self._refused = self._lost = self._not_worth_keeping = 0
        self._demoted = Counter[TierKind]()
        self._io_wait_seconds = self._idle_seconds = 0.0

    # -- questions ----------------------------------------------------------------------------------------------

    def find(self, key: ContentKey) -> LowerTier | None:
        """The nearest tier that has a page."""
        for tier in self.tiers:
            if tier.contains(key):
                return tier
        return None

    def unknown(self, keys: Sequence[ContentKey]) -> tuple[LowerTier, list[ContentKey]] | None:
        """A tier that would have to be asked about some of these keys, which no tier is known to have."""
        for tier in (tier for tier in self.tiers if tier.kind is TierKind.REMOTE):
            asked = [key for key in keys if tier.contains(key) is None and self.find(key) is None]
            if asked:
                return tier, asked
        return None

    @property
    def must_ask(self) -> bool:
        """Whether a tier may have pages that its books don't know."""
        return any(tier.kind is TierKind.REMOTE for tier in self.tiers)

    @property
    def can_copy_ahead(self) -> bool:
        """Whether any tier may have pages that the device keeps."""
        return bool(self._copying)

    def is_unwanted(self, page: Page, first: int = 0) -> bool:
        """Whether every tier from ``first`` on is full of pages that are worth as much."""
        return all(tier.declines(page) for tier in self.tiers[first:])

    @property
    def has_room_for_load(self) -> bool:
        return self.up.moving_bytes < self._max_moving_bytes

    def now(self) -> float:
        """Seconds of the injected clock."""
        return self._clock()

    @property
    def num_demotions(self) -> int:
        """Jobs under way that hold blocks of the device, to copy them down."""
        return self.moves.num_demotions

    @property
    def num_open(self) -> int:
        """Jobs under way."""
        return self.moves.num_jobs

    def held_blocks(self) -> list[int]:
        """Blocks that demotions hold, one entry for each."""
        return self.moves.held_blocks()

    def moving_keys(self) -> set[ContentKey]:
        """Pages that are under way in any direction."""
        return self.moves.moving_keys()

    def statistics(self) -> MigrationStatistics:
        return MigrationStatistics(
            precision=self._device.precision,
            moving_bytes=self._demoting_bytes + self.up.moving_bytes,
            queued_jobs=self.moves.num_jobs,
            refused=self._refused,
            lost=self._lost,
            late=self.up.late,
            io_wait_seconds=self._io_wait_seconds,
            idle_seconds=self._idle_seconds,
            not_worth_keeping=self._not_worth_keeping,
            demoted=dict(self._demoted),
            promoted=dict(self.up.promoted),
            page_bytes=self._device.page_bytes,
        )

    # -- down ---------------------------------------------------------------------------------------------------

    def demote(self, pages: Iterable[tuple[Page, int]], *, leaving: bool) -> list[int]:
        """Begins to copy pages from their blocks to the nearest tier that takes them; returns the blocks accepted.

        ``leaving``: the device is about to drop them. Pages that a tier has, or is getting, are left out, and so is
        what exceeds the limit.
        """
        among = range(len(self.tiers)) if leaving else self._copying
        return self._send_down(((page, block) for page, block in pages if self.find(page.key) is None), among)

    def rescue(self, page: Page, block: int) -> bool:
        """Copies a page now, in this thread, into a tier that is memory: its block can be given away at once."""
        if page.key in self._sinking:
            return True
        for tier in self.tiers:
            if tier.kind is not TierKind.HOST:
                continue
            slot = tier.prepare_store(page)
            if slot is None:
                continue
            self._demoting_bytes += self._device.page_bytes
            self._sinking.add(page.key)
            transfer = Transfer(page, self._device.hold([block], [page])[0], slot)
            self._complete_move(self.moves.run_now(self._device, tier, [transfer]))
            return transfer.error is None
        if self.is_unwanted(page):
            self._not_worth_keeping += 1
        else:
            self._lost += 1
        return False

    def remember(self, pages: Sequence[Page]) -> None:
        """The device drops these pages; the tiers that have them go on with what it knew of them."""
        for tier in self.tiers:
            tier.remember(pages)

    def _send_down(self, pages: Iterable[tuple[Page, int]], among: Sequence[int]) -> list[int]:
        """Begins to copy blocks of the device to the nearest tier ``among`` these; returns the blocks accepted."""
        batches: dict[int, list[tuple[Page, int, Slot]]] = {}
        accepted = []
        for page, block in pages:
            place = self._room(page, among)
            if place is None:
                continue
            at, target = place
            batch = batches.setdefault(at, [])
            batch.append((page, block, target))
            accepted.append(block)
            if len(batch) == self.moves.batch_pages:  # a worker moves it while the next one is prepared
                self._send_batch(at, batches.pop(at))
        for at, batch in batches.items():
            self._send_batch(at, batch)
        return accepted

    def _send_batch(self, at: int, batch: list[tuple[Page, int, Slot]]) -> None:
        sources = self._device.hold([block for _, block, _ in batch], [page for page, _, _ in batch])
        transfers = [Transfer(page, source, target) for (page, _, target), source in zip(batch, sources, strict=True)]
        self.moves.submit(self._device, self.tiers[at], transfers)

    def _room(self, page: Page, among: Sequence[int]) -> tuple[int, Slot] | None:
        """A slot in the nearest tier ``among`` these that takes it; None where a tier is getting the page already."""
        if page.key in self._sinking:
            return None
        if self._demoting_bytes < self._max_moving_bytes:
            for at in among:
                slot = self.tiers[at].prepare_store(page)
                if slot is not None:
                    self._demoting_bytes += self._device.page_bytes
                    self._sinking.add(page.key)
                    return at, slot
        self._refused += not all(self.tiers[at].declines(page) for at in among)
        return None

    def _pass_on(self, at: int, pages: Iterable[Page], first: int) -> list[Page]:
        """Begins to copy pages that tier ``at`` has to the nearest tier from ``first`` on that takes them.

        Returns those for which there was no room. Pages that one of these tiers has are left out.
        """
        source, batches, refused = self.tiers[at], dict[int, list[Transfer]](), list[Page]()
        for page in pages:
            if not source.contains(page.key) or self._is_kept(page.key, first):
                continue
            place = self._room(page, range(first, len(self.tiers)))
            if place is None:
                refused.append(page)
                continue
            below, target = place
            held = source.prepare_load(page.key)
            if held is None:
                self._end_demotion(below, page, target, TierError("the page must not be read now"))
                continue
            batches.setdefault(below, []).append(Transfer(page, held, target))
        for below, transfers in batches.items():
            self.moves.submit(source, self.tiers[below], transfers)
        return refused

    def _end_demotion(self, at: int, page: Page, target: Slot, error: TierError | None) -> None:
        self._demoting_bytes -= self._device.page_bytes
        self._sinking.discard(page.key)
        self.tiers[at].complete_store(target, error)
        self._demoted[self.tiers[at].kind] += error is None

    # -- up -----------------------------------------------------------------------------------------------------

    def load(self, pages: Sequence[Page], blocks: Sequence[int]) -> Load:
        """Begins to fill blocks with pages. REQUIRES: the caller holds the blocks until the load is done."""
        return self.up.load(pages, blocks)

    def probe(self, tier: LowerTier, keys: Sequence[ContentKey]) -> Probe:
        """Asks a tier about keys it does not know; the answer is in its books once the probe is done."""
        return self.up.probe(tier, keys)

    @property
    def watcher(self) -> LoadWatcher | None:
        """Is told of each page that comes up."""
        return self.up.watcher

    @watcher.setter
    def watcher(self, watcher: LoadWatcher | None) -> None:
        self.up.watcher = watcher

    def came_up(self, keys: Sequence[ContentKey]) -> None:
        """The device has published these pages: exclusive tiers drop theirs."""
        for tier in self.tiers:
            if tier.is_exclusive:
                tier.forget(keys)

    # -- the border of a step -----------------------------------------------------------------------------------

    def collect(self) -> None:
        """Completes what has ended. Waits for nothing."""
        self._complete(self.moves.collect())

    def wait(self, timeout: float, *, idle: bool = False) -> None:
        """Waits up to ``timeout`` seconds for something to end, and completes it."""
        begin = self._clock()
        jobs = self.moves.collect(timeout)
        if idle:
            self._idle_seconds += self._clock() - begin
        else:
            self._io_wait_seconds += self._clock() - begin
        self._complete(jobs)

    def _complete(self, jobs: Iterable[object]) -> None:
        for job in jobs:
            if isinstance(job, Probe):
                self.up.complete_probe(job)
            elif isinstance(job, Move):
                self._complete_move(job)
        self.up.blame_the_late()
        for tier in self.tiers:
            tier.tick()

    def _complete_move(self, move: Move) -> None:
        move.spread_error()
        if move.target is self._device:
            self.up.complete(move)
            self.moves.ended(move)
        else:
            self._complete_demotions(move, self._place(move.target))

    def _complete_demotions(self, move: Move, at: int) -> None:
        for transfer in move.transfers:
            self._end_demotion(at, transfer.page, transfer.target, transfer.error)
            if move.source is not self._device:
                fault = transfer.error if transfer.is_fault_of_source else None
                self.tiers[self._place(move.source)].complete_load(transfer.source, fault)
        self.moves.ended(move)
        if move.source is self._device:  # last, for whoever hears of it may drop the block, and then ask who has it
            self._device.let_go([transfer.source for transfer in move.transfers])
        if at + 1 < len(self.tiers):
            if self.write_back is WriteBack.THROUGH:
                self._pass_on(at, [transfer.page for transfer in move.transfers if transfer.error is None], at + 1)
            self._clean_ahead(at)

    def _clean_ahead(self, at: int) -> None:
        """Tier ``at`` has taken pages, so it will drop others: those are copied further down while there is time."""
        usage = self.tiers[at].usage()
        low = max(1, usage.blocks // _CLEAN_SHARE)
        if usage.free < low and self._demoting_bytes < self._max_moving_bytes:
            victims = self.tiers[at].victims(min(low, _CLEAN_AT_ONCE))
            self._pass_on(at, [page for page in victims if not self.is_unwanted(page, at + 1)], at + 1)

    # -- inside -------------------------------------------------------------------------------------------------

    def _place(self, tier: object) -> int:
        return next(at for at, each in enumerate(self.tiers) if each is tier)

    # -- the end ------------------------------------------------------------------------------------------------

    def drain(self, seconds: float) -> bool:
        """Waits until nothing moves any more, at most ``seconds``. Whether that was reached."""
        stop_at = self._clock() + seconds
        while self.moves.num_jobs and (left := stop_at - self._clock()) > 0:
            self.wait(min(_PATIENCE, left))
        return self.moves.num_jobs == 0

    def flush(self, resident: Sequence[tuple[Page, int]], seconds: float) -> None:
        """Copies what only the device and passing tiers have to a tier that outlives the process, as far as there is
        room and time. ``resident``: pages of the device and their blocks, which must stay meanwhile.
        """
        first = next((at for at, tier in enumerate(self.tiers) if tier.is_persistent), None)
        if first is None:
            return
        stop_at = self._clock() + seconds
        blocks, passing = dict(resident), {at: self.tiers[at].pages() for at in range(first)}
        while self._clock() < stop_at:
            blocks = {page: block for page, block in blocks.items() if not self._is_kept(page.key, first)}
            accepted = set(self._send_down(blocks.items(), range(first, len(self.tiers))))
            blocks = {page: block for page, block in blocks.items() if block not in accepted}
            passing = {at: self._pass_on(at, pages, first) for at, pages in passing.items()}
            if not self.moves.num_jobs:
                return  # all is there, or nothing takes it
            self.wait(min(_PATIENCE, stop_at - self._clock()))

    def _is_kept(self, key: ContentKey, first: int) -> bool:
        return any(tier.contains(key) for tier in self.tiers[first:])

    def close(self, seconds: float) -> None:
        """Ends the threads and closes the tiers. What still moves after ``seconds`` is abandoned, and the tiers at both
        ends of it stay open: a worker may yet come back and touch them.
        """
        stop_at = self._clock() + seconds
        self.drain(seconds)
        self.moves.mover.close(max(0.0, stop_at - self._clock()))
        busy = {id(end) for move in self.moves for end in (move.source, move.target)}
        busy |= {id(tier) for tier in self.up.asked}
        for tier in self.tiers:
            if id(tier) not in busy:
                tier.close()

    def check(self) -> None:
        """Raises InvariantError unless the bytes counted as moving are those of the open transfers (I18, I19)."""
        moves = list(self.moves)
        down = [transfer.page.key for move in moves if move.target is not self._device for transfer in move.transfers]
        up = sum(len(move.transfers) for move in moves if move.target is self._device)
        if len(set(down)) < len(down) or set(down) != self._sinking:
            raise InvariantError("I18: a page moves down twice, or it is not known which pages do")
        size = self._device.page_bytes
        if (up * size, len(down) * size) != (self.up.moving_bytes, self._demoting_bytes):
            raise InvariantError("I19: the bytes that move are counted wrong")
        for tier in self.tiers:
            tier.check()
