"""The remote tier: pages as objects of a store that other processes share. Knows no protocol and no network.

What is there is known by hearsay only: by our own stores and loads, and by ``probe``. Verdicts run out, the store drops
objects by rules of its own, and others overwrite them; so a load may always turn out a miss, and what comes is compared
with its key, identity, length and checksum. How much the remote holds is its own affair: it has no victims here.

Circuit breakers (tiers/health.py) keep a store that fails from being asked, one for reading and one for writing. They
count failed calls, not pages. That questions are answered says little: whether pages come, and in time, only loads can
tell.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from kvpager.errors import InvariantError, TierError, TierFull, WrongContent
from kvpager.eviction.policy import History
from kvpager.tiers.health import Health
from kvpager.tiers.remote.calls import RemoteCalls, Ticket, ticket_of
from kvpager.tiers.remote.object_format import ObjectFormat
from kvpager.tiers.remote.object_store import ErrorReply, Missing, ObjectStore, TooLate, Unreachable
from kvpager.tiers.remote.retry import Retry
from kvpager.tiers.remote.verdicts import Verdicts
from kvpager.tiers.tier import Page, Slot, TierStatistics, TierUsage, TransferCounts
from kvpager.tiers.watcher import TierWatcher
from kvpager.types import Clock, ContentKey, PageReason, TierKind

_FULL_PAUSE = 5.0  # seconds without stores after the remote had no room

_KINDS: dict[type[TierError], str] = {
    Unreachable: "unreachable",
    TooLate: "late",
    ErrorReply: "error reply",
    Missing: "missing",
    WrongContent: "wrong content",
    TierFull: "full",
}


class RemoteStore:
    """``prefix``, ``deadline``: of the calls of workers (remote/calls.py). ``max_moving``: pages that may be under way
    in each direction."""

    kind = TierKind.REMOTE
    name = "remote"
    is_persistent = True
    is_exclusive = False  # others may need what came up here
    load_threads = 4  # they wait for the network most of the time
    store_threads = 2
    part_alignment = 1

    def __init__(
        self,
        objects: ObjectStore,
        object_format: ObjectFormat,
        clock: Clock,
        retry: Retry,
        reading: Health,
        writing: Health,
        verdicts: Verdicts,
        *,
        prefix: str = "",
        deadline: float = 1.0,
        max_moving: int = 64,
    ) -> None:
        assert max_moving > 0
        self.page_bytes = object_format.page_bytes
        self._calls = RemoteCalls(objects, object_format, clock, retry, prefix, deadline)
        self._why_not_in_place = object_format.why_not_in_parts()
        self._clock = clock
        self._reading, self._writing = reading, writing
        self._verdicts = verdicts
        self._max_moving = max_moving
        self._numbers = count()
        self._storing: set[ContentKey] = set()
        self._loading: Counter[ContentKey] = Counter()
        self._holds: Counter[ContentKey] = Counter()
        self._held: dict[int, Slot] = {}
        self._held_slot: dict[ContentKey, Slot] = {}  # the same, by key
        self._doomed: set[ContentKey] = set()  # forgotten while they are held
        self._loads_fail = False  # the last one did
        self._last_blame = float("-inf")
        self._counted_call: object = None
        self._full_until = float("-inf")
        self._stored, self._loaded = TransferCounts(), TransferCounts()
        self._failures: Counter[str] = Counter()
        self._refused = self._quarantined = 0

    # -- bookkeeping --------------------------------------------------------------------------------------------

    def contains(self, key: ContentKey) -> bool | None:
        if self._reading.is_open or key in self._storing:
            return False
        return self._verdicts.get(key)

    def learn(self, keys: Sequence[ContentKey], found: Sequence[bool] | None) -> None:
        if found is None:
            self._verdicts.learn(keys, [False] * len(keys))
            return
        if not self._loads_fail:
            self._reading.succeeded()
        self._verdicts.learn(keys, found)

    def declines(self, page: Page) -> bool:
        return False  # the store's own rules say what goes

    def prepare_store(self, page: Page) -> Slot | None:
        if page.key in self._storing or self._verdicts.get(page.key):
            return None
        has_room = len(self._storing) < self._max_moving and self._clock() >= self._full_until
        if not has_room or not self._writing.allows():
            self._refused += 1
            return None
        self._storing.add(page.key)
        return self._slot(page.key)

    def complete_store(self, slot: Slot, error: TierError | None) -> None:
        self._storing.remove(slot.key)
        if self._is_answer(error):
            self._writing.succeeded()
        else:
            self._count_call(self._writing, slot, str(error))
        if error is None:
            self._stored.pages += 1
            self._stored.bytes += self.page_bytes
            self._verdicts.set_there(slot.key, PageReason.COPIED)
            return
        self._stored.failed += 1
        self._verdicts.set_absent(slot.key)
        if isinstance(error, TierFull):
            self._full_until = self._clock() + _FULL_PAUSE

    def prepare_load(self, key: ContentKey) -> Slot | None:
        if self._loading.total() >= self._max_moving or not self.contains(key) or not self._reading.allows():
            return None
        self._loading[key] += 1
        return self._slot(key)

    def complete_load(self, slot: Slot, error: TierError | None) -> None:
        self._loading[slot.key] -= 1
        if not self._loading[slot.key]:
            del self._loading[slot.key]
        self._judge_load(slot, error)
        if error is None:
            self._loaded.pages += 1
            self._loaded.bytes += self.page_bytes
            if self._verdicts.get(slot.key):  # not forgotten meanwhile
                self._verdicts.set_there(slot.key)
            return
        self._note_failed_load(slot.key, error)

    def _note_failed_load(self, key: ContentKey, error: TierError) -> None:
        self._loaded.failed += 1
        if isinstance(error, WrongContent):
            self._quarantined += 1
            self._verdicts.set_wrong(key)
        else:
            self._verdicts.set_absent(key, PageReason.FAILED)

    def why_not_in_place(self) -> str:
        return self._why_not_in_place

    def hold(self, key: ContentKey) -> Slot | None:
        """What others drop is gone all the same; reading it then is an error."""
        if not self.contains(key):
            return None
        slot = self._held_slot.get(key) or self._slot(key)
        self._held[slot.index] = self._held_slot[key] = slot
        self._holds[key] += 1
        return slot

    def let_go(self, slot: Slot, error: TierError | None = None) -> None:
        key = slot.key
        if error is not None and self._verdicts.get(key) is not False:  # else it is known already
            self._judge_load(self._held[slot.index], error)
            self._note_failed_load(key, error)
        self._holds[key] -= 1
        if self._holds[key]:
            return
        del self._holds[key], self._held[slot.index], self._held_slot[key]
        if key in self._doomed:
            self._doomed.remove(key)
            if not self._verdicts.get(key):  # not stored anew
                self._calls.delete_later(key)

    def held(self, indices: np.ndarray) -> list[Slot]:
        return [self._held[index] for index in indices.tolist()]

    def addresses(self, indices: np.ndarray) -> np.ndarray | None:
        return None

    def touch(self, keys: Sequence[ContentKey]) -> None:
        pass  # who goes first is the remote's business

    def history(self, key: ContentKey) -> History | None:
        return None

    def remember(self, pages: Sequence[Page]) -> None:
        pass

    def victims(self, count: int) -> list[Page]:
        return []

    def pages(self) -> list[Page]:
        return []  # what others stored, it can't name

    def forget(self, keys: Sequence[ContentKey]) -> None:
        for key in keys:
            if self._verdicts.get(key):
                self._verdicts.set_absent(key)
                if key in self._holds:
                    self._doomed.add(key)
                else:
                    self._calls.delete_later(key)

    def clear(self) -> int:
        """Drops the pages that this process knows of. What others stored, and it never asked about, stays."""
        known = [key for key in self._verdicts.there() if key not in self._loading]
        self.forget(known)
        return len(known)

    def tick(self) -> None:
        if self._calls.has_answered:
            self._calls.has_answered = False
            self._reading.succeeded()
        self._verdicts.tick()

    def watch(self, watcher: TierWatcher | None) -> None:
        """Of pages that this process believes to be there; as of the last ``tick``, when verdicts run out."""
        self._verdicts.watch(watcher)

    def blame(self, reason: str) -> None:
        self._failures["late"] += 1
        self._last_blame = self._clock()
        self._reading.failed(reason)

    def _slot(self, key: ContentKey) -> Slot:
        return Slot(key, next(self._numbers), place=Ticket(self._clock()))

    def _is_answer(self, error: TierError | None) -> bool:
        """Whether the remote answered as it should, be it with a no. Counts errors."""
        if error is not None:
            self._failures[_KINDS.get(type(error), "other")] += 1
        return error is None or isinstance(error, Missing | TierFull)

    def _judge_load(self, slot: Slot, error: TierError | None) -> None:
        if not self._is_answer(error):
            self._loads_fail = True
            self._count_call(self._reading, slot, str(error))
        elif ticket_of(slot).begun <= self._last_blame:
            self._loads_fail = True  # it came, but nobody waited for it any more
        else:
            self._loads_fail = False
            self._reading.succeeded()

    def _count_call(self, health: Health, slot: Slot, reason: str) -> None:
        call = ticket_of(slot).call
        if call is None or call is not self._counted_call:
            self._counted_call = call
            health.failed(reason)

    # -- bytes, in worker threads -------------------------------------------------------------------------------

    def probe(self, keys: Sequence[ContentKey]) -> list[bool]:
        return self._calls.probe(keys)

    def read(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> list[int | TierError]:
        return self._calls.read(slots, into)

    def read_parts(self, indices: np.ndarray, start: int, into: np.ndarray) -> list[TierError | None]:
        if reason := self.why_not_in_place():
            return [TierError(f"packed: {reason}")] * len(indices)
        return self._calls.read_parts(self.held(indices), start, into)

    def write(self, slots: Sequence[Slot], pages: Sequence[np.ndarray]) -> list[TierError | None]:
        return self._calls.write(slots, pages)

    # -- what it shows ------------------------------------------------------------------------------------------

    def usage(self) -> TierUsage:
        """Blocks: the pages known to be there, and room for transfers. ``capacity_bytes`` is 0: not ours to say."""
        moving = len(self._storing) + self._loading.total()
        known, used = self._verdicts.num_there, len(self._holds)
        cached = known - sum(self._verdicts.get(key) is True for key in self._holds)
        free = 2 * self._max_moving - moving
        return TierUsage(
            kind=self.kind,
            capacity_bytes=0,
            used_bytes=known * self.page_bytes,
            blocks=cached + used + free + moving,
            free=free,
            used=used,
            cached=cached,
            moving=moving,
        )

    def _state(self) -> str:
        if self._reading.state != "ok" or self._writing.state == "ok":
            return self._reading.state
        return f"stores are {self._writing.state}"

    def statistics(self) -> TierStatistics:
        return TierStatistics(
            name=self.name,
            state=self._state(),
            usage=self.usage(),
            pages=self._verdicts.num_there,
            stored=replace(self._stored, seconds=self._calls.write_seconds),
            loaded=replace(self._loaded, seconds=self._calls.read_seconds),
            refused=self._refused,
            quarantined=self._quarantined,
            failures=dict(self._failures),
        )

    def check(self) -> None:
        self._verdicts.check()
        if len(self._storing) > self._max_moving or self._loading.total() > self._max_moving:
            raise InvariantError("more pages move to or from a remote tier than may")
        if any(count < 1 for count in self._holds.values()) or self._holds.keys() != self._held_slot.keys():
            raise InvariantError("a remote tier counts other holds than it has")

    def close(self) -> None:
        for slot in list(self._held.values()):
            while slot.index in self._held:
                self.let_go(slot)
        self._calls.close()
