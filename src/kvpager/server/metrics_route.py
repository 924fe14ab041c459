"""/metrics: what Prometheus scrapes. For operators, where keys are in use. metrics/exposition.py writes the text."""

from time import perf_counter
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from kvpager.server.service import Service, service_of
from kvpager.server.tenant import require_operator

router = APIRouter()
_FORMATS: dict[str, dict[str, str]] = {"text/plain": {}, "application/openmetrics-text": {}}


@router.get("/metrics", response_class=Response, responses={200: {"content": _FORMATS}})
async def metrics(request: Request, service: Annotated[Service, Depends(service_of)]) -> Response:
    """Answers also while the engine does not; kvpager_snapshot_age_seconds tells."""
    require_operator(request)
    rendered = service.exposition.render(
        await service.thread.snapshot(max_age=0.0),
        perf_counter(),
        accept=request.headers.get("accept", ""),
        vllm_model=service.model_name if service.options.metrics_compat == "vllm" else None,
    )
    return Response(rendered.body, headers={"Content-Type": rendered.content_type})
