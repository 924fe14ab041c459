"""The native replays refuse traces that are none: they would read or write where they must not."""

from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

import numpy as np
import pytest

# Two requests: pages 0 1 2, then 0 1 3.
TRACE = {
    "first": np.array([0, 3, 6]),
    "pages": np.array([0, 1, 2, 0, 1, 3], np.int32),
    "parent": np.array([-1, 0, 1, 1], np.int32),
    "keys": np.array([0, 2**64 - 1, 5, 6], np.uint64),
    "times": np.array([0.0, 1.0]),
    "output_tokens": np.array([3, 4], np.int32),
    "stop": np.array([0, 2], np.uint8),
    "has_partial_tail": np.array([False, True]),
}
Replay = Callable[..., list[int]]


@pytest.fixture(params=["lru", "min", "adaptive"])
def replay(request: pytest.FixtureRequest, native: ModuleType) -> Replay:
    """Replays `TRACE`, changed by keyword. Returns hits and evictions."""

    def run(capacity: int = 3, **changed: object) -> list[int]:
        given = {**TRACE, "hits": np.zeros(2, np.int32), "evictions": np.zeros(2, np.int32), "num_blocks": 4, **changed}
        names = ["first", "pages", "num_blocks"] if request.param != "adaptive" else list(TRACE)
        call = getattr(native, f"replay_{request.param}")
        call(*(given[name] for name in names), capacity, given["hits"], given["evictions"])
        return [*np.asarray(given["hits"]), *np.asarray(given["evictions"])]

    run.name = request.param  # type: ignore[attr-defined]
    return run


only_adaptive = pytest.mark.parametrize("replay", ["adaptive"], indirect=True)


def test_a_good_trace(replay: Replay) -> None:
    assert replay(3) == [0, 2, 0, 1]
    assert replay(4) == [0, 2, 0, 0]
    assert replay(1) == [0, 1, 0, 0]
    assert replay(2**29 - 2000) == [0, 2, 0, 0]  # more than there are pages


def test_no_requests_and_empty_ones(replay: Replay) -> None:
    none = {name: TRACE[name][:0] for name in ("times", "output_tokens", "stop", "has_partial_tail")}
    nothing = {"pages": TRACE["pages"][:0], "parent": TRACE["parent"][:0], "keys": TRACE["keys"][:0], "num_blocks": 0}
    counts = {"hits": np.zeros(0, np.int32), "evictions": np.zeros(0, np.int32)}
    assert replay(first=np.zeros(1, np.int64), **nothing, **none, **counts) == []
    assert replay(first=np.zeros(3, np.int64), **nothing) == [0, 0, 0, 0]


@pytest.mark.parametrize("capacity", [0, -1, -(2**63)])
def test_no_capacity(replay: Replay, capacity: int) -> None:
    with pytest.raises(ValueError, match=r"at least 1|not negative"):
        replay(capacity)


@pytest.mark.parametrize(
    "first",
    [
        [],
        [0],
        [1, 3, 6],
        [0, 3, 5],
        [0, 3, 7],
        [0, 7, 6],
        [0, -1, 6],
        [0, 3, -(2**63)],
        [0, -(2**63), 6],
        [0, 1, -(2**63), 6],
        [0, 1, 2**63 - 1, 6],
        [0, 2**63 - 1, 6],
        [0, 2**31 + 1, 6],
        [0, 2, 4, 6],
    ],
)
def test_ends_of_requests_that_cannot_be(replay: Replay, first: list[int]) -> None:
    with pytest.raises(ValueError, match=r"first|length|request"):
        replay(first=np.array(first, np.int64))


@pytest.mark.parametrize("page", [-1, 4, -(2**31), 2**31 - 1])
def test_pages_outside_of_the_trace(replay: Replay, page: int) -> None:
    pages = TRACE["pages"].copy()
    pages[4] = page
    with pytest.raises(IndexError):
        replay(pages=pages)


@pytest.mark.parametrize(
    ("replay", "name"),
    [
        *((replay, name) for replay in ("lru", "min") for name in ("first", "pages", "hits", "evictions")),
        *(("adaptive", name) for name in (*TRACE, "hits", "evictions")),
    ],
    indirect=["replay"],
)
def test_other_arrays(replay: Replay, name: str) -> None:
    good = TRACE.get(name, np.zeros(2, np.int32))
    wrong = np.int16 if good.dtype != np.int16 else np.int32
    for other in (
        good.astype(wrong),
        good.astype(np.complex128),
        np.stack([good, good]),
        np.repeat(good, 2)[::2],
        None,
    ):
        with pytest.raises(TypeError):
            replay(**{name: other})
    if name not in ("first", "pages"):
        with pytest.raises(ValueError, match=r"length|entry"):
            replay(**{name: np.concatenate([good, good])})
    if good.itemsize > 1:
        odd = np.frombuffer(bytearray(b"\0" + good.tobytes()), good.dtype, offset=1)
        with pytest.raises((ValueError, TypeError)):
            replay(**{name: odd})


