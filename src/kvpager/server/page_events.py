"""Who listens to what happens to pages while a server runs: page metrics, journeys, KV events where they are wanted.

All of them hang on one page log, which is attached when the engine has opened. The engine's loop hands on what has
happened between two steps (``PageLog.drain``); that is where the work of metrics and journeys is done.
"""

import asyncio
import time
from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily

from kvpager.cache.page_log import PageLog, Subscriber
from kvpager.config.server_options import ServerOptions
from kvpager.errors import ConfigError
from kvpager.metrics.journeys import Journeys
from kvpager.metrics.kv_events import KVEventPublisher
from kvpager.metrics.kv_wire import Form
from kvpager.metrics.page_life import PageLife
from kvpager.server.engine_thread import EngineThread

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

    from kvpager.engine.engine import Engine


class PageEvents:
    """Of one server. ``publisher``: None where no KV events are published. Raises ConfigError, MissingExtra."""

    def __init__(self, options: ServerOptions) -> None:
        offset = time.time() - perf_counter()
        self.life = PageLife()
        self.journeys = Journeys(lambda seconds: seconds + offset)
        self.publisher: KVEventPublisher | None = None
        if options.events is None and options.events_replay is not None:
            raise ConfigError("option 'events_replay' is for missed 'events': give an address for these too")
        if options.events is not None:
            self.publisher = KVEventPublisher(
                options.events,
                options.events_replay,
                allow_open=options.allow_open_bind,
                form=Form(options.events_form),
            )
        self.log: PageLog | None = None  # once it is attached

    async def start(self, thread: EngineThread) -> None:
        """REQUIRES: the engine has opened. Raises ConfigError where the publisher's addresses can't be bound."""
        assert thread.engine is not None
        listeners: list[Subscriber] = [self.life, self.journeys]
        if self.publisher is not None:
            self.publisher.start(thread.engine.layout)
            listeners.append(self.publisher)

        def attach(engine: "Engine") -> None:
            self.log = PageLog(engine.cache, perf_counter)
            for each in listeners:
                self.log.subscribe(each)

        await thread.call(attach)

    async def stop(self) -> None:
        """REQUIRES: the engine's thread has ended."""
        if self.publisher is not None:
            await asyncio.to_thread(self.publisher.close)

    def families(self) -> "Iterable[Family]":
        """For /metrics."""
        log = self.log
        events = CounterMetricFamily(
            "kvpager_page_events_dropped", "Events of pages that found no room in the log; what is there is told anew"
        )
        events.add_metric([], 0 if log is None else log.dropped)
        yield events
        yield from self.life.families()
        if self.publisher is not None:
            counts = self.publisher.counts()
            batches = CounterMetricFamily("kvpager_kv_event_batches", "Batches of KV events that were published")
            batches.add_metric([], counts.batches)
            replays = CounterMetricFamily("kvpager_kv_event_replays", "Requests for missed KV events, answered")
            replays.add_metric([], counts.replays)
            yield from (batches, replays)
