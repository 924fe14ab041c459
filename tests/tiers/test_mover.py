"""Worker threads: a job that hangs, or dies of anything, holds up no other."""

from threading import Event

from kvpager.tiers.mover import ThreadMover

PATIENCE = 30.0  # seconds, reached only where something is broken


class Hanging:
    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.may_end = Event()

    def run(self) -> None:
        assert self.may_end.wait(PATIENCE)


class Dying:
    error: BaseException | None = None

    def run(self) -> None:
        raise SystemExit(3)


def test_the_second_job_of_a_lane_does_not_wait_for_the_first_where_there_are_two_threads() -> None:
    mover, first, second = ThreadMover({"lane": 2}), Hanging(), Dying()
    mover.submit("lane", first)
    mover.submit("lane", second)
    assert mover.collect(PATIENCE) == [second]
    assert mover.num_open == 1
    first.may_end.set()
    assert mover.collect(PATIENCE) == [first]
    mover.close(PATIENCE)


def test_whatever_a_job_raises_it_ends_and_the_thread_goes_on() -> None:
    mover = ThreadMover({"lane": 1})
    for _ in range(3):
        job = Dying()
        mover.submit("lane", job)
        assert mover.collect(PATIENCE) == [job]
        assert isinstance(job.error, SystemExit)
    assert mover.num_open == 0
    mover.close(PATIENCE)