def test_counts_that_cannot_be_written(replay: Replay) -> None:
    fixed = np.zeros(2, np.int32)
    fixed.flags.writeable = False
    for name in ("hits", "evictions"):
        with pytest.raises(TypeError):
            replay(**{name: fixed})


def test_counts_in_the_memory_of_the_trace(replay: Replay) -> None:
    pages = TRACE["pages"].copy()
    first = TRACE["first"].copy()
    for memory in (pages[:2], pages[4:], first.view(np.int32)[2:4]):
        for name in ("hits", "evictions"):
            with pytest.raises(ValueError, match="memory"):
                replay(pages=pages, first=first, **{name: memory})
    both = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="memory"):
        replay(hits=both[:2], evictions=both[1:])
    assert pages.tolist() == TRACE["pages"].tolist()


@pytest.mark.parametrize("replay", ["lru", "min"], indirect=True)
@pytest.mark.parametrize("blocks", [-1, 2**31, 2**62])
def test_numbers_of_blocks(replay: Replay, blocks: int) -> None:
    with pytest.raises(ValueError, match="blocks"):
        replay(num_blocks=blocks)


@pytest.mark.parametrize("seed", range(3))
def test_chains_that_form_no_forest_do_no_harm(replay: Replay, seed: int) -> None:
    """A page twice in a chain, or behind several others: a wrong figure at most, where it is not refused."""
    generator = np.random.default_rng(seed)
    each = {name: np.resize(TRACE[name], 12) for name in ("times", "output_tokens", "stop", "has_partial_tail")}
    keys = np.arange(6, dtype=np.uint64)
    for turn in range(70):
        pages = generator.integers(0, 6, 60).astype(np.int32)
        first = np.array([0, *np.sort(generator.integers(0, 61, 11)), 60])
        parent = generator.integers(-1, 6, 6).astype(np.int32)
        chains = {"first": first, "pages": pages, "parent": parent, "keys": keys, "num_blocks": 6}
        counts = {"hits": np.zeros(12, np.int32), "evictions": np.zeros(12, np.int32)}
        if replay.name == "adaptive":  # type: ignore[attr-defined]
            with pytest.raises(ValueError, match="forest"):
                replay(1 + turn % 7, **chains, **each, **counts)
            continue
        with suppress(ValueError):
            replay(1 + turn % 7, **chains, **counts)


@only_adaptive
@pytest.mark.parametrize(
    ("pages", "parent"),
    [
        ([0, 1, 2, 0, 1, 3], [-1, 0, 1, 3]),  # its own parent
        ([0, 1, 2, 0, 1, 3], [2, 0, 1, 1]),  # a ring
        ([0, 1, 2, 0, 1, 3], [-1, -1, 1, 1]),  # a root in the middle
        ([0, 1, 2, 0, 2, 3], [-1, 0, 1, 2]),  # a page left out
        ([0, 0, 0, 1, 1, 1], [-1, -1, -1, -1]),
        ([0, 1, 2, 0, 1, 3], [-1, 0, 1, 4]),
        ([0, 1, 2, 0, 1, 3], [-1, 0, 1, 2**31 - 1]),
        ([0, 1, 2, 0, 1, 3], [-1, 0, 1, -(2**31)]),
    ],
)
def test_parents_that_are_not_those_of_the_chains(replay: Replay, pages: list[int], parent: list[int]) -> None:
    for capacity in (1, 2, 3):
        with pytest.raises(ValueError, match="forest"):
            replay(capacity, pages=np.array(pages, np.int32), parent=np.array(parent, np.int32))


@only_adaptive
def test_times_and_stop_reasons(replay: Replay) -> None:
    for time in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="finite"):
            replay(times=np.array([0.0, time]))
    with pytest.raises(ValueError, match="stop"):
        replay(stop=np.array([0, 3], np.uint8))
    assert replay(times=np.array([5.0, -1e300])) == [0, 2, 0, 1]  # a clock that goes back
    assert replay(has_partial_tail=np.array([0, 255], np.uint8).view(bool)) == [0, 2, 0, 1]


def test_a_capacity_beyond_all_numbers(replay: Replay) -> None:
    assert replay(2**63 - 1) == [0, 2, 0, 0]
