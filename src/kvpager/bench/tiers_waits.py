"""What the bookkeeping thread itself does with files, sockets and waits, by looking over its shoulder.

Calls of the modules os and socket, sleeps and Migration's waits are counted and timed where the calling
thread is the one that is watched; worker threads may do as they like. The kernel's own count of this thread's reads and
writes stands beside it, so that a call that is not wrapped shows too.
"""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvpager.cache.lower_pages import LowerPages

_OS = (
    "open", "close", "read", "write", "pread", "pwrite", "preadv", "pwritev", "readv", "writev", "sendfile",
    "fsync", "fdatasync", "sync", "stat", "lstat", "fstat", "statvfs", "fstatvfs", "listdir", "scandir",
    "unlink", "rename", "replace", "mkdir", "rmdir", "truncate", "ftruncate", "posix_fallocate", "posix_fadvise",
)  # fmt: skip
_SOCKET = ["accept", "connect", "recv", "recv_into", "recvfrom", "send", "sendall", "sendto", "sendmsg"]


@dataclass(slots=True)
class Waits:
    """``calls``: file and socket calls and sleeps of the thread, by name. ``seconds``: that they took, and waits for
    transfers while there was other work. ``idle``: waits while there was none. ``kernel``: reads and writes that the
    kernel counted."""

    seconds: float = 0.0
    idle: float = 0.0
    kernel: int = 0
    calls: Counter[str] = field(default_factory=Counter)


@contextmanager
def waits_of_this_thread(lower: LowerPages | None, waits: Waits) -> Iterator[Waits]:
    """Adds what this thread does meanwhile to ``waits``."""
    watched = threading.get_ident()

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != watched:
                return function(*args, **kwargs)
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                waits.seconds += time.perf_counter() - begin
                waits.calls[name] += 1

        return counted

    own = -_counted_by_kernel() + _counted_by_kernel()  # asking is reading, too
    before = _counted_by_kernel()
    with ExitStack() as restored:
        wrapped = [(os, name) for name in _OS] + [(socket.socket, name) for name in _SOCKET] + [(time, "sleep")]
        for owner, name in wrapped:
            original = getattr(owner, name)
            setattr(owner, name, wrap(name, original))
            restored.callback(_restore, owner, name, original)
        begun = None if lower is None else lower.migration.statistics()
        yield waits
        if lower is not None and begun is not None:
            ended = lower.migration.statistics()
            waits.seconds += ended.io_wait_seconds - begun.io_wait_seconds
            waits.idle += ended.idle_seconds - begun.idle_seconds
    waits.kernel += max(0, _counted_by_kernel() - before - own)


def _restore(owner: Any, name: str, original: Any) -> None:
    setattr(owner, name, original)


def _counted_by_kernel() -> int:
    """Reads and writes of this thread since it began; 0 where the kernel does not say."""
    try:
        text = Path(f"/proc/self/task/{threading.get_native_id()}/io").read_text()
    except OSError:
        return 0
    found = dict(line.split(": ") for line in text.splitlines())
    return int(found["syscr"]) + int(found["syscw"])
