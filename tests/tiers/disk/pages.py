"""Pages to store, and a store that tests drive as migration would, one thread for both halves."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from kvpager.errors import TierError
from kvpager.eviction.lru import LRU
from kvpager.tiers.disk.store import DiskStore
from kvpager.tiers.tier import Page, Slot
from kvpager.types import ContentKey

NO_PARENT = ContentKey(bytes(32))
IDENTITY = hashlib.sha256(b"layout, dtype, model").digest()
PAGE = 8192


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def key(number: int) -> ContentKey:
    return ContentKey(hashlib.sha256(f"page {number}".encode()).digest())


def content(number: int, page_bytes: int = PAGE) -> np.ndarray:
    """Bytes that name their page."""
    return np.frombuffer((key(number) * (page_bytes // 32 + 1))[:page_bytes], np.uint8).copy()


def open_store(folder: Path | str, capacity: int = 1 << 20, page_bytes: int = PAGE, **options: object) -> DiskStore:
    options = {"identity": IDENTITY, "clock": FakeClock(), "direct": False} | options
    return DiskStore(str(folder), page_bytes, capacity, LRU, **options)  # type: ignore[arg-type]


def prepare(store: DiskStore, numbers: Iterable[int]) -> list[Slot]:
    slots = [store.prepare_store(Page(key(number), NO_PARENT)) for number in numbers]
    return [slot for slot in slots if slot is not None]


def put(store: DiskStore, *numbers: int) -> list[TierError | None]:
    """Stores pages in one batch; the error of each. Pages that find no room are left out."""
    of = {key(number): number for number in numbers}
    slots = prepare(store, numbers)
    errors = write(store, slots, [content(of[slot.key], store.page_bytes) for slot in slots])
    store.tick()
    store.check()
    return errors


def write(store: DiskStore, slots: Sequence[Slot], pages: Sequence[np.ndarray]) -> list[TierError | None]:
    errors: list[TierError | None] = []
    if slots:
        try:
            errors = store.write(slots, pages)
        except Exception as error:  # as a move does
            errors = [TierError(f"{type(error).__name__}: {error}")] * len(slots)
    for slot, error in zip(slots, errors, strict=True):
        store.complete_store(slot, error)
    return errors


def get(store: DiskStore, number: int) -> bool | TierError:
    """Whether the page is there, with its bytes; or why it can't be had."""
    slot = store.prepare_load(key(number))
    if slot is None:
        return False
    into = np.full(store.page_bytes, 0xEE, np.uint8)
    try:
        [result] = store.read([slot], [into])
    except Exception as error:
        result = TierError(f"{type(error).__name__}: {error}")
    store.complete_load(slot, result if isinstance(result, TierError) else None)
    store.tick()
    if isinstance(result, TierError):
        return result
    assert (into == content(number, store.page_bytes)).all(), f"page {number} has other bytes"
    return True


def found(store: DiskStore, numbers: Iterable[int]) -> list[int]:
    """Those of the pages that are there, byte for byte."""
    return [number for number in numbers if get(store, number) is True]


def slab_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("slab-*.kv"))


def disk_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.glob("slab-*"))
