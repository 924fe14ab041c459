"""A second thread that computes in turns with the engine's own, and may wait for I/O meanwhile. Knows no model.

    engine thread   | step     |  turn ..............  | step     |  turn ...
    lane thread        (I/O)   | compute | breathe     |  (I/O)   | compute
                                              ^ the turn is over: the baton goes back

Exactly one of the two computes at a time: whoever holds the baton. The lane gets it in ``turn`` and gives it back when
it waits for I/O, when its work is done, or at the first ``breathe`` that may be the last one within the turn:

                start               turn                  breathe, at the turn's end
    IDLE ---------------> READY ------------> COMPUTING -------------------------------> READY
      ^                     ^                  |     |
      | collect             +---- I/O ended -- WAITING   (without the baton)
      +------------------------------- DONE <--+

The thread is started with the first work, so an engine that never needs it has none.
"""

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from threading import Condition, Thread, get_ident
from typing import Any

from kvpager.errors import InvariantError

_FADES = 0.95  # from breath to breath: what a long one before says of the next
_WHOLE_TURN = 3600.0  # seconds: longer than any work goes on without breathing


class LaneState(Enum):
    IDLE = "idle"
    READY = "ready"
    COMPUTING = "computing"
    WAITING = "waiting"
    DONE = "done"


class Abandoned(Exception):
    """What the lane's work is ended with when nobody wants its result any more."""


class SlowLane:
    """Every call but ``breathe`` and ``waiting`` is the engine thread's. ``clock``: seconds.

    A ``Pace`` (tiers/staging.py) for the thread of the lane; for any other thread it does nothing.
    """

    is_shared = True

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._condition = Condition()
        self._state = LaneState.IDLE
        self._until = 0.0  # end of the turn
        self._breathed = 0.0  # when the lane last breathed, or got the baton
        self._longest = 0.0  # seconds between two breaths, of the latest ones
        self.longest_piece = 0.0  # the same, of the work that was started last
        self._is_over = False  # the lane gave the baton back at a breath
        self._is_abandoned = self._is_closed = False
        self._work: Callable[[], Any] | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread: Thread | None = None
        self._ident: int | None = None

    # -- the engine's thread ------------------------------------------------------------------------------------

    @property
    def state(self) -> LaneState:
        return self._state

    def start(self, work: Callable[[], Any]) -> None:
        """``work`` is computed in the turns to come. REQUIRES: idle, and not closed."""
        if self._state is not LaneState.IDLE or self._is_closed:
            raise InvariantError(f"the second lane is {self._state.value} and can't start anything")
        if self._thread is None:
            self._thread = Thread(target=self._loop, name="kvpager-slow-lane", daemon=True)
            self._thread.start()
            atexit.register(self.close)  # an engine that nobody closed must not end in the middle of a computation
        with self._condition:
            self._work, self._is_abandoned, self.longest_piece = work, False, 0.0
            self._state = LaneState.READY

    def turn(self, seconds: float, *, patient: bool) -> float:
        """The lane computes for about so long; returns how long it had the baton. Returns early once it is done.

        ``patient``: while it waits for I/O, this does too, as nobody else has anything to compute.
        """
        begin = self._clock()
        end, used = begin + seconds, 0.0
        had_one = False
        with self._condition:
            self._await_baton()  # an earlier turn may have been interrupted
            while True:
                now = self._clock()
                if self._state is LaneState.READY and (now < end or not had_one):
                    had_one = True
                    self._hand_over(end)
                    used += self._clock() - now
                    if self._is_over:
                        return used
                elif self._state is LaneState.WAITING and patient and now < end:
                    self._condition.wait(end - now)
                else:
                    return used

    def abandon(self) -> None:
        """Ends the work at its next breath, if it has not ended by itself; it is done when this returns."""
        self._is_abandoned = True
        while self._state not in (LaneState.IDLE, LaneState.DONE):
            self.turn(_WHOLE_TURN, patient=True)

    def collect(self) -> Any:
        """What came of the work, or the exception that ended it. REQUIRES: done. Idle afterwards."""
        if self._state is not LaneState.DONE:
            raise InvariantError(f"the second lane is {self._state.value}: there is nothing to collect")
        value, error = self._value, self._error
        self._value = self._error = None
        self._state = LaneState.IDLE
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Ends the thread. Closing again does nothing."""
        self.abandon()
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            atexit.unregister(self.close)

    def _hand_over(self, end: float) -> None:
        """Gives the baton to the lane and waits until it is back, whatever interrupts the wait."""
        self._until, self._state, self._is_over = end, LaneState.COMPUTING, False
        self._condition.notify_all()
        try:
            self._await_baton()
        except BaseException:
            self._until = self._clock()
            self._await_baton()
            raise

    def _await_baton(self) -> None:
        while self._state is LaneState.COMPUTING:
            self._condition.wait()

    # -- the lane's thread --------------------------------------------------------------------------------------

    def breathe(self) -> None:
        """Raises Abandoned where the work is not wanted any more."""
        if get_ident() != self._ident:
            return
        if not self._is_abandoned:
            now = self._clock()
            piece, self._breathed = now - self._breathed, now
            self._longest = max(piece, self._longest * _FADES)
            self.longest_piece = max(piece, self.longest_piece)
            if now + self._longest <= self._until:
                return
            with self._condition:
                self._is_over = True
                self._ask_for_baton()
        if self._is_abandoned:
            raise Abandoned

    @contextmanager
    def waiting(self) -> Iterator[None]:
        if get_ident() != self._ident:
            yield
            return
        with self._condition:
            self._state = LaneState.WAITING
            self._condition.notify_all()
        try:
            yield
        finally:
            with self._condition:
                self._ask_for_baton()

    def _ask_for_baton(self) -> None:
        """REQUIRES: the condition is held."""
        self._state = LaneState.READY
        self._condition.notify_all()
        while self._state is not LaneState.COMPUTING:
            self._condition.wait()
        self._breathed = self._clock()

    def _loop(self) -> None:
        self._ident = get_ident()
        while self._await_work():
            value, error = None, None
            try:
                assert self._work is not None
                value = self._work()
            except BaseException as raised:  # the engine's thread raises it
                error = raised
            with self._condition:
                self._work, self._value, self._error = None, value, error
                self._state = LaneState.DONE
                self._condition.notify_all()

    def _await_work(self) -> bool:
        with self._condition:
            while self._state is not LaneState.COMPUTING and not self._is_closed:
                self._condition.wait()
            self._breathed = self._clock()
            return not self._is_closed
