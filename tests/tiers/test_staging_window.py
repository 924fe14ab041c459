"""Parts of held pages come through the window in order, right to the bit or as errors, and never for ever late."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvpager.errors import ConfigError, InvariantError, TierError, WrongContent
from kvpager.tiers.staging import PartRequest, Staged
from kvpager.tiers.staging_window import StagingWindow
from kvpager.types import TierKind
from tests.tiers.disk.faulty_files import EIO, FaultyFiles
from tests.tiers.disk.pages import open_store
from tests.tiers.remote.fakes import DictObjects, Hand, make_store
from tests.tiers.staged_pages import LAYERS, FaultyTier, HeldPages, bytes_at, host

PAGE = 4 * 1000  # parts that are no multiple of anything


@contextmanager
def opened(*tiers: Any, num_bytes: int = 1 << 17, deadline: float | None = None) -> Iterator[StagingWindow]:
    window = StagingWindow(num_bytes, tiers, deadline=deadline, debug=True)
    try:
        yield window
    finally:
        window.close(timeout=60)
        assert not [thread for thread in threading.enumerate() if "staging" in thread.name or "fetch" in thread.name]


@pytest.fixture
def tier() -> FaultyTier:
    return FaultyTier(host(PAGE))


def all_tiers(folder: Path, page_bytes: int) -> list[Any]:
    return [
        FaultyTier(host(page_bytes), part_alignment=4096),
        open_store(folder / "kv", 4 << 20, page_bytes, direct="auto"),
        make_store(DictObjects(), Hand(), page_bytes),
    ]


def steps(pages: list[HeldPages], dice: random.Random) -> Iterator[tuple[HeldPages, PartRequest]]:
    """Every layer of every page, some pages at a time, in any order, and now and then none."""
    for layer in range(LAYERS):
        for each in pages:
            order = list(range(len(each.keys)))
            dice.shuffle(order)
            while order:
                some = [order.pop() for _ in range(min(len(order), dice.randint(1, 9)))]
                yield each, each.request(layer, some)
            yield each, each.request(layer, [])


# -- what comes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_bytes", [PAGE, 4 * 4096])
@pytest.mark.parametrize("is_known", [True, False])
def test_every_part_comes_in_order_and_stays_until_the_next(tmp_path: Path, page_bytes: int, is_known: bool) -> None:
    tiers = all_tiers(tmp_path, page_bytes)
    pages = [HeldPages(tier, 20, is_known=is_known, seed=seed) for seed, tier in enumerate(tiers, 1)]
    plan = list(steps(pages, random.Random(3)))
    with opened(*tiers, num_bytes=1 << 18) as window, window.stream(request for _, request in plan) as stream:
        for each, request in plan:
            staged = stream.next()
            assert staged.errors == {}
            assert len(staged.addresses) == len(request.slots)
            assert each.is_right(request, staged)
        for each in pages:
            assert each.is_known.all()
            assert (each.checksums == each.sums()).all()
        counts = window.statistics()
        assert [counts[tier.kind].parts for tier in tiers] == [20 * LAYERS] * 3
        assert all(counts[tier.kind].bytes >= 20 * page_bytes for tier in tiers)
        assert all(each.failed == 0 for each in counts.values())
    with pytest.raises(InvariantError):
        stream.next()


def test_what_was_handed_out_is_not_overwritten_and_then_is(tier: FaultyTier) -> None:
    pages = HeldPages(tier, 48)
    requests = [pages.request(0, range(at, at + 8)) for at in range(0, 48, 8)]
    with opened(tier, num_bytes=1 << 16) as window, window.stream(iter(requests)) as stream:
        before: Staged | None = None
        for request in requests:
            staged = stream.next()
            if before is not None:
                assert bytes_at(int(before.addresses[0]), 1000) != pages.part(request.pages[0] - 8, 0).tobytes()
            wait_until(lambda: not stream._readings or not any(reading.left for reading in stream._readings))
            assert pages.is_right(request, staged)
            before = staged


def test_pages_are_read_whole_once(tier: FaultyTier) -> None:
    pages = HeldPages(tier, 10, is_known=False)
    pages.is_known[:3], pages.checksums[:3] = True, pages.sums()[:3]
    with opened(tier) as window:
        for layer in (2, 0, 3):
            request = pages.request(layer, range(10))
            assert pages.is_right(request, window.fetch(request))
    assert tier.num_whole == 7


def test_streams_of_several_threads_and_fetches_between(tier: FaultyTier) -> None:
    pages = HeldPages(tier, 40)
    wrong: list[object] = []

    def run(window: StagingWindow, seed: int) -> None:
        dice = random.Random(seed)
        plan = list(steps([pages], dice))
        with window.stream(request for _, request in plan) as stream:
            for _, request in plan:
                staged = stream.next()
                other = pages.request(dice.randrange(LAYERS), dice.sample(range(40), 3))
                fetched = window.fetch(other)
                if not (pages.is_right(request, staged) and pages.is_right(other, fetched)):
                    wrong.append((seed, request))

    with opened(tier) as window:
        threads = [threading.Thread(target=run, args=(window, seed)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert window.statistics()[TierKind.HOST].failed == 0


def test_what_is_fetched_stays_until_the_next_fetch_of_the_thread(tier: FaultyTier) -> None:
    pages = HeldPages(tier, 20)
    first, second = pages.request(1, [3, 4]), pages.request(2, [5])
    with opened(tier) as window:
        staged = window.fetch(first)
        other = threading.Thread(target=lambda: window.fetch(second))
        other.start()
        other.join()
        with window.stream(iter([second] * 4)) as stream:
            stream.next()
            assert pages.is_right(first, staged)
        assert pages.is_right(second, window.fetch(second))


# -- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_bit_that_turned_is_found_in_any_part(tier: FaultyTier, layer: int, is_known: bool) -> None:
    pages = HeldPages(tier, 6, is_known=is_known)
    pages.held[4].memory[layer * 1000 + 999] ^= 0x80
    with opened(tier) as window:
        plan = [pages.request(each, range(6)) for each in range(LAYERS)]
        with window.stream(iter(plan)) as stream:
            for request in plan:
                staged = stream.next()
                is_wrong = not is_known or request.layer_index == layer
                assert list(staged.errors) == [4] * is_wrong
                assert all(isinstance(error, WrongContent) for error in staged.errors.values())
                assert pages.is_right(request, staged)
        assert window.statistics()[TierKind.HOST].failed == (LAYERS if not is_known else 1)
    assert not pages.is_known[4] or is_known


@pytest.mark.parametrize("error", [TierError("EIO: test"), RuntimeError("a bug"), KeyboardInterrupt()])
def test_parts_that_can_not_be_read_are_errors_and_others_come(tier: FaultyTier, error: BaseException) -> None:
    pages = HeldPages(tier, 8)
    tier.errors = {1: error}
    plan = [pages.request(0, range(at, at + 2)) for at in range(0, 8, 2)]
    with opened(tier) as window, window.stream(iter(plan)) as stream:
        found = [stream.next() for _ in plan]
        assert [sorted(staged.errors) for staged in found] == [[], [0, 1], [], []]
        assert all(isinstance(each, TierError) for each in found[1].errors.values())


@pytest.mark.parametrize("is_known", [True, False])
def test_wherever_a_read_fails_the_rest_is_right(tmp_path: Path, is_known: bool) -> None:
    files = FaultyFiles()
    store = open_store(tmp_path / "kv", 1 << 20, PAGE, files=files)
    pages = HeldPages(store, 12, is_known=is_known)
    with opened(store) as window:
        for at in range(0, 30, 3):
            pages.is_known[:] = is_known
            files.fail(EIO, {"preadv"}, first=at, times=2)
            plan = [pages.request(layer, range(first, first + 4)) for layer in range(2) for first in (0, 4, 8)]
            with window.stream(iter(plan)) as stream:
                for request in plan[:5]:
                    staged = stream.next()
                    assert pages.is_right(request, staged)
                    assert all(str(error).startswith("EIO") for error in staged.errors.values())
        assert window.statistics()[TierKind.DISK].failed
    assert files.num_faults > 4


def test_a_request_that_never_fits_is_refused_with_the_numbers(tier: FaultyTier) -> None:
    pages = HeldPages(tier, 40)
    with opened(tier, num_bytes=2 * 32768) as window:
        with pytest.raises(ConfigError, match=r"33 parts of 1000 bytes take 36864 bytes .* at least 73728"):
            window.stream(iter([pages.request(0, range(33))]))
        assert pages.is_right(pages.request(0, range(32)), window.fetch(pages.request(0, range(32))))
        fits = [pages.request(layer, range(32)) for layer in range(2)]
        with window.stream(iter([*fits, pages.request(0, range(33))])) as stream:
            assert pages.is_right(fits[0], stream.next())
            with pytest.raises(ConfigError, match="73728"):
                stream.next()
    with pytest.raises(ConfigError, match="8192"):
        StagingWindow(8191, [])


def test_a_stream_may_be_closed_while_it_is_read(tier: FaultyTier) -> None:
    pages = HeldPages(tier, 32)
    plan = [pages.request(0, range(at, at + 8)) for at in range(0, 32, 8)]
    with opened(tier) as window:
        tier.go.clear()
        with window.stream(iter(plan)) as stream:
            assert tier.begun.wait(60)
        assert window.memory._free == set()
        with window.stream(iter([])) as another:
            assert another.memory is not stream.memory
        tier.go.set()
        wait_until(lambda: window.memory._free == {0, 1})
        assert tier.num_calls == 1, "what was not begun is left out"
        assert pages.is_right(plan[2], window.fetch(plan[2]))


def test_a_tier_that_hangs_ends_in_errors_and_holds_up_no_other(tier: FaultyTier, tmp_path: Path) -> None:
    disk = open_store(tmp_path / "kv", 1 << 20, PAGE)
    pages, others = HeldPages(tier, 8), HeldPages(disk, 8)
    plan = [pages.request(0, [0]), pages.request(0, [1, 2]), others.request(0, [3])]
    with opened(tier, disk, deadline=0.05) as window:
        tier.go.clear()
        try:
            with window.stream(iter(plan)) as stream:
                for request in plan:
                    staged = stream.next()
                    assert len(staged.errors) == len(request.slots)
                    assert "late" in str(staged.errors[0])
            assert "late" in str(window.fetch(plan[0]).errors[0])
            wait_until(lambda: not window.fetch(plan[2]).errors)  # of another tier
        finally:
            tier.go.set()
        wait_until(lambda: not window.fetch(plan[0]).errors)


class CountingPace:
    def __init__(self, tier: FaultyTier) -> None:
        self.num_waits = 0
        self._tier = tier

    def breathe(self) -> None:
        raise AssertionError("the window computes nothing")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self.num_waits += 1
        self._tier.go.set()
        yield


def test_whoever_waits_lets_others_go_on(tier: FaultyTier) -> None:
    pages = HeldPages(tier, 8)
    with opened(tier) as window:
        window.pace = pace = CountingPace(tier)
        tier.go.clear()
        with window.stream(iter([pages.request(0, [1]), pages.request(1, [1])])) as stream:
            assert stream.next().stalled > 0
            wait_until(lambda: not any(reading.left for reading in stream._readings))
            assert stream.next().stalled == 0
        assert pace.num_waits == 1
        assert window.statistics()[TierKind.HOST].stalled > 0


def test_an_error_of_whoever_makes_requests_is_his(tier: FaultyTier) -> None:
    pages = HeldPages(tier, 8)

    def requests() -> Iterator[PartRequest]:
        yield pages.request(0, range(8))
        raise ZeroDivisionError

    with opened(tier) as window:
        with pytest.raises(ZeroDivisionError):
            window.stream(requests())
        assert window.fetch(pages.request(0, [1])).errors == {}


def wait_until(is_so: Any) -> None:
    for _ in range(2000):
        if is_so():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it never came about")


def test_columns_are_checked_by_page_number(tier: FaultyTier) -> None:
    """A request names any pages of its sequence, in any order; the same page twice is no special case."""
    pages = HeldPages(tier, 8)
    swapped = pages.request(1, [5, 5, 2])
    with opened(tier) as window:
        assert pages.is_right(swapped, window.fetch(swapped))
        swapped.pages = np.array([5, 2, 5])
        assert sorted(window.fetch(swapped).errors) == [1, 2]
