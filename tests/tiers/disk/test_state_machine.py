"""Any order of stores, loads, restarts and faults: never a wrong byte, never over the limit, books that add up."""

import errno
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvpager.tiers.tier import Slot
from tests.tiers.disk.faulty_files import FaultyFiles, bug, error, short_then
from tests.tiers.disk.pages import FakeClock, content, disk_bytes, get, key, open_store, prepare, slab_files, write

NUMBERS = st.integers(0, 30)
FAULTS = (
    st.sampled_from([errno.EIO, errno.ENOSPC, errno.EROFS]).map(error)
    | st.sampled_from([bug])
    | st.builds(short_then, st.just(errno.EIO))
)


class DiskMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None, prefix="kvpager-test-"))
        self.files, self.clock = FaultyFiles(), FakeClock()
        self.under_way: list[Slot] = []
        self.may_be_there: set[int] = set()

    @initialize(capacity=st.integers(2, 30))
    def begin(self, capacity: int) -> None:
        self.open(capacity)

    def open(self, capacity: int) -> None:
        self.capacity = capacity * 9000 + 8192
        self.store = open_store(self.folder, self.capacity, files=self.files, clock=self.clock)

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=5, unique=True))
    def store_pages(self, numbers: list[int]) -> None:
        of = {key(number): number for number in numbers}
        slots = prepare(self.store, numbers)
        errors = write(self.store, slots, [content(of[slot.key]) for slot in slots])
        self.may_be_there |= {of[slot.key] for slot, failed in zip(slots, errors, strict=True) if failed is None}

    @rule(number=NUMBERS)
    def load(self, number: int) -> None:
        if get(self.store, number) is True:
            assert number in self.may_be_there

    @rule(number=NUMBERS)
    def begin_load(self, number: int) -> None:
        slot = self.store.prepare_load(key(number))
        if slot is not None:
            self.under_way.append(slot)

    @rule()
    def end_loads(self) -> None:
        for slot in self.under_way:
            self.store.complete_load(slot, None)
        self.under_way = []

    @rule(number=NUMBERS)
    def forget(self, number: int) -> None:
        self.store.forget([key(number)])
        assert not self.store.contains(key(number))

    @rule(seconds=st.sampled_from([0.5, 3.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.store.tick()

    @rule(fault=FAULTS, first=st.integers(0, 4), times=st.integers(1, 3))
    def go_wrong(self, fault: object, first: int, times: int) -> None:
        changing = {"create", "pwritev", "fallocate", "fdatasync", "rename", "preadv"}
        self.files.fail(fault, changing, first=first, times=times)  # type: ignore[arg-type]

    @rule(which=st.integers(0, 9))
    def lose_a_slab(self, which: int) -> None:
        paths = slab_files(self.folder)
        if which < len(paths):
            paths[which].unlink()
            self.clock.now += 2
            self.store._worker.look()

    @rule(capacity=st.integers(2, 30))
    def restart(self, capacity: int) -> None:
        self.end_loads()
        self.files.fail(None)
        self.store.close()
        self.open(capacity)

    @invariant()
    def the_books_add_up(self) -> None:
        self.store.check()
        assert disk_bytes(self.folder) <= self.capacity
        usage = self.store.usage()
        assert usage.free + usage.used + usage.cached + usage.moving == usage.blocks
        assert min(usage.free, usage.cached, usage.moving) >= 0

    def teardown(self) -> None:
        self.end_loads()
        self.store.close()
        shutil.rmtree(self.folder)


TestDisk = DiskMachine.TestCase
TestDisk.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
