"""The application: which routes there are, and what stands before them."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from kvpager.config import reserved_variables
from kvpager.config.server_options import ServerOptions
from kvpager.engine.engine import Engine
from kvpager.metrics.request_metrics import RequestMetrics
from kvpager.server import liveness, metrics_route, page_route
from kvpager.server.alert_watch import watching
from kvpager.server.bodies import Bodies
from kvpager.server.document import describe
from kvpager.server.engine_thread import EngineThread
from kvpager.server.envelope import Envelope
from kvpager.server.errors import ERROR_RESPONSES, add_error_handlers
from kvpager.server.guard import Guard
from kvpager.server.keys import load_keys
from kvpager.server.kv import follow, frame, history, info, reset, retain, sessions, stream, tables, trace
from kvpager.server.kv.held_retentions import HeldRetentions
from kvpager.server.openai import chat, completions, models, tokenize
from kvpager.server.page_events import PageEvents
from kvpager.server.service import Service
from kvpager.server.tracing import tracing
from kvpager.version import __version__

_PARTS = (
    liveness,
    metrics_route,
    models,
    tokenize,
    completions,
    chat,
    frame,
    stream,
    tables,
    follow,
    history,
    trace,
    info,
    reset,
    retain,
    sessions,
)


def create_app(open_engine: Callable[[], Engine], options: ServerOptions) -> FastAPI:
    """``open_engine`` is called when the application starts, on the thread that then runs the engine."""
    metrics = RequestMetrics()
    thread = EngineThread(
        open_engine, stall_seconds=options.stall_seconds, max_seconds=options.max_seconds, metrics=metrics
    )
    page_events = PageEvents(options)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with tracing(app.state.service):
            await thread.start()
            try:
                await page_events.start(thread)
                async with watching(app.state.service):
                    yield
            finally:
                await thread.stop()
                await page_events.stop()
                app.state.service.close()

    app = FastAPI(
        title="kvpager",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.retentions = HeldRetentions()
    app.state.service = Service(thread, options, metrics, int(time.time()), page_events)
    add_error_handlers(app)
    for part in _PARTS:
        app.include_router(part.router, responses=ERROR_RESPONSES)
    if options.page:
        app.include_router(page_route.router)
    describe(app)
    # The last one added is the first to see a request.
    app.add_middleware(Bodies, max_bytes=options.max_body_bytes)
    app.add_middleware(Guard, options=options, keys=load_keys(options.api_keys, reserved_variables()))
    app.add_middleware(Envelope)
    return app
