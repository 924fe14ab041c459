"""What every level of storage offers. Knows no sequences and no requests.

Two threads meet in a lower tier, and each has its own calls:

    bookkeeping thread    contains, prepare_*, complete_*, hold, let_go, usage, check: numbers, no I/O and no wait
    worker threads        write, read, read_parts, probe: bytes of slots that were prepared or held; they change no book

so no book needs a lock. A slot is prepared, its bytes are moved, and it is completed, always in this order; a slot that
was prepared is completed exactly once, also if moving its bytes failed. A slot that running sequences hold keeps its
page where it is, for them to read as often as they like: in place, or part by part.

Lower tiers are found by content key: full pages are immutable, so a copy under a key is right for ever. A failed store
is a page that is not there; a failed load is a miss, and the tier forgets the page.

Where the eviction policy judges, a page moves with its history, and a full tier declines one that is worth no more than
what would have to go for it. An exclusive tier holds no page that came up from it: whoever brought that up has it drop
its copy once the device's is published, and the page goes down again when it leaves the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from kvpager.errors import TierError
from kvpager.eviction.policy import History
from kvpager.tiers.watcher import TierWatcher
from kvpager.types import ContentKey, TierKind


@dataclass(frozen=True, slots=True)
class TierUsage:
    """Bytes a tier may hold and holds, and its blocks by state; free + used + cached + moving = blocks (I1)."""

    kind: TierKind
    capacity_bytes: int
    used_bytes: int
    blocks: int
    free: int
    used: int
    cached: int
    moving: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page as the tiers know it. ``parent``: the key of the page before it; leaves are dropped before their parents.

    With several layer groups each group's block of a page has a key of its own (prefix/hashing.py, ``block_key``).
    ``history``: what a policy that judges knows of it; None of a page that is in use, or that was found at a restart.
    """

    key: ContentKey
    parent: ContentKey
    group: int = 0
    history: History | None = field(default=None, compare=False)


@dataclass(slots=True)
class Slot:
    """One end of a transfer: where a tier keeps the bytes of one page.

    ``index``: block or slot number, the tier's own. ``memory``: uint8 [page_bytes], the bytes themselves, where a
    processor can reach them; None where they are moved by ``write`` and ``read``. ``checksum``: CRC-64 of the page's
    bytes, where it is known. ``place``: whatever else the tier needs to find it again. ``seconds``: what moving it
    took of a worker's time, known when the slot is completed.
    """

    key: ContentKey
    index: int
    memory: np.ndarray | None = None
    checksum: int | None = None
    place: object = None
    seconds: float = 0.0


