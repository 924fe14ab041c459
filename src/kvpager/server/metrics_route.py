"""/metrics: what Prometheus scrapes. For operators, where keys are in use. metrics/exposition.py writes the text."""

from time import monotonic
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from kvpager.metrics.snapshot import take
from kvpager.server.errors import ApiError
from kvpager.server.service import Service, service_of
from kvpager.server.tenant import tenant_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request, service: Annotated[Service, Depends(service_of)]) -> Response:
    if not tenant_of(request).is_operator:
        raise ApiError(403, "this route is for operators", code="operator_only")
    snapshot = await service.thread.call(lambda engine: take(engine, monotonic()))
    rendered = service.exposition.render(
        snapshot,
        monotonic(),
        accept=request.headers.get("accept", ""),
        vllm_model=service.model_name if service.options.metrics_compat == "vllm" else None,
    )
    return Response(rendered.body, headers={"Content-Type": rendered.content_type})
