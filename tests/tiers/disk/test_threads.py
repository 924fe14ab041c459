"""Workers, books and a reader of the same folder at the same time: nobody ever gets a byte of another page."""

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

import numpy as np

from kvpager.errors import TierError
from kvpager.tiers.disk.store import DiskStore
from kvpager.tiers.tier import Slot
from tests.tiers.disk.faulty_files import FaultyFiles
from tests.tiers.disk.pages import content, found, get, key, open_store, prepare, put


def test_a_reader_beside_a_writer(fast_folder: Path) -> None:
    store = open_store(fast_folder, 20 * 9000)
    reader = open_store(fast_folder, read_only=True)
    hits = 0
    ended: SimpleQueue[bool] = SimpleQueue()

    def write_all() -> None:
        for number in range(0, 400, 3):
            put(store, *(n % 40 for n in range(number, number + 3)))
        ended.put(True)

    thread = Thread(target=write_all)
    thread.start()
    while ended.empty():
        reader.refresh()
        hits += sum(get(reader, number) is True for number in range(40))
    thread.join()
    reader.refresh()
    assert found(reader, range(40)) == found(store, range(40))
    assert hits


def test_two_workers_and_the_books(fast_folder: Path) -> None:
    """Stores and loads are under way while the books evict, forget and give the same slots out again."""
    store = open_store(fast_folder, 30 * 9000)
    jobs: SimpleQueue[tuple[str, list[Slot], list[np.ndarray]] | None] = SimpleQueue()
    ended: SimpleQueue[tuple[str, list[Slot], list[np.ndarray], list[object]]] = SimpleQueue()

    def work() -> None:
        while (job := jobs.get()) is not None:
            what, slots, pages = job
            ended.put((*job, list(store.write(slots, pages) if what == "store" else store.read(slots, pages))))

    threads = [Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    of = {key(number): number for number in range(60)}
    rng, under_way, loaded = np.random.default_rng(1), 0, 0
    for step in range(600):
        numbers = rng.choice(60, 4, replace=False).tolist()
        if step % 3 == 0:
            slots = [slot for number in numbers if (slot := store.prepare_load(key(number)))]
            job = ("load", slots, [np.zeros(store.page_bytes, np.uint8) for _ in slots])
        else:
            slots = prepare(store, numbers)
            job = ("store", slots, [content(of[slot.key]) for slot in slots])
        if slots:
            jobs.put(job)
            under_way += 1
        if step % 7 == 0:
            store.forget([key(numbers[0])])
        while under_way > 4 or (under_way and not ended.empty()):
            loaded += _complete(store, *ended.get(), of)
            under_way -= 1
        store.tick()
    while under_way:
        loaded += _complete(store, *ended.get(), of)
        under_way -= 1
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        thread.join()
    store.check()
    assert loaded > 100
    assert store.statistics().quarantined == 0
    there = found(store, range(60))
    store.close()
    assert found(open_store(fast_folder, 30 * 9000), range(60)) == there


def _complete(
    store: DiskStore,
    what: str,
    slots: list[Slot],
    pages: list[np.ndarray],
    results: list[object],
    of: dict[bytes, int],
) -> int:
    for slot, page, result in zip(slots, pages, results, strict=True):
        failed = result if isinstance(result, TierError) else None
        assert failed is None
        if what == "store":
            store.complete_store(slot, None)
        else:
            assert (page == content(of[slot.key])).all()
            store.complete_load(slot, None)
    return len(slots) if what == "load" else 0


def test_a_header_that_is_being_emptied_does_not_take_the_next_page_with_it(fast_folder: Path) -> None:
    """A worker is about to empty a slot when the books give it out again; who writes it then has to wait."""
    is_emptying, may_go_on = Event(), Event()

    def hang(call: Callable[..., int], arguments: tuple[object, ...]) -> int:
        is_emptying.set()
        may_go_on.wait()
        return call(*arguments)

    files = FaultyFiles()
    store = open_store(fast_folder, files=files)
    put(store, 1)
    store.forget([key(1)])
    files.fail(hang, {"pwritev"}, times=1)
    emptying = Thread(target=store._worker.empty_stale)
    emptying.start()
    is_emptying.wait()
    slots = prepare(store, [2])
    assert slots[0].index == 0
    writing = Thread(target=store.write, args=(slots, [content(2)]))
    writing.start()
    writing.join(0.2)  # long enough to write, if it did not wait; nothing depends on it when it does
    may_go_on.set()
    writing.join()
    emptying.join()
    store.complete_store(slots[0], None)
    assert found(store, [2]) == [2]
