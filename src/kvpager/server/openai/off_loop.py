"""Work on texts beside the event loop: tokenizing and rendering, on a few threads, and no longer than it may.

Python can't end a thread, but it can raise in one: what runs Python code, like a chat template, stops soon after its
time is over. What runs compiled code, like a tokenizer, ends by itself: its text is as long as a body at most.
"""

import asyncio
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

_T = TypeVar("_T")
_THREADS = 2
_SHORT_TEXT = 2000  # characters that a tokenizer takes less time for than a thread takes to answer


class OutOfTime(Exception):
    """The work took longer than it may."""


class _Overtime(BaseException):
    """Raised in the thread; not an Exception, so that no template's own handler swallows it."""


class OffLoop:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="kvpager-text")

    async def run(self, function: Callable[[], _T], *, seconds: float | None = None) -> _T:
        """What ``function`` returns or raises. Raises OutOfTime."""
        work = _Work(function)
        loop = asyncio.get_running_loop()
        overtime = None if seconds is None else loop.call_later(seconds, work.interrupt)
        try:
            return await loop.run_in_executor(self._threads, work.run)
        finally:
            if overtime is not None:
                overtime.cancel()

    async def run_for(self, text: str, function: Callable[[], _T]) -> _T:
        """Here and now, if the text is short."""
        return function() if len(text) <= _SHORT_TEXT else await self.run(function)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Work(Generic[_T]):
    """Time counts from when it was asked for: what still waits for a thread then is not begun."""

    def __init__(self, function: Callable[[], _T]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._is_over = False

    def run(self) -> _T:
        try:
            with self._lock:
                if self._is_over:
                    raise OutOfTime
                self._thread = threading.get_ident()
            try:
                return self._function()
            finally:
                with self._lock:
                    self._thread = None
                for _ in range(8 if self._is_over else 0):
                    pass  # what was raised from outside arrives here at the latest
        except _Overtime:
            raise OutOfTime from None

    def interrupt(self) -> None:
        with self._lock:
            self._is_over = True
            if self._thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(_Overtime))
