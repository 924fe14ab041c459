"""The second lane: two threads, of which one computes at a time. Nothing here depends on how long anything takes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from kvpager.engine.slow_lane import Abandoned, LaneState, SlowLane
from kvpager.errors import InvariantError

LONG = 1e9


class Clock:
    """Stands still unless a test moves it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Held:
    """Who computes: fails as soon as two do."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        assert self.lock.acquire(blocking=False), "both threads compute"

    def __exit__(self, *_: object) -> None:
        self.lock.release()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lane(clock: Clock) -> Iterator[SlowLane]:
    lane = SlowLane(clock)
    yield lane
    lane.close()
    assert not any(thread.name == "kvpager-slow-lane" for thread in threading.enumerate())


def finish(lane: SlowLane) -> object:
    while lane.state is not LaneState.DONE:
        lane.turn(LONG, patient=True)
    return lane.collect()


def counting(lane: SlowLane, clock: Clock, pieces: int, seen: list[int]) -> Callable[[], int]:
    """Work in pieces of a second each."""

    def work() -> int:
        for number in range(pieces):
            seen.append(number)
            clock.now += 1.0
            lane.breathe()
        return pieces

    return work


def test_a_turn_ends_before_a_piece_that_would_go_beyond_its_end(lane: SlowLane, clock: Clock) -> None:
    seen: list[int] = []
    lane.start(counting(lane, clock, 10, seen))
    assert not seen  # not before its turn
    assert lane.turn(2.5, patient=False) == 2.0
    assert seen == [0, 1]
    assert lane.state is LaneState.READY
    assert lane.turn(0.0, patient=False) == 1.0  # some work, even in the shortest turn
    assert seen == [0, 1, 2]
    assert finish(lane) == 10
    assert lane.state is LaneState.IDLE


def test_only_one_thread_computes_at_a_time(lane: SlowLane, clock: Clock) -> None:
    held = Held()

    def work() -> None:
        for number in range(200):
            with held:
                clock.now += 1.0
            if number % 3 == 0:
                with lane.waiting():
                    pass  # an I/O that takes no time: it ends whenever it likes
            else:
                lane.breathe()

    lane.start(work)
    while lane.state is not LaneState.DONE:
        with held:
            pass
        lane.turn(2.0, patient=False)
    lane.collect()


def test_who_waits_for_io_lets_the_others_compute(lane: SlowLane) -> None:
    has_come = threading.Event()
    order: list[str] = []

    def work() -> str:
        with lane.waiting():
            assert has_come.wait(60)
        order.append("lane")
        return "read"

    lane.start(work)
    lane.turn(LONG, patient=False)
    assert lane.state is LaneState.WAITING
    for _ in range(3):
        assert lane.turn(LONG, patient=False) == 0.0  # comes back at once, however long the I/O takes
    order.append("engine")
    has_come.set()
    assert finish(lane) == "read"
    assert order == ["engine", "lane"]


def test_a_patient_turn_waits_for_io_too(lane: SlowLane) -> None:
    def work() -> str:
        with lane.waiting():
            pass
        return "read"

    lane.start(work)
    lane.turn(LONG, patient=True)
    assert lane.state is LaneState.DONE
    assert lane.collect() == "read"


def test_work_that_raises_is_done_and_the_next_starts(lane: SlowLane) -> None:
    def fails() -> None:
        raise ValueError("no")

    lane.start(fails)
    lane.turn(LONG, patient=False)
    with pytest.raises(ValueError, match="no"):
        lane.collect()
    lane.start(lambda: 7)
    assert finish(lane) == 7


def test_what_is_abandoned_ends_at_its_next_breath(lane: SlowLane, clock: Clock) -> None:
    seen: list[int] = []
    lane.start(counting(lane, clock, 10, seen))
    lane.turn(2.0, patient=False)
    lane.abandon()
    assert lane.state is LaneState.DONE
    with pytest.raises(Abandoned):
        lane.collect()
    assert seen == [0, 1]
    lane.start(counting(lane, clock, 2, seen))
    assert finish(lane) == 2


def test_abandoned_before_its_first_turn_and_while_it_waits(lane: SlowLane, clock: Clock) -> None:
    lane.start(counting(lane, clock, 3, []))
    lane.abandon()
    with pytest.raises(Abandoned):
        lane.collect()

    def work() -> None:
        with lane.waiting():
            pass
        lane.breathe()

    lane.start(work)
    lane.turn(0.0, patient=False)
    lane.abandon()
    with pytest.raises(Abandoned):
        lane.collect()


def test_what_has_ended_by_itself_is_not_lost_to_an_abandon(lane: SlowLane) -> None:
    lane.start(lambda: 3)
    lane.turn(LONG, patient=True)
    lane.abandon()
    assert lane.collect() == 3


def test_other_threads_neither_breathe_nor_wait_in_it(lane: SlowLane) -> None:
    lane.breathe()
    with lane.waiting():
        assert lane.state is LaneState.IDLE


def test_an_interrupted_turn_gets_the_baton_back_first(
    lane: SlowLane, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    lane.start(counting(lane, clock, 10, seen))
    original, calls = lane._condition.wait, [0]

    def interrupted(timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread():
            calls[0] += 1
            if calls[0] == 1:
                raise KeyboardInterrupt
        return original(timeout)

    monkeypatch.setattr(lane._condition, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lane.turn(LONG, patient=True)
    assert lane.state in (LaneState.READY, LaneState.DONE)
    with suppress(Abandoned):
        finish(lane)


def test_it_refuses_a_second_work_and_an_early_result(lane: SlowLane) -> None:
    with pytest.raises(InvariantError, match="idle"):
        lane.collect()
    lane.start(lambda: 1)
    with pytest.raises(InvariantError, match="ready"):
        lane.start(lambda: 2)
    assert finish(lane) == 1


def test_a_lane_that_was_never_used_has_no_thread(clock: Clock) -> None:
    lane = SlowLane(clock)
    assert not any(thread.name == "kvpager-slow-lane" for thread in threading.enumerate())
    lane.close()
    lane.close()
    with pytest.raises(InvariantError, match="can't start"):
        lane.start(lambda: 1)
