"""Exact decode with seven eighths of the pages below the device, against what the memory and the disk give at most.

    host    bytes of all K and V / seconds of a step, over a plain read of as many bytes by the same threads
    disk    bytes that were streamed / seconds of a step, over fio's best read of as many bytes in the same folder

The bits are compared with those of a case whose pages all have blocks before anything is timed.
"""

from functools import partial
from pathlib import Path

from kvpager.bench.demand_case import Long, LongCase, Streamed, check_same
from kvpager.bench.demand_fio import BestRead
from kvpager.bench.demand_scale import DemandScale
from kvpager.bench.interleaved import Measure, measure_in_turn, run_in_turn
from kvpager.bench.limits import read_limit
from kvpager.bench.paged_case import LLAMA
from kvpager.bench.report import Result, seconds_of
from kvpager.config.tiers import DiskTier, HostTier
from kvpager.errors import InvariantError

HOST_SHARE = 0.7
DISK_SHARE = 0.8
RESIDENT = 1 / 8


def host(scale: DemandScale, folder: Path) -> list[Result]:
    long = Long(LLAMA, scale.context, scale.layers, scale.page_size, RESIDENT)
    with LongCase(long, HostTier(pages=long.pages + 64)) as case, LongCase(long.all_resident()) as whole:
        check_same("exact attention over the host tier", case, whole)
        check_non_resident(case)
        calls = [case.decode, whole.decode, read_limit(whole.cache.arena.address, long.num_bytes)]
        times = run_in_turn(calls, scale.seconds, scale.rounds)
    return [
        times.ratio(2, 0).result("exact_host_7of8_limit_share", "share", at_least=HOST_SHARE),
        times.ratio(2, 1).result("exact_resident_limit_share", "share"),
        times.ratio(0, 1).result("exact_host_7of8_vs_resident"),
        Result("exact_host_7of8_step", times.median(0) * 1e3, "ms"),
        Result("exact_host_read_limit", long.num_bytes / times.median(2) / 1e9, "GB/s"),
    ]


def disk(scale: DemandScale, folder: Path) -> list[Result]:
    """Needs fio."""
    long = Long(LLAMA, scale.disk_context, scale.disk_layers, scale.page_size, RESIDENT)
    tier = DiskTier(folder / "exact", 2 * long.num_bytes)
    with LongCase(long, tier) as case, LongCase(long.all_resident()) as whole:
        check_same("exact attention over the disk tier", case, whole)
        check_non_resident(case)
        streamed = case.streamed_by(1).bytes
        fio = BestRead(folder / "fio.bin", streamed, long.part_bytes, scale.rounds)
        case.streamed = Streamed()
        measures: list[Measure] = [partial(seconds_of, case.decode), fio.read, partial(seconds_of, whole.decode)]
        times = measure_in_turn(measures, scale.seconds, scale.rounds)
        stalled = case.streamed.stalled / case.streamed.steps
    return [
        times.ratio(1, 0).result("exact_disk_7of8_fio_share", "share", at_least=DISK_SHARE),
        Result("exact_disk_7of8_step", times.median(0) * 1e3, "ms"),
        Result("exact_disk_7of8_rate", streamed / times.median(0) / 1e9, "GB/s"),
        Result("exact_disk_7of8_rate/fio", streamed / times.median(1) / 1e9, "GB/s"),
        Result("exact_disk_7of8_stalled", stalled * 1e3, "ms"),
        Result("exact_disk_7of8_overlapped", overlapped(*map(times.median, range(3))), "share"),
    ]


def overlapped(step: float, reading: float, computing: float) -> float:
    """How much of the shorter of reading and computing takes place during the other: 1 where a step takes no longer
    than the longer of them, 0 where they come one after the other."""
    return min(1.0, max(0.0, (reading + computing - step) / min(reading, computing)))


def check_non_resident(case: LongCase) -> None:
    share = case.non_resident_share()
    if not abs(share - (1 - case.long.resident)) < 0.02:
        raise InvariantError(f"{share:.3f} of the pages have no block, not {1 - case.long.resident}; it was not timed")
