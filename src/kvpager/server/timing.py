"""The times of one request's tokens, told to the metrics as they come. Runs on the engine's thread."""

from time import perf_counter

from kvpager.engine.request import Request, TokenEvent
from kvpager.metrics.request_metrics import RequestMetrics


class Timing:
    """``came``: when the request reached the server, in seconds of ``perf_counter``."""

    def __init__(self, metrics: RequestMetrics, came: float, request: Request) -> None:
        self._metrics = metrics
        self._came = came
        self._request = request
        self._first: dict[int, float] = {}  # of each choice: when its first token came
        self._last: dict[int, float] = {}  # of each choice: when its latest token came
        self._generated: dict[int, int] = {}

    def saw(self, event: TokenEvent) -> None:
        now = perf_counter()
        if event.token is not None:
            before = self._last.get(event.choice)
            if before is None:
                self._metrics.first_token(now - self._came)
                if not self._first and self._request.started is not None:
                    self._metrics.queued(self._request.started - self._came)
                self._first[event.choice] = now
            else:
                self._metrics.next_token(now - before)
            self._last[event.choice] = now
            self._generated[event.choice] = self._generated.get(event.choice, 0) + 1
        if event.finish_reason is not None:
            generated = self._generated.get(event.choice, 0)
            first = self._first.get(event.choice)
            self._metrics.ended(
                event.finish_reason,
                len(self._request.prompt),
                generated,
                now - self._came,
                None if first is None else self._last[event.choice] - first,
            )