class PageSource(Protocol):
    """Where transfers come from: the device or a lower tier. One call of a worker thread moves a batch."""

    kind: TierKind
    name: str
    page_bytes: int

    def read(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> "list[int | TierError]":
        """Fills ``into[i]`` with page ``slots[i]`` and returns its checksum, or why it can't be had.

        REQUIRES: each slot was prepared for loading. What a failed read left in ``into`` is undefined.
        """
        ...


class PageTarget(Protocol):
    """Where transfers go."""

    kind: TierKind
    name: str
    page_bytes: int

    def write(self, slots: Sequence[Slot], pages: Sequence[np.ndarray]) -> "list[TierError | None]":
        """Stores ``pages[i]`` in ``slots[i]``. Where a slot has a checksum, the bytes must have it. Errors, or None.

        REQUIRES: each slot was prepared for storing and has no ``memory``.
        """
        ...


@dataclass(slots=True)
class TransferCounts:
    """Transfers in one direction since the tier was opened. ``seconds``: as long as workers were at it, summed up."""

    pages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class TierStatistics:
    """What a lower tier shows of itself.

    ``state``: "ok", or what is wrong and since when it is not used. ``hits``: pages that were asked for and found.
    ``quarantined``: pages whose bytes were wrong; they are misses for ever. ``evicted``: dropped by the policy.
    ``refused``: stores that found no room or a tier that takes none. ``declined``: of pages that are worth no
    more than what would have had to go for them.
    """

    name: str
    state: str
    usage: TierUsage
    pages: int
    stored: TransferCounts
    loaded: TransferCounts
    evicted: int = 0
    refused: int = 0
    quarantined: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    declined: int = 0


class Tier(Protocol):
    """A level of storage that counts what it holds."""

    kind: TierKind

    def usage(self) -> TierUsage: ...

    def check(self) -> None:
        """Raises InvariantError if what is counted is not what is held."""
        ...


class LowerTier(Tier, PageSource, PageTarget, Protocol):
    """Storage below the device."""

    is_persistent: bool  # outlives the process
    is_exclusive: bool  # holds no page that came up from it
    load_threads: int  # workers that may read at once
    store_threads: int
    part_alignment: int  # bytes; see ``read_parts``

    def contains(self, key: ContentKey) -> bool | None:
        """Whether the page is there, as far as the books know; None: somebody would have to ask (``probe``)."""
        ...

    def probe(self, keys: Sequence[ContentKey]) -> "list[bool]":
        """Worker thread: asks for the keys of which ``contains`` says None. Raises TierError. Changes no book."""
        ...

    def learn(self, keys: Sequence[ContentKey], found: "Sequence[bool] | None") -> None:
        """Bookkeeping thread: what ``probe`` found out. None: no answer came (``blame`` was told); ask later again."""
        ...

    def declines(self, page: Page) -> bool:
        """Whether the tier is full of pages that are worth as much, so that it does not store this one."""
        ...

    def prepare_store(self, page: Page) -> Slot | None:
        """Room for one page, if need be by dropping others. None if it is known already or declined, or there is no
        room now."""
        ...

    def complete_store(self, slot: Slot, error: TierError | None) -> None:
        """The page is there from now on; or its slot is given back and it never was."""
        ...

    def prepare_load(self, key: ContentKey) -> Slot | None:
        """The slot of a page, which stays until the load is completed. None if it is not there, or must not be read."""
        ...

    def complete_load(self, slot: Slot, error: TierError | None) -> None:
        """The slot may be dropped again. With an error the page is forgotten: it will not be tried again."""
        ...

    def why_not_in_place(self) -> str:
        """Why running sequences can't use pages while these lie here; empty where they can."""
        ...

    def hold(self, key: ContentKey) -> Slot | None:
        """The slot of a page that a running sequence maps: it stays, and is used, until as many ``let_go``.

        None if it is not there, or must not be read. Holds of one page add up, all under one index. A page that is
        forgotten meanwhile can't be found any more, but its slot stays.
        """
        ...

    def let_go(self, slot: Slot, error: TierError | None = None) -> None:
        """One hold less. With an error the page is forgotten, as after a failed load; its slot is free with the last
        hold."""
        ...

    def held(self, indices: np.ndarray) -> list[Slot]:
        """Any thread: slots that are held, by index, so that ``read`` gives their pages whole."""
        ...

    def addresses(self, indices: np.ndarray) -> np.ndarray | None:
        """int64 byte addresses of held slots, where a processor reads them in place; None: they need ``read_parts``."""
        ...

    def read_parts(self, indices: np.ndarray, start: int, into: np.ndarray) -> "list[TierError | None]":
        """Worker thread: bytes ``start`` to ``start + into.shape[1]`` of page ``indices[i]`` to ``into[i]``.

        ``into`` uint8 [n, size], rows contiguous. The range may end behind the page, at the next multiple of
        ``part_alignment``; where start, size and rows are multiples of it, nothing is copied on the way.
        REQUIRES: every slot is held. The caller compares checksums: what is read is not verified here. Errors, or None.
        """
        ...

    def touch(self, keys: Sequence[ContentKey]) -> None:
        """These pages were used, so others go before them."""
        ...

    def history(self, key: ContentKey) -> History | None:
        """What a policy that judges knows of a page that is there."""
        ...

    def remember(self, pages: Sequence[Page]) -> None:
        """These pages leave the device: their histories count from now on, where the tier has the pages."""
        ...

    def victims(self, count: int) -> list[Page]:
        """Pages that will be dropped next, the first to go first: who wants to keep them writes them further down.
        With their histories, and so ``pages``."""
        ...

    def pages(self) -> list[Page]:
        """All pages that are there, as far as the books know. Asked of tiers that don't outlive the process."""
        ...

    def forget(self, keys: Sequence[ContentKey]) -> None:
        """Drops pages that are there; those being moved go when they are completed."""
        ...

    def clear(self) -> int:
        """Drops every page that is not being moved; returns how many."""
        ...

    def tick(self) -> None:
        """Once a step: time has passed."""
        ...

    def watch(self, watcher: TierWatcher | None) -> None:
        """Bookkeeping thread: ``watcher`` is told what is there, and from now on what comes and goes. None: nobody."""
        ...

    def blame(self, reason: str) -> None:
        """A transfer is late, which counts against the tier's health. Its slot is completed when it comes."""
        ...

    def statistics(self) -> TierStatistics: ...

    def close(self) -> None:
        """Makes durable what is to last, and ends all holds. REQUIRES: nothing is being moved. May wait for I/O."""
        ...
