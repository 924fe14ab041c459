"""Device to host memory and back, against plain copies of the same pages by as many threads.

A tier's copy has a checksum, books on both ends and a worker thread. Beside memcpy stands a copy with stores around the
caches, which is faster for pages as large as these.
"""

import time
from collections.abc import Callable

import numpy as np

from kvpager.bench.interleaved import measure_in_turn
from kvpager.bench.limits import native_module
from kvpager.bench.report import Result
from kvpager.bench.tiers_scale import TierScale
from kvpager.bench.tiers_traffic import LAYOUT, Traffic
from kvpager.errors import InvariantError
from kvpager.eviction.lru import LRU
from kvpager.memory.arena import HostArena
from kvpager.memory.layout import KVLayout
from kvpager.tiers.host import HostStore

COPY_SHARE = 0.9


def measure(scale: TierScale, layout: KVLayout = LAYOUT) -> list[Result]:
    pages = scale.chunk_pages
    store = HostStore(layout.block_stride, pages, LRU(pages))
    traffic = Traffic([store], pages, layout)
    try:
        rounds = _Rounds(store, traffic)
        plain = [_PlainCopies(copy, traffic, store.load_threads) for copy in _copies()]
        times = measure_in_turn(
            [rounds.down, rounds.up, *(copies.run for copies in plain)], scale.seconds, scale.rounds
        )
        traffic.check(rounds.chunk)
    finally:
        traffic.close()
    num_bytes = pages * layout.block_stride
    memcpy, stream = 2, 3
    return [
        times.ratio(memcpy, 0).result("host_copy_memcpy_share", "share", at_least=COPY_SHARE),
        times.ratio(memcpy, 1).result("host_copy_memcpy_share/back", "share", at_least=COPY_SHARE),
        times.ratio(stream, 0).result("host_copy_stream_share", "share"),
        times.ratio(stream, 1).result("host_copy_stream_share/back", "share"),
        Result("host_store_rate", num_bytes / times.median(0) / 1e9, "GB/s"),
        Result("host_load_rate", num_bytes / times.median(1) / 1e9, "GB/s"),
        Result("host_memcpy_rate", num_bytes / times.median(memcpy) / 1e9, "GB/s"),
    ]


class _Rounds:
    """One chunk after the other goes down and comes back. The first is compared before anything is timed."""

    def __init__(self, store: HostStore, traffic: Traffic) -> None:
        self._store, self._traffic = store, traffic
        self.chunk = 0
        self.down()
        traffic.check(self.chunk)

    def down(self) -> float:
        self._store.clear()
        self.chunk += 1
        self._traffic.stamp(self.chunk)
        return self._traffic.down(self.chunk)

    def up(self) -> float:
        return self._traffic.up(self.chunk)


Copy = Callable[[int, int, int, int], object]


def _copies() -> list[Copy]:
    module = native_module()
    return [module.copy_bytes, module.stream_bytes]


class _PlainCopies:
    """Copies the pages one by one to memory of its own. The first time they are compared."""

    def __init__(self, copy: Copy, traffic: Traffic, threads: int) -> None:
        self._copy, self._threads = copy, threads
        self._size = size = traffic.arena.block_stride
        self._target = HostArena(traffic.num_pages, size)
        self._pairs = [
            (self._target.address + at * size, traffic.arena.address + block * size)
            for at, block in enumerate(traffic.sources.tolist())
        ]
        self.run()
        if not np.array_equal(self._target.blocks, traffic.arena.blocks[traffic.sources]):
            raise InvariantError("a plain copy: the bytes differ; it was not timed")

    def run(self) -> float:
        begin = time.perf_counter()
        for target, source in self._pairs:
            self._copy(target, source, self._size, self._threads)
        return time.perf_counter() - begin
