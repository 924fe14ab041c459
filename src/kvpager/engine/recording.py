"""Records what a running engine is asked, as a trace to replay: which pages, when, and how it went. Hashes only.

A request is recorded when it has ended, cancelled or not, with the time when it came; one that never gave a token is
left out, for its prompt was not computed to the end. Its pages are the full ones of the prompt, as the cache keeps
them. Recording never waits and never fails a request: see simulator/recording.py.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from kvpager.cache.paged_cache import PagedCache
from kvpager.engine.request import Request
from kvpager.eviction.policy import StopReason
from kvpager.simulator.recording import Recorder

_log = logging.getLogger(__name__)


class Recording:
    """A context: leaving it closes the file. ``clock``: the seconds of ``Request.came``."""

    def __init__(self, path: str | Path, cache: PagedCache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._recorder = Recorder(path, page_tokens=cache.layout.page_size)
        self._begin = clock()

    @property
    def num_requests(self) -> int:
        return self._recorder.num_requests

    @property
    def failure(self) -> str:
        """Why the recording ended early; empty while it goes on."""
        return self._recorder.failure

    def ended(self, request: Request, stop: StopReason) -> None:
        """``stop``: of the choice that ended last, and so let go of the prompt. Of n choices the longest counts."""
        output = max(len(branch.output) for branch in request.branches)
        if self.failure or not output:
            return
        matched = request.matched or 0
        self._recorder.record(
            request.came - self._begin,
            self._cache.content_keys(request.prompt, request.scope),
            input_tokens=len(request.prompt),
            output_tokens=output,
            matched=matched // self._cache.layout.page_size,
            stop=stop,
        )
        self._say_if_failed()

    def _say_if_failed(self) -> None:
        if self.failure:
            _log.warning("%s; the engine goes on without it", self.failure)

    def __enter__(self) -> "Recording":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recorder.close()
