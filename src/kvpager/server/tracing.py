"""Spans of a server's requests, as long as it runs, where the operator has named a collector."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kvpager.metrics.spans import Spans
from kvpager.server.service import Service


@asynccontextmanager
async def tracing(service: Service) -> AsyncIterator[None]:
    """Entered before the engine's thread starts, and left when that has ended. Raises ConfigError, MissingExtra."""
    options = service.options
    if options.otel is None:
        yield
        return
    spans = Spans(options.otel, address=options.host, port=options.port, model=lambda: service.model_name)
    service.thread.trace_into(spans)
    try:
        yield
    finally:
        await asyncio.to_thread(spans.close)
