"""Redis connections that give up at a moment, not after a silence.

A socket's timeout starts anew with every byte, so a server that sends one byte a second could hold a worker for ever;
and nothing bounds the look-up of a host name. Here each call sets its deadline (``Deadline``, one per thread), reading
and writing wait no longer than until then, and connecting happens in a thread that may be left behind.
"""

import socket
from threading import Thread, local
from time import monotonic
from typing import Any

from redis.connection import Connection, SSLConnection

_LONGEST = 3600.0  # seconds: more than any call has, less than what a timer can't count


class Deadline(local):
    """The moment at which the call that this thread is making has to be over."""

    at = float("inf")

    def left(self) -> float:
        """Seconds until then, more than zero. Raises TimeoutError where there is none left."""
        left = min(self.at - monotonic(), _LONGEST)
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        return left


deadline = Deadline()


class _Socket:
    """A socket whose waits end at the deadline of the thread that waits."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner
        self._timeout: float | None = inner.gettimeout()

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout

    def recv(self, *args: Any) -> bytes:
        self._arm()
        return self._inner.recv(*args)

    def recv_into(self, *args: Any) -> int:
        self._arm()
        return self._inner.recv_into(*args)

    def sendall(self, data: Any) -> None:
        self._arm()  # one timeout for all of it: sendall counts the whole, not the parts
        self._inner.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _arm(self) -> None:
        if self._timeout == 0:  # a look whether something is there
            self._inner.settimeout(0)
            return
        left = deadline.left()
        self._inner.settimeout(left if self._timeout is None else min(self._timeout, left))


def _in_time(connect: Any) -> _Socket:
    """What ``connect`` returns, if it does by the deadline. A socket that comes later is closed."""
    found: list[socket.socket] = []
    errors: list[BaseException] = []
    given_up = False

    def work() -> None:
        try:
            sock = connect()
        except BaseException as error:
            errors.append(error)
            return
        found.append(sock)
        if given_up:
            sock.close()

    thread = Thread(target=work, name="kvpager remote connect", daemon=True)
    thread.start()
    thread.join(deadline.left())
    if thread.is_alive():
        given_up = True
        if not found:
            raise TimeoutError("no connection by the deadline")
    if errors:
        raise errors[0]
    return _Socket(found[0])


class DeadlineConnection(Connection):
    def _connect(self) -> Any:
        return _in_time(super()._connect)


class DeadlineSSLConnection(SSLConnection):
    def _connect(self) -> Any:
        return _in_time(super()._connect)
