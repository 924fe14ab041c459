"""What the routes share: the engine's thread, the options, the model's names, the metrics."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Request

from kvpager.config.server_options import ServerOptions
from kvpager.engine.engine import Engine
from kvpager.metrics.alerts import Alerts
from kvpager.metrics.exposition import Exposition
from kvpager.metrics.request_metrics import RequestMetrics
from kvpager.server.engine_thread import EngineThread
from kvpager.server.openai.off_loop import OffLoop
from kvpager.server.page_events import PageEvents

if TYPE_CHECKING:
    from kvpager.server.guides import Guides


@dataclass(slots=True)
class Service:
    thread: EngineThread
    options: ServerOptions
    metrics: RequestMetrics
    started: int  # unix seconds
    page_events: PageEvents
    off_loop: OffLoop = field(default_factory=OffLoop)  # for work on texts
    alerts: Alerts = field(default_factory=Alerts)
    exposition: Exposition = field(init=False)
    _guides: "Guides | None" = None

    def __post_init__(self) -> None:
        self.exposition = Exposition(self.metrics)
        self.exposition.sources.append(self.page_events)

    @property
    def engine(self) -> Engine:
        """For what never changes: options, layout, limits, tokenizer. REQUIRES: started."""
        assert self.thread.engine is not None
        return self.thread.engine

    @property
    def guides(self) -> "Guides":
        """Of the model's tokenizer; made when the first one is wanted."""
        if self._guides is None:
            from kvpager.server.guides import Guides

            self._guides = Guides(self.engine.tokenizer)
        return self._guides

    def close(self) -> None:
        """Ends the threads that work beside the event loop."""
        self.off_loop.close()
        if self._guides is not None:
            self._guides.close()

    @property
    def model_name(self) -> str:
        """What clients call it: where it lies on this machine is nobody's business."""
        model = self.engine.options.model
        return self.options.served_name or (Path(model).name if Path(model).exists() else model)


def service_of(request: Request) -> Service:
    """For routes: ``service: Annotated[Service, Depends(service_of)]``."""
    service: Service = request.app.state.service
    return service
