"""``kvpager bench demand`` at a tiny size: all figures are there, and nothing is timed that is wrong."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from kvpager import native
from kvpager.assemble import open_cache
from kvpager.bench import demand, demand_exact, demand_faults, demand_fio, demand_table, fio
from kvpager.bench.demand_case import Long, LongCase, check_same
from kvpager.bench.demand_fio import BestRead
from kvpager.bench.demand_scale import DemandScale
from kvpager.bench.inline_mover import InlineMover
from kvpager.bench.paged_case import Shape
from kvpager.bench.random_pages import RandomPages
from kvpager.bench.report import Result
from kvpager.cli import bench
from kvpager.config.tiers import HostTier
from kvpager.errors import ConfigError, InvariantError
from kvpager.memory.layout import KVLayout

TINY = DemandScale(
    seconds=0.0,
    rounds=2,
    context=4096,
    layers=1,
    disk_context=4096,
    disk_layers=1,
    page_size=64,
    small_page_size=16,
    budget=512,
    table_context=8192,
    faults=64,
    neighbours=2,
    neighbour_tokens=8,
    oversized_prompt=512,
)
SMALL = Shape("small", 4, 2, 32)
LONG = Long(SMALL, context=2048, layers=2, page_size=64, resident=1 / 8)

needs_native = pytest.mark.skipif(native.module() is None, reason=f"no native kernels: {native.why_not()}")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (demand_exact, demand_faults):
        monkeypatch.setattr(module, "LLAMA", SMALL)
    monkeypatch.setattr(demand_faults, "_PAGES", 128)


def by_name(results: list[Result]) -> dict[str, Result]:
    assert len({result.name for result in results}) == len(results)
    assert all(math.isfinite(result.value) for result in results)
    return {result.name: result for result in results}


@needs_native
@pytest.mark.usefixtures("small")
def test_exact_attention_over_the_host(tmp_path: Path) -> None:
    found = by_name(demand_exact.host(TINY, tmp_path))
    assert found["exact_host_7of8_limit_share"].target == 0.7
    assert found["exact_host_7of8_limit_share"].value > 0


@needs_native
@pytest.mark.usefixtures("small")
def test_exact_attention_over_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fio.FioFile, "_run", lambda *_: 0.01)
    found = by_name(demand_exact.disk(TINY, tmp_path))
    assert found["exact_disk_7of8_fio_share"].target == 0.8
    assert 0 <= found["exact_disk_7of8_overlapped"].value <= 1


@needs_native
@pytest.mark.usefixtures("small")
def test_the_faults(tmp_path: Path) -> None:
    found = by_name(demand_faults.faults(TINY, tmp_path))
    assert found["major_fault_bookkeeping_us"].target == 20.0
    assert {name.partition("/")[2] for name in found if name.startswith("major_fault_latency")} == {
        "host_copy",
        "disk_part",
        "disk_page",
    }


def test_the_page_table(tmp_path: Path) -> None:
    found = by_name(demand_table.page_table(TINY, tmp_path))
    assert found["page_table_bytes_1m"].target == 1 << 20
    pages = TINY.table_context // demand_table.PAGE_SIZE
    assert 5 * pages <= found["page_table_bytes_1m"].value <= 10 * pages


@needs_native
def test_a_case_that_differs_is_not_timed() -> None:
    with LongCase(LONG, HostTier(pages=128)) as case, LongCase(LONG.all_resident()) as whole:
        check_same("the same", case, whole)
        demand_exact.check_non_resident(case)
        with pytest.raises(InvariantError, match="of the pages have no block"):
            demand_exact.check_non_resident(_with_resident(case, 1 / 2))
        block = whole.seq.tables[0].snapshot()[3]
        whole.cache.arena.blocks[block] = 0
        with pytest.raises(InvariantError, match="not timed"):
            check_same("not the same", case, whole)


def _with_resident(case: LongCase, share: float) -> LongCase:
    from dataclasses import replace

    case.long = replace(case.long, resident=share)
    return case


def test_overlap_is_of_the_shorter_of_both() -> None:
    assert demand_exact.overlapped(step=3.0, reading=3.0, computing=1.0) == 1.0
    assert demand_exact.overlapped(step=4.0, reading=3.0, computing=1.0) == 0.0
    assert demand_exact.overlapped(step=3.5, reading=3.0, computing=1.0) == pytest.approx(0.5)
    assert demand_exact.overlapped(step=9.0, reading=3.0, computing=1.0) == 0.0


def test_random_pages_differ_and_are_found_by_content() -> None:
    layout = KVLayout(layers=2, kv_heads=1, head_dim=8, dtype="bfloat16", page_size=4)
    pages = RandomPages(layout)
    with open_cache(layout, num_blocks=16) as cache:
        seq = cache.sequence(range(40))
        pages.extend(cache, seq, 32, pages_at_once=3, first_number=5)
        assert seq.length == 32
        blocks = seq.tables[0].snapshot()[:8]
        content = cache.arena.blocks.view(np.uint16)[blocks]
        assert [row.tolist() for row in content] == [pages.content(5 + page).tolist() for page in range(8)]
        assert len(np.unique(content, axis=0)) == 8
        assert torch.isfinite(torch.from_numpy(content.copy()).view(torch.bfloat16)).all()
        seq.free()
        assert cache.lookup(range(40)).num_tokens == 32


def test_the_best_of_fios_settings_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(file: fio.FioFile, direction: str, first: int, count: int) -> float:
        return 0.5 if (file.block_bytes, file.jobs) == (8192, 4) else 1.0

    monkeypatch.setattr(fio.FioFile, "_run", run)
    best = BestRead(tmp_path / "fio.bin", 1 << 20, 8000, rounds=2)
    assert (best.best.block_bytes, best.best.jobs) == (8192, 4)
    assert best.read() == 0.5
    assert demand_fio._JOBS == (2, 4, 8)


def test_a_mover_without_threads_hands_back_what_it_ran() -> None:
    ran = []

    class Job:
        error: BaseException | None = None

        def run(self) -> None:
            ran.append(self)
            raise OSError("late")

    mover, job = InlineMover(), Job()
    mover.submit("host load", job)
    assert (ran, mover.num_open) == ([job], 1)
    assert mover.collect(1.0) == [job]
    assert isinstance(job.error, OSError)
    assert mover.num_open == 0
    assert mover.seconds >= 0


@needs_native
def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        demand.run(folder=str(tmp_path / "none"))


def test_it_is_listed_and_its_parts_are_not() -> None:
    names = {module.__name__.rpartition(".")[2] for module in bench._benchmarks()}
    assert {"demand", "million"} <= names
    assert not {name for name in names if name.startswith(("demand_", "million_"))}
