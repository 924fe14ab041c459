from collections.abc import Sequence

from kvpager.errors import TierError, TierFull
from kvpager.tiers.remote.object_store import ErrorReply, Missing, TooLate, Unreachable
from kvpager.tiers.remote.retry import Retry
from tests.tiers.remote.fakes import Hand

LOST = Unreachable("lost")


class Log:
    """Answers from a script, call by call; the answer to a question is looked up by its number."""

    def __init__(self, *script: dict[int, object]) -> None:
        self.script = list(script)
        self.asked: list[list[int]] = []
        self.timeouts: list[float] = []

    def __call__(self, some: list[int], timeout: float) -> Sequence[object]:
        self.asked.append(some)
        self.timeouts.append(timeout)
        return [self.script[len(self.asked) - 1][at] for at in some]


def retry(clock: Hand, *, tries: int = 3, jitter: float = 1.0) -> Retry:
    return Retry(clock, clock.sleep, lambda: jitter, tries=tries, first=0.1, longest=0.3)


def test_only_what_failed_in_passing_is_asked_again() -> None:
    late, full, no = TooLate("late"), TierFull("full"), ErrorReply("no", is_passing=False)
    busy = ErrorReply("busy", is_passing=True)
    log = Log({0: b"0", 1: LOST, 2: late, 3: full, 4: busy, 5: no, 6: Missing("-")}, {1: b"1", 4: busy}, {4: b"4"})
    clock = Hand()
    answers = retry(clock).run(log, 7, 10.0)
    assert log.asked == [[0, 1, 2, 3, 4, 5, 6], [1, 4], [4]]
    assert answers[:6] == [b"0", b"1", late, full, b"4", no]


def test_it_gives_up_after_so_many_tries() -> None:
    for tries in (1, 2, 5):
        log = Log(*[{0: LOST}] * tries)
        assert retry(Hand(), tries=tries).run(log, 1, 100.0) == [LOST]
        assert len(log.asked) == tries


def test_pauses_double_up_to_the_longest() -> None:
    clock = Hand()
    begin, pauses = clock.now, []

    def ask(some: list[int], timeout: float) -> list[TierError]:
        pauses.append(clock.now - begin)
        return [LOST]

    retry(clock, tries=5).run(ask, 1, 100.0)
    assert [round(pause, 6) for pause in pauses] == [0, 0.1, 0.3, 0.6, 0.9]


def test_jitter_is_full() -> None:
    clock = Hand()
    retry(clock, tries=3, jitter=0.0).run(Log(*[{0: LOST}] * 3), 1, 100.0)
    assert clock.now == Hand().now
    retry(clock, tries=2, jitter=0.5).run(Log(*[{0: LOST}] * 2), 1, 100.0)
    assert round(clock.now - Hand().now, 6) == 0.05


def test_no_try_begins_after_the_time_is_over_and_each_knows_what_is_left() -> None:
    clock = Hand()
    log = Log(*[{0: LOST}] * 5)
    retry(clock, tries=5).run(log, 1, 0.35)
    assert [round(timeout, 6) for timeout in log.timeouts] == [0.35, 0.25, 0.05]


def test_what_succeeds_at_once_is_asked_once() -> None:
    log = Log({0: 1, 1: 2})
    assert retry(Hand()).run(log, 2, 1.0) == [1, 2]
    assert log.asked == [[0, 1]]
